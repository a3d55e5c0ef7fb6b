// Functions with gradients of their own, so that less is kept for the backward pass and less is moved.

#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cuda.hpp"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<Tensor>;

// What is dropped: a function of seed and place, so that no mask is kept. As in kernels.cu.
struct Dropout {
  uint64_t seed;
  uint32_t threshold;
  float kept;

  static Dropout of(double share, uint64_t seed) {
    auto threshold = uint32_t(std::lround(share * 65536));
    return {seed, threshold, threshold ? float(65536.0 / (65536.0 - threshold)) : 1.0f};
  }
};

// --- residual + dropped in ------------------------------------------------------------------------------------------------

inline Tensor drop_add(const Tensor& in, const Tensor& residual, at::ScalarType out_type, const Dropout& dropout) {
  auto x = cuda::fitting(in);
  auto r = residual.defined() ? cuda::fitting(residual) : Tensor();
  auto out = at::empty(x.sizes(), x.options().dtype(out_type));
  auto type = [](at::ScalarType t) { return std::string(cuda::type_name(t)); };
  auto name = "drop_add<" + type(x.scalar_type()) + ", " + type(out_type) + ", " + type(out_type) + ">";
  const void *px = x.data_ptr(), *pr = r.defined() ? r.data_ptr() : nullptr;
  cuda::launch(name, cuda::blocks_for(x.numel(), 256), 256, px, pr, out.data_ptr(), uint64_t(x.numel()), dropout);
  return out;
}

struct DropAdd : torch::autograd::Function<DropAdd> {
  static Tensor forward(AutogradContext* ctx, Tensor in, Optional added, double share, int64_t seed) {
    auto residual = added.value_or(Tensor());
    ctx->saved_data["share"] = share;
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["type"] = int64_t(in.scalar_type());
    ctx->saved_data["adds"] = residual.defined();
    auto type = residual.defined() ? residual.scalar_type() : in.scalar_type();
    return drop_add(in, residual, type, Dropout::of(share, uint64_t(seed)));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto dropout = Dropout::of(ctx->saved_data["share"].toDouble(), uint64_t(ctx->saved_data["seed"].toInt()));
    auto type = at::ScalarType(ctx->saved_data["type"].toInt());
    auto d_in = dropout.threshold == 0 && gradients[0].scalar_type() == type
                    ? gradients[0]
                    : drop_add(gradients[0], Tensor(), type, dropout);
    return {d_in, ctx->saved_data["adds"].toBool() ? gradients[0] : Tensor(), Tensor(), Tensor()};
  }
};

// --- norm(residual + dropped in) ------------------------------------------------------------------------------------------

inline bool add_norm_fits(const Tensor& in, const Tensor& weight) {
  auto width = in.size(-1);
  auto type = in.scalar_type();
  return in.is_cuda() && width % 8 == 0 && width <= 4096 &&
         (type == weight.scalar_type() || weight.scalar_type() == at::kFloat);
}

struct AddNorm : torch::autograd::Function<AddNorm> {
  static std::string name(const char* kernel, const Tensor& in, const Tensor& weight) {
    return std::string(kernel) + "<" + cuda::type_name(in.scalar_type()) + ", " + cuda::type_name(weight.scalar_type()) + ">";
  }

  static Tensor forward(AutogradContext* ctx, Tensor in, Tensor residual, Tensor weight, Tensor bias, double eps,
                        double share, int64_t seed) {
    in = cuda::fitting(in);
    residual = cuda::fitting(residual);
    uint32_t width = in.size(-1);
    uint64_t rows = in.numel() / width;
    auto sum = at::empty_like(in), out = at::empty_like(in);
    auto mean = at::empty({int64_t(rows)}, in.options().dtype(at::kFloat)), inverse = at::empty_like(mean);
    const void *pi = in.data_ptr(), *pr = residual.data_ptr(), *pw = weight.data_ptr(), *pb = bias.data_ptr();
    cuda::launch(name("add_norm", in, weight), std::min<int64_t>(rows, 65536), 128, pi, pr, pw, pb, sum.data_ptr(),
                 out.data_ptr(), mean.data_ptr(), inverse.data_ptr(), rows, width, float(eps),
                 Dropout::of(share, uint64_t(seed)));
    ctx->save_for_backward({sum, mean, inverse, weight});
    ctx->saved_data["share"] = share;
    ctx->saved_data["seed"] = seed;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &sum = saved[0], &mean = saved[1], &inverse = saved[2], &weight = saved[3];
    auto dropout = Dropout::of(ctx->saved_data["share"].toDouble(), uint64_t(ctx->saved_data["seed"].toInt()));
    auto d_out = cuda::fitting(gradients[0]);
    uint32_t width = sum.size(-1);
    uint64_t rows = sum.numel() / width;
    int64_t blocks = std::min<int64_t>(rows, 528);
    auto d_sum = at::empty_like(sum), d_in = dropout.threshold ? at::empty_like(sum) : d_sum;
    auto d_weight = at::empty({blocks, int64_t(width)}, mean.options()), d_bias = at::empty_like(d_weight);
    const void *po = d_out.data_ptr(), *ps = sum.data_ptr(), *pm = mean.data_ptr(), *pv = inverse.data_ptr();
    const void* pw = weight.data_ptr();
    cuda::launch(name("add_norm_backward", sum, weight), blocks, 128, po, ps, pm, pv, pw, d_sum.data_ptr(),
                 d_in.data_ptr(), d_weight.data_ptr(), d_bias.data_ptr(), rows, width, dropout);
    auto narrow = [&](const Tensor& t) { return t.sum(0).to(weight.scalar_type()); };
    return {d_in, d_sum, narrow(d_weight), narrow(d_bias), Tensor(), Tensor(), Tensor()};
  }
};

// --- x w^T + b where the weights are wider than what is computed in ----------------------------------------------------
// The narrow copy of the weights is made anew for the backward pass instead of being kept.

inline Tensor rows_of(const Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, Tensor in, Tensor weight, Optional added) {
    auto bias = added.value_or(Tensor());
    ctx->save_for_backward({in, weight, bias});
    return at::linear(in, weight.to(in.scalar_type()), bias.defined() ? bias.to(in.scalar_type()) : bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &in = saved[0], &weight = saved[1], &bias = saved[2];
    auto d_out = rows_of(gradients[0]);
    auto d_in = d_out.mm(weight.to(in.scalar_type())).view(in.sizes());
    auto d_weight = d_out.t().mm(rows_of(in)).to(weight.scalar_type());
    auto d_bias = bias.defined() ? d_out.sum(0, false, at::kFloat).to(bias.scalar_type()) : Tensor();
    return {d_in, d_weight, d_bias};
  }
};

// --- w2 (dropped act(w1 x + b1)) + b2, or with a gate w2 (dropped act(w1 x) * (wg x)) -----------------------------------
// Of what lies between the two products only what went into the activation is kept.

enum Kind : int64_t { kRelu, kGelu, kGeluTanh, kQuickGelu, kSilu, kTanh };

struct Activation {
  std::string name(const char* kernel, const Tensor& a) const {
    static const char* kinds[] = {"RELU", "GELU", "GELU_TANH", "QUICK_GELU", "SILU", "TANH"};
    return std::string(kernel) + "<" + cuda::type_name(a.scalar_type()) + ", " + kinds[kind] + ">";
  }

  Tensor forward(const Tensor& a, const Tensor& gate, const Tensor& bias) const {
    auto out = at::empty_like(a);
    const void *pa = a.data_ptr(), *pg = pointer(gate), *pb = pointer(bias);
    cuda::launch(name("activate", a), cuda::blocks_for(a.numel(), 256), 256, pa, pg, pb, uint32_t(a.size(-1)),
                 out.data_ptr(), uint64_t(a.numel()), dropout);
    return out;
  }

  // Writes the gradient of `a` over that of the output.
  Tensor backward(const Tensor& a, const Tensor& gate, const Tensor& bias, const Tensor& d_out) const {
    auto d_gate = gate.defined() ? at::empty_like(gate) : Tensor();
    const void *pa = a.data_ptr(), *pg = pointer(gate), *pb = pointer(bias), *pd = d_out.data_ptr();
    void* to = d_gate.defined() ? d_gate.data_ptr() : nullptr;
    cuda::launch(name("activate_backward", a), cuda::blocks_for(a.numel(), 256), 256, pa, pg, pb, uint32_t(a.size(-1)), pd,
                 d_out.data_ptr(), to, uint64_t(a.numel()), dropout);
    return d_gate;
  }

  static const void* pointer(const Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

  int64_t kind;
  Dropout dropout;
};

struct FeedForward : torch::autograd::Function<FeedForward> {
  static Tensor forward(AutogradContext* ctx, Tensor in, Tensor w1, Optional bias1, Optional gated, Tensor w2, Optional bias2,
                        int64_t kind, double share, int64_t seed) {
    auto b1 = bias1.value_or(Tensor()), gate = gated.value_or(Tensor()), b2 = bias2.value_or(Tensor());
    auto type = in.scalar_type();
    auto narrow = [&](const Tensor& t) { return t.defined() ? t.to(type) : t; };
    auto x = rows_of(in);
    auto a = x.mm(narrow(w1).t());
    auto g = gate.defined() ? x.mm(narrow(gate).t()) : Tensor();
    auto hidden = Activation{kind, Dropout::of(share, uint64_t(seed))}.forward(a, g, narrow(b1));
    auto out = at::linear(hidden, narrow(w2), narrow(b2));
    ctx->save_for_backward({in, w1, b1, gate, w2, b2, a, g});
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["share"] = share;
    ctx->saved_data["seed"] = seed;
    auto sizes = in.sizes().vec();
    sizes.back() = w2.size(0);
    return out.view(sizes);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &in = saved[0], &w1 = saved[1], &b1 = saved[2], &gate = saved[3], &w2 = saved[4], &b2 = saved[5];
    auto &a = saved[6], &g = saved[7];
    auto type = in.scalar_type();
    auto narrow = [&](const Tensor& t) { return t.defined() ? t.to(type) : t; };
    Activation activation{ctx->saved_data["kind"].toInt(),
                          Dropout::of(ctx->saved_data["share"].toDouble(), uint64_t(ctx->saved_data["seed"].toInt()))};
    auto x = rows_of(in), d_out = rows_of(gradients[0]);
    auto bias = narrow(b1);
    auto d_w2 = d_out.t().mm(activation.forward(a, g, bias)).to(w2.scalar_type());
    auto d_b2 = b2.defined() ? d_out.sum(0, false, at::kFloat).to(b2.scalar_type()) : Tensor();
    auto d_a = d_out.mm(narrow(w2));
    auto d_g = activation.backward(a, g, bias, d_a);
    auto d_w1 = d_a.t().mm(x).to(w1.scalar_type());
    auto d_b1 = b1.defined() ? d_a.sum(0, false, at::kFloat).to(b1.scalar_type()) : Tensor();
    auto d_in = d_a.mm(narrow(w1));
    Tensor d_gate;
    if (gate.defined()) {
      d_gate = d_g.t().mm(x).to(gate.scalar_type());
      d_in.addmm_(d_g, narrow(gate));
    }
    return {d_in.view(in.sizes()), d_w1, d_b1, d_gate, d_w2, d_b2, Tensor(), Tensor(), Tensor()};
  }
};

// --- AdamW in bf16 with stochastic rounding -------------------------------------------------------------------------------
// The noise is a hash of the values at hand, their place and the step, so that it needs no generator and a resumed run draws the same.
// Formula of torch.optim.AdamW; all arithmetic in fp32, only what is stored is rounded. As in kernels.cu.

struct AdamW {
  float lr, beta1, beta2, eps, decay, root2, size;
  uint32_t seed;
};

inline uint32_t bits(float value) {
  uint32_t out;
  memcpy(&out, &value, 4);
  return out;
}

inline at::BFloat16 rounded(float value, uint32_t noise) {
  return at::BFloat16(uint16_t((bits(value) + (noise & 0xFFFFu)) >> 16), at::BFloat16::from_bits());
}

inline uint32_t mixed(uint32_t h) {
  h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
  return h;
}

inline void adamw_bf16_cpu(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v, float scale, const AdamW& s) {
  auto *pp = p.data_ptr<at::BFloat16>(), *pm = m.data_ptr<at::BFloat16>(), *pv = v.data_ptr<at::BFloat16>();
  auto contiguous = g.contiguous();
  auto* pg = contiguous.data_ptr<at::BFloat16>();
  at::parallel_for(0, p.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      float grad = float(pg[i]) * scale;
      float average = float(pm[i]) + (grad - float(pm[i])) * (1 - s.beta1);
      float square = float(pv[i]) * s.beta2 + grad * grad * (1 - s.beta2);
      float w = float(pp[i]) * (1 - s.lr * s.decay) - s.size * average / (std::sqrt(square) / s.root2 + s.eps);
      uint32_t h = mixed(bits(grad) * 0x9E3779B1u ^ bits(average) * 0x85EBCA77u ^ bits(w) * 0xC2B2AE3Du ^
                         (s.seed + uint32_t(i)) * 0x27D4EB2Fu);
      pp[i] = rounded(w, h);
      h *= 0x9E3779B1u; h ^= h >> 16;
      pm[i] = rounded(average, h);
      h *= 0x85EBCA77u; h ^= h >> 16;
      pv[i] = rounded(square, h);
    }
  });
}

// One parameter for the kernel, as in kernels.cu.
struct AdamWParameter {
  void *p, *g, *m, *v;
  uint64_t n, first;
};

inline void adamw_bf16_cuda(const std::vector<Tensor>& p, const std::vector<Tensor>& g, const std::vector<Tensor>& m,
                            const std::vector<Tensor>& v, const Tensor& scale, const AdamW& s) {
  const uint64_t chunk = 16384;
  auto table = at::empty({int64_t(p.size() * sizeof(AdamWParameter))}, at::kByte);
  auto* rows = reinterpret_cast<AdamWParameter*>(table.data_ptr());
  uint64_t blocks = 0;
  std::vector<Tensor> kept;
  for (size_t i = 0; i < p.size(); i++) {
    TORCH_CHECK(cuda::fits(p[i]) && cuda::fits(m[i]) && cuda::fits(v[i]), "AdamW: a parameter is not one piece of memory");
    kept.push_back(cuda::fitting(g[i]));
    uint64_t n = p[i].numel();
    rows[i] = {p[i].data_ptr(), kept[i].data_ptr(), m[i].data_ptr(), v[i].data_ptr(), n, blocks};
    blocks += (n + chunk - 1) / chunk;
  }
  auto there = table.to(p[0].device());
  const void *pt = there.data_ptr(), *ps = scale.data_ptr();
  cuda::launch("adamw_bf16", blocks, 256, pt, uint32_t(p.size()), chunk, ps, s);
}

// --- Stochastic rounding to bf16 --------------------------------------------------------------------------------------
// As above, with a hash of the value, its place and the seed.

inline void round_to_bf16(const Tensor& into, const Tensor& wide, uint32_t seed) {
  TORCH_CHECK(into.is_contiguous() && into.sizes() == wide.sizes(), "rounding needs two tensors of one shape");
  auto from = wide.contiguous();
  if (into.is_cuda()) {
    const void* pf = from.data_ptr();
    cuda::launch("round_to_bf16", cuda::blocks_for(from.numel(), 256), 256, pf, into.data_ptr(), uint64_t(from.numel()), seed);
    return;
  }
  auto* pi = into.data_ptr<at::BFloat16>();
  auto* pw = from.data_ptr<float>();
  at::parallel_for(0, into.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) pi[i] = rounded(pw[i], mixed(bits(pw[i]) * 0xC2B2AE3Du ^ (seed + uint32_t(i)) * 0x27D4EB2Fu));
  });
}
