// Weights of 4 and 8 bits: made wide again for each product, which keeps none of it. AdamW with moments of 8 bits. As in quantized.cu.

#pragma once

#include "functions.hpp"
#include "quantized_numbers.hpp"

// --- Weights ----------------------------------------------------------------------------------------------------------------------

constexpr float NF4[16] = NF4_NUMBERS;

struct QuantizedWeight {
  Tensor codes;   // 4 bits: two of them in a byte, the first in its upper half; 8 bits: [rows, columns]
  Tensor scales;  // 4 bits: a code for each block of 64; 8 bits: a number for each row
  // 4 bits alone: the scale of 256 codes of scales, the numbers that these codes stand for, and what is added to them.
  Tensor scales_of_scales, map;
  double offset;
  int64_t rows, columns;

  bool has_four_bits() const { return map.defined(); }

  // Whether the product with `x` [few, columns] takes the numbers as they are, which is faster then.
  bool multiplies(const Tensor& x) const {
    return has_four_bits() && x.is_cuda() && x.size(0) > 0 && x.size(0) <= kernels::FEW_ROWS && columns % 64 == 0;
  }

  // x w^T + bias, of few rows. Sums are in fp32.
  Tensor product(const Tensor& in, const Tensor& bias) const {
    auto x = in.contiguous();
    auto out = at::empty({x.size(0), rows}, x.options());
    auto kernel = kernels::multiply_nf4(cuda::type_of(x.scalar_type()), x.size(0));
    const void *pc = codes.data_ptr(), *ps = scales.data_ptr(), *pss = scales_of_scales.data_ptr(), *pm = map.data_ptr(), *px = x.data_ptr();
    const void* pb = bias.defined() ? bias.data_ptr() : nullptr;
    int64_t warps = kernel.threads / 32;
    cuda::launch_grid(x.device(), kernel, {(rows + warps - 1) / warps, 1, 1}, pc, ps, pss, pm, float(offset), px, pb, out.data_ptr(),
                      uint32_t(x.size(0)), uint32_t(rows), uint32_t(columns));
    return out;
  }

  // [rows, columns]
  Tensor wide(at::ScalarType type) const {
    auto out = at::empty({rows, columns}, scales.options().dtype(type));
    if (codes.is_cuda()) {
      on_card(out);
    } else if (type == at::kFloat) {
      on_cpu<float>(out);
    } else if (type == at::kBFloat16) {
      on_cpu<at::BFloat16>(out);
    } else if (type == at::kHalf) {
      on_cpu<at::Half>(out);
    } else {
      TORCH_CHECK(false, "quantized weights are not made ", type);
    }
    return out;
  }

 private:
  void on_card(const Tensor& out) const {
    auto type = cuda::type_of(out.scalar_type());
    const void *pc = codes.data_ptr(), *ps = scales.data_ptr();
    if (has_four_bits()) {
      auto kernel = kernels::dequantize_nf4(type);
      const void *pss = scales_of_scales.data_ptr(), *pm = map.data_ptr();
      cuda::launch(out.device(), kernel, cuda::blocks_for(out.numel(), 4 * kernel.threads), pc, ps, pss, pm, float(offset), out.data_ptr(),
                   uint64_t(out.numel()));
      return;
    }
    auto kernel = kernels::dequantize_int8(type);
    auto across = (columns + 8 * kernel.threads - 1) / (8 * kernel.threads);
    cuda::launch_grid(out.device(), kernel, {across, std::min<int64_t>(rows, 65535), 1}, pc, ps, out.data_ptr(), uint32_t(rows), uint32_t(columns));
  }

  template <typename T> void on_cpu(const Tensor& out) const {
    auto* to = out.data_ptr<T>();
    if (!has_four_bits()) {
      auto *from = codes.data_ptr<int8_t>();
      auto *row_scales = scales.data_ptr<float>();
      at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * columns; i < end * columns; i++) to[i] = T(float(from[i]) * row_scales[i / columns] * ONE_BY_127);
      });
      return;
    }
    auto *from = codes.data_ptr<uint8_t>(), *scale_codes = scales.data_ptr<uint8_t>();
    auto *outer = scales_of_scales.data_ptr<float>(), *numbers = map.data_ptr<float>();
    int64_t n = out.numel();
    at::parallel_for(0, (n + 63) / 64, 256, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; block++) {
        float scale = numbers[scale_codes[block]] * outer[block / 256];
        scale += float(offset);
        for (int64_t i = block * 64; i < std::min(n, block * 64 + 64); i++) to[i] = T(NF4[i % 2 ? from[i / 2] & 15 : from[i / 2] >> 4] * scale);
      }
    });
  }

};

// in weight^T + bias. The weight is wide for the time of a product alone, if at all, and has no gradient.
struct QuantizedLinear : torch::autograd::Function<QuantizedLinear> {
  static Tensor forward(AutogradContext* ctx, Tensor in, Optional added, QuantizedWeight weight) {
    auto bias = added.value_or(Tensor());
    auto type = in.scalar_type();
    ctx->save_for_backward({bias});
    auto& saved = ctx->saved_data;
    saved["codes"] = weight.codes;
    saved["scales"] = weight.scales;
    saved["has_four_bits"] = weight.has_four_bits();
    if (weight.has_four_bits()) {
      saved["scales_of_scales"] = weight.scales_of_scales;
      saved["map"] = weight.map;
    }
    saved["offset"] = weight.offset;
    saved["rows"] = weight.rows;
    saved["columns"] = weight.columns;
    saved["type"] = int64_t(type);
    auto sizes = in.sizes().vec();
    sizes.back() = weight.rows;
    auto x = rows_of(in);
    if (weight.multiplies(x)) return weight.product(x, bias.defined() ? bias.to(type).contiguous() : bias).view(sizes);
    auto by = weight.wide(type).t();
    return (bias.defined() ? at::addmm(bias.to(type), x, by) : x.mm(by)).view(sizes);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto bias = ctx->get_saved_variables()[0];
    auto& saved = ctx->saved_data;
    QuantizedWeight weight{saved["codes"].toTensor(), saved["scales"].toTensor(), Tensor(), Tensor(), saved["offset"].toDouble(),
                           saved["rows"].toInt(), saved["columns"].toInt()};
    if (saved["has_four_bits"].toBool()) {
      weight.scales_of_scales = saved["scales_of_scales"].toTensor();
      weight.map = saved["map"].toTensor();
    }
    auto sizes = gradients[0].sizes().vec();
    sizes.back() = weight.columns;
    auto d_out = rows_of(gradients[0]);
    Tensor d_in;
    if (ctx->needs_input_grad(0)) d_in = d_out.mm(weight.wide(at::ScalarType(saved["type"].toInt()))).view(sizes);
    return {d_in, bias_gradient(bias, d_out), Tensor()};
  }
};

// --- AdamW with moments of 8 bits -------------------------------------------------------------------------------------------------

// A parameter with its gradient, the codes of its moments and the scales of their blocks.
struct NarrowMoments {
  Tensor p, g, m, v, m_scales, v_scales;
};

constexpr int64_t MOMENT_BLOCK = 256;

// The code of the nearest of 256 numbers: how many of the middles between them are below x.
inline uint8_t nearest(const float* middles, float x) {
  return uint8_t(std::lower_bound(middles, middles + 255, x) - middles);
}

inline void store_weight(float& to, float x, uint32_t) { to = x; }
inline void store_weight(at::BFloat16& to, float x, uint32_t noise) { to = rounded(x, noise); }

template <typename T>
void update_8bit(const NarrowMoments& of, const float* maps, float scale, const AdamW& s) {
  float middles[2][255];
  for (int i = 0; i < 255; i++) {
    for (int map : {0, 1}) middles[map][i] = (maps[map * 256 + i] + maps[map * 256 + i + 1]) * 0.5f;
  }
  auto contiguous = of.g.contiguous();
  auto *p = of.p.data_ptr<T>(), *g = contiguous.data_ptr<T>();
  auto *m = of.m.data_ptr<uint8_t>(), *v = of.v.data_ptr<uint8_t>();
  auto *m_scales = of.m_scales.data_ptr<float>(), *v_scales = of.v_scales.data_ptr<float>();
  int64_t n = of.p.numel();
  auto inverse = [](float most) { return 1 / std::max(most, 1e-38f); };
  at::parallel_for(0, of.m_scales.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++) {
      float averages[MOMENT_BLOCK], squares[MOMENT_BLOCK], most_m = 0, most_v = 0;
      int64_t first = block * MOMENT_BLOCK, count = std::min(MOMENT_BLOCK, n - first);
      for (int64_t k = 0; k < count; k++) {
        int64_t i = first + k;
        float grad = float(g[i]) * scale;
        float average = averages[k] = maps[m[i]] * m_scales[block] * s.beta1 + grad * s.new1;
        float square = squares[k] = maps[256 + v[i]] * v_scales[block] * s.beta2 + grad * grad * s.new2;
        float w = float(p[i]) * s.fade - s.size * average / (std::sqrt(square) / s.root2 + s.eps);
        store_weight(p[i], w, mixed(bits(grad) * 0x9E3779B1u ^ bits(average) * 0x85EBCA77u ^ bits(w) * 0xC2B2AE3Du ^
                                    (s.seed + uint32_t(i)) * 0x27D4EB2Fu));
        most_m = std::max(most_m, std::abs(average));
        most_v = std::max(most_v, square);
      }
      for (int64_t k = 0; k < count; k++) {
        m[first + k] = nearest(middles[0], averages[k] * inverse(most_m));
        v[first + k] = nearest(middles[1], squares[k] * inverse(most_v));
      }
      m_scales[block] = most_m;
      v_scales[block] = most_v;
    }
  });
}

// One parameter for the kernel, as in quantized.cu.
struct NarrowParameter {
  void *p, *g, *m, *v, *m_scales, *v_scales;
  uint64_t n, first;
};

inline void update_8bit_on_card(const std::vector<NarrowMoments>& all, const Tensor& maps, const Tensor& scale, const AdamW& s) {
  auto kernel = kernels::adamw_8bit(cuda::type_of(all[0].p.scalar_type()));
  const uint64_t numbers = kernel.threads / 32 * MOMENT_BLOCK;
  auto table = at::empty({int64_t(all.size() * sizeof(NarrowParameter))}, at::kByte);
  auto* rows = reinterpret_cast<NarrowParameter*>(table.data_ptr());
  uint64_t blocks = 0;
  std::vector<Tensor> kept;
  for (size_t i = 0; i < all.size(); i++) {
    auto& of = all[i];
    TORCH_CHECK(of.p.is_contiguous(), "AdamW: a parameter is not one piece of memory");
    kept.push_back(of.g.contiguous());
    uint64_t n = of.p.numel();
    rows[i] = {of.p.data_ptr(), kept[i].data_ptr(), of.m.data_ptr(), of.v.data_ptr(), of.m_scales.data_ptr(), of.v_scales.data_ptr(), n, blocks};
    blocks += (n + numbers - 1) / numbers;
  }
  auto there = to_card(table, all[0].p.device());
  const void *pt = there.data_ptr(), *pm = maps.data_ptr(), *ps = scale.data_ptr();
  cuda::launch(all[0].p.device(), kernel, blocks, pt, uint32_t(all.size()), pm, ps, s);
}
