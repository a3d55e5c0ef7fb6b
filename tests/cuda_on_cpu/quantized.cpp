// Compares the kernels of quantized.cu, run on a CPU, with plain implementations: made wide to the bit, updates in fp64.

#include "cuda.hpp"

#include "../../src/pipe-trainer/torch/kernels.cu"
#include "../../src/pipe-trainer/torch/quantized_numbers.hpp"
#include "../../src/pipe-trainer/torch/quantized.cu"

#include <string>

#include "ptx.hpp"

namespace {

int wrong = 0;

template <typename T> struct Array {
  cpu::Guarded memory;
  explicit Array(size_t count) : memory(count * sizeof(T)) {}
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
  T& operator[](size_t i) const { return data()[i]; }
};

void expect(bool holds, const std::string& what) {
  if (holds) return;
  printf("FAILED: %s\n", what.c_str());
  wrong++;
}

// As likely at the ends as in the middle, ascending.
void fill_map(float* map, bool is_signed) {
  for (int i = 0; i < 256; i++) {
    float x = is_signed ? (float(i) - 127) / 128 : float(i) / 255;
    map[i] = x * x * (x < 0 ? -1 : 1);
  }
}

// --- Made wide ------------------------------------------------------------------------------------------------------------------

template <typename T> bool same(T got, float want) {
  T rounded;
  store(rounded, want);
  return memcmp(&got, &rounded, sizeof(T)) == 0;
}

template <typename T> void four_bits(u64 n, const std::string& name) {
  std::mt19937 generator{unsigned(n)};
  u64 blocks = (n + 63) / 64, outer = (blocks + 255) / 256;
  Array<unsigned char> packed((n + 1) / 2), codes(blocks);
  Array<float> scales(outer), map(256);
  Array<T> out(n);
  fill_map(map.data(), true);
  for (u64 i = 0; i < (n + 1) / 2; i++) packed[i] = (unsigned char)generator();
  for (u64 i = 0; i < blocks; i++) codes[i] = (unsigned char)generator();
  for (u64 i = 0; i < outer; i++) scales[i] = 0.01f + float(generator() % 1000) / 999;
  float offset = 0.3712345f;
  for (unsigned grid : {1u, 3u}) {
    cpu::launch({grid, 1, 1}, 64, 0, grid, [&] {
      dequantize_nf4<T>(packed.data(), codes.data(), scales.data(), map.data(), offset, out.data(), n);
    });
    u64 differ = 0;
    for (u64 i = 0; i < n; i++) {
      volatile float scale = map[codes[i / 64]] * scales[i / 64 / 256];
      scale = scale + offset;
      differ += !same(out[i], NF4[i % 2 ? packed[i / 2] & 15 : packed[i / 2] >> 4] * scale);
    }
    expect(differ == 0 && out.memory.intact(), name + ": " + std::to_string(differ) + " numbers differ");
  }
}

template <typename T> void eight_bits(u32 rows, u32 columns, const std::string& name) {
  std::mt19937 generator(rows);
  Array<signed char> codes(rows * columns);
  Array<float> scales(rows);
  Array<T> out(rows * columns);
  for (u32 i = 0; i < rows * columns; i++) codes[i] = (signed char)generator();
  for (u32 i = 0; i < rows; i++) scales[i] = 0.01f + float(generator() % 1000) / 999;
  cpu::launch({2, 3, 1}, 32, 0, 0, [&] { dequantize_int8<T>(codes.data(), scales.data(), out.data(), rows, columns); });
  u64 differ = 0;
  for (u32 i = 0; i < rows * columns; i++) {
    volatile float product = float(codes[i]) * scales[i / columns];
    differ += !same(out[i], product * ONE_BY_127);
  }
  expect(differ == 0 && out.memory.intact(), name + ": " + std::to_string(differ) + " numbers differ");
}

// The sum of the rounded numbers in fp64.
template <typename T, int ROWS> void product(u32 rows, u32 outputs, u32 columns, bool has_bias, const std::string& name) {
  std::mt19937 generator(rows + columns);
  std::normal_distribution<float> normal(0, 1);
  u64 n = u64(outputs) * columns;
  Array<unsigned char> packed(n / 2), codes(n / 64);
  Array<float> scales((n / 64 + 255) / 256), map(256);
  Array<T> x(rows * columns), bias(outputs), out(rows * outputs);
  fill_map(map.data(), true);
  for (u64 i = 0; i < n / 2; i++) packed[i] = (unsigned char)generator();
  for (u64 i = 0; i < n / 64; i++) codes[i] = (unsigned char)generator();
  for (u64 i = 0; i < (n / 64 + 255) / 256; i++) scales[i] = 0.01f + float(generator() % 1000) / 999;
  for (u32 i = 0; i < rows * columns; i++) store(x[i], normal(generator));
  for (u32 i = 0; i < outputs; i++) store(bias[i], normal(generator));
  cpu::launch({(outputs + 1) / 2, 1, 1}, 64, 0, 1, [&] {
    multiply_nf4<T, ROWS>(packed.data(), codes.data(), scales.data(), map.data(), 0.37f, x.data(), has_bias ? bias.data() : nullptr, out.data(), rows,
                          outputs, columns);
  });
  for (u32 m = 0; m < rows; m++) {
    for (u32 at = 0; at < outputs; at++) {
      double want = has_bias ? wide(bias[at]) : 0, size = std::abs(want);
      for (u32 k = 0; k < columns; k++) {
        u64 i = u64(at) * columns + k;
        volatile float scale = map[codes[i / 64]] * scales[i / 64 / 256];
        scale = scale + 0.37f;
        T narrow;
        store(narrow, NF4[i % 2 ? packed[i / 2] & 15 : packed[i / 2] >> 4] * scale);
        want += double(wide(narrow)) * wide(x[m * columns + k]);
        size += std::abs(double(wide(narrow)) * wide(x[m * columns + k]));
      }
      double allowed = 1e-6 * size + (sizeof(T) == 2 ? std::abs(want) / 128 : 0);
      if (std::abs(wide(out[m * outputs + at]) - want) > allowed) return expect(false, name + " is another one");
    }
  }
  expect(out.memory.intact(), name + " wrote beside its memory");
}

// --- AdamW with moments of 8 bits -------------------------------------------------------------------------------------------------

// One parameter, with what it begins with.
template <typename T> struct Moments {
  u64 n;
  Array<T> p, g;
  Array<unsigned char> m, v;
  Array<float> m_scales, v_scales;
  std::vector<double> start;

  Moments(u64 n, unsigned seed)
      : n(n), p(n), g(n), m(n), v(n), m_scales((n + 255) / 256), v_scales((n + 255) / 256), start(n) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, 1);
    for (u64 i = 0; i < n; i++) {
      store(p[i], normal(generator));
      store(g[i], normal(generator));
      start[i] = wide(p[i]);
      m[i] = (unsigned char)generator();
      v[i] = (unsigned char)generator();
    }
    for (u64 i = 0; i < (n + 255) / 256; i++) m_scales[i] = 0.1f + float(i), v_scales[i] = 0.2f + float(i);
  }
};

// The number of codes that are not the nearest to what they stand for, but for those halfway.
u64 far_codes(const float* map, const unsigned char* codes, const double* values, double scale, u64 count) {
  u64 far = 0;
  for (u64 i = 0; i < count; i++) {
    double nearest = 1e9, got = std::abs(map[codes[i]] - values[i] / scale);
    for (int code = 0; code < 256; code++) nearest = std::min(nearest, std::abs(map[code] - values[i] / scale));
    far += got > nearest + 1e-6;
  }
  return far;
}

template <typename T> void updates(const std::string& name) {
  const unsigned THREADS = 64;
  const AdamW s{0.9f, 0.999f, 0.1f, 0.001f, 1e-8f, 0.999f, 0.5f, 0.02f, 7};
  Array<float> maps(512), scale(1);
  fill_map(maps.data(), true);
  fill_map(maps.data() + 256, false);
  scale[0] = 100;  // so that what is new outweighs what was there
  std::vector<Moments<T>> all;
  all.emplace_back(1000, 1);
  all.emplace_back(512, 2);
  all.emplace_back(3, 3);
  Array<NarrowParameter> table(all.size());
  u64 blocks = 0;
  std::vector<std::vector<double>> averages, squares;
  for (size_t k = 0; k < all.size(); k++) {
    auto& of = all[k];
    table[k] = {of.p.data(), of.g.data(), of.m.data(), of.v.data(), of.m_scales.data(), of.v_scales.data(), of.n, blocks};
    blocks += (of.n + THREADS / 32 * 256 - 1) / (THREADS / 32 * 256);
    averages.emplace_back(of.n);
    squares.emplace_back(of.n);
    for (u64 i = 0; i < of.n; i++) {
      double grad = wide(of.g[i]) * 100;
      averages[k][i] = double(maps[of.m[i]]) * of.m_scales[i / 256] * s.beta1 + grad * s.new1;
      squares[k][i] = double(maps[256 + of.v[i]]) * of.v_scales[i / 256] * s.beta2 + grad * grad * s.new2;
    }
  }
  cpu::launch({unsigned(blocks), 1, 1}, THREADS, 0, 1, [&] { adamw_8bit<T>(table.data(), u32(all.size()), maps.data(), scale.data(), s); });
  for (size_t k = 0; k < all.size(); k++) {
    auto& of = all[k];
    auto which = name + ", parameter " + std::to_string(k);
    for (u64 i = 0; i < of.n; i++) {
      double want = of.start[i] * s.fade - s.size * averages[k][i] / (std::sqrt(squares[k][i]) / s.root2 + s.eps);
      double allowed = sizeof(T) == 2 ? std::abs(want) / 128 : 1e-5;
      if (std::abs(wide(of.p[i]) - want) > allowed + 1e-6) return expect(false, which + " is updated otherwise");
    }
    for (u64 first = 0; first < of.n; first += 256) {
      u64 count = std::min<u64>(256, of.n - first);
      double most_m = 0, most_v = 0;
      for (u64 i = first; i < first + count; i++) {
        most_m = std::max(most_m, std::abs(averages[k][i]));
        most_v = std::max(most_v, squares[k][i]);
      }
      expect(std::abs(of.m_scales[first / 256] - most_m) < 1e-5 * most_m && std::abs(of.v_scales[first / 256] - most_v) < 1e-5 * most_v,
             which + " has other scales");
      expect(far_codes(maps.data(), of.m.data() + first, averages[k].data() + first, most_m, count) == 0, which + " has other averages");
      expect(far_codes(maps.data() + 256, of.v.data() + first, squares[k].data() + first, most_v, count) == 0, which + " has other squares");
    }
    expect(of.p.memory.intact() && of.m.memory.intact() && of.v.memory.intact() && of.m_scales.memory.intact(), which + " wrote beside its memory");
  }
}

}  // namespace

int main() {
  for (u64 n : {8u, 64u, 65u, 210u, 2048u, 40001u}) {
    four_bits<BF16>(n, "bf16 of 4 bits, " + std::to_string(n));
    four_bits<F16>(n, "f16 of 4 bits, " + std::to_string(n));
    four_bits<float>(n, "fp32 of 4 bits, " + std::to_string(n));
  }
  for (u32 columns : {8u, 13u, 1040u}) {
    eight_bits<BF16>(7, columns, "bf16 of 8 bits, " + std::to_string(columns));
    eight_bits<float>(2, columns, "fp32 of 8 bits, " + std::to_string(columns));
  }
  product<BF16, 1>(1, 5, 64, false, "product of a row");
  product<BF16, 2>(2, 7, 1088, true, "product of two rows");
  product<F16, 4>(3, 4, 2112, true, "product of three rows");
  product<float, 4>(4, 3, 192, false, "product of four rows");
  updates<float>("AdamW of 8 bits in fp32");
  updates<BF16>("AdamW of 8 bits in bf16");
  return wrong ? 1 : 0;
}
