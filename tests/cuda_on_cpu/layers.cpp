// Compares the kernels of kernels.cu for dropout, activations and norms, run on a CPU, with plain implementations in fp64.

#include "cuda.hpp"

#include "../../src/pipe-trainer/torch/kernels.cu"

#include <string>

#include "ptx.hpp"

namespace {

int wrong = 0;

// --- Arrays that the kernels read and write -----------------------------------------------------------------------------------

template <typename T> struct Array {
  cpu::Guarded memory;
  explicit Array(size_t count) : memory(count * sizeof(T)) {}
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
  size_t size() const { return memory.size() / sizeof(T); }
  double at(size_t i) const { if constexpr (std::is_integral_v<T>) return double(data()[i]); else return wide(data()[i]); }

  static Array random(size_t count, unsigned seed, double spread = 1) {
    Array made(count);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, float(spread));
    for (size_t i = 0; i < count; i++) store(made.data()[i], normal(generator));
    return made;
  }
  Array copy() const {
    Array made(size());
    memcpy(made.data(), data(), memory.size());
    return made;
  }
};

template <typename T> double precision() { return std::is_same_v<T, BF16> ? 1.0 / 256 : std::is_same_v<T, F16> ? 1.0 / 2048 : 1e-6; }

// `want` has the numbers in fp64; `slack` is what may be lost before rounding.
template <typename T>
void compare(const std::string& what, const Array<T>& got, const std::vector<double>& want, double slack, double precision_of_sums = 0) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); i++) {
    double allowed = precision<T>() * std::abs(want[i]) + slack + precision_of_sums, error = std::abs(got.at(i) - want[i]);
    worst = std::max(worst, error == error ? error / allowed : 1e9);
  }
  if (worst > 1 || !got.memory.intact()) {
    printf("FAILED: %s: %.2f times the error that is allowed\n", what.c_str(), worst);
    wrong++;
  }
}

// The factor of one element, by docs/dev/dropout.md.
double factor_of(const Dropout& d, u32 row, u32 feature) {
  if (!d.threshold) return 1;
  u32 r[4];
  philox(d.key, feature / 8, row % d.positions, row / d.positions + d.first_sample, 0, r);
  return ((r[feature % 8 / 2] >> (16 * (feature % 2))) & 0xFFFF) < d.threshold ? 0 : d.kept;
}

Dropout dropout(bool drops, u32 positions, u32 features) {
  u32 threshold = drops ? 6554 : 0;
  return {0x0123456789ABCDEFull, threshold, drops ? float(65536.0 / (65536 - threshold)) : 1.0f, 5, positions, features, nullptr, nullptr};
}

// --- Activations ----------------------------------------------------------------------------------------------------------------

void reference(int kind, double x, double& y, double& slope) {
  double s;
  switch (kind) {
    case RELU: y = x > 0 ? x : 0; slope = x > 0; break;
    case GELU:
      s = 0.5 * std::erfc(-x / std::sqrt(2.0));
      y = x * s;
      slope = s + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
      break;
    case GELU_TANH: {
      double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
      y = 0.5 * x * (1 + t);
      slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
      break;
    }
    case QUICK_GELU: s = 1 / (1 + std::exp(-1.702 * x)); y = x * s; slope = s + 1.702 * x * s * (1 - s); break;
    case SILU: s = 1 / (1 + std::exp(-x)); y = x * s; slope = s + x * s * (1 - s); break;
    default: y = std::tanh(x); slope = 1 - y * y;
  }
}

template <typename T, typename B, int kind> void activations(u32 rows, u32 width, bool has_bias, bool has_gate, bool drops, const std::string& name) {
  auto d = dropout(drops, 3, width);
  // Wide enough for both ends of every activation.
  auto a = Array<T>::random(rows * width, 1, 3), gate = Array<T>::random(rows * width, 2), d_out = Array<T>::random(rows * width, 3);
  auto bias = Array<B>::random(width, 4);
  std::vector<double> value(rows * width), d_a(rows * width), d_gate(rows * width), d_bias(width), largest(width);
  for (u32 row = 0; row < rows; row++) {
    for (u32 column = 0; column < width; column++) {
      u32 i = row * width + column;
      double y, slope, by = has_gate ? gate.at(i) : 1, factor = factor_of(d, row, column), grad = d_out.at(i) * factor;
      reference(kind, float(a.at(i)) + (has_bias ? float(bias.at(column)) : 0.0f), y, slope);
      value[i] = y * by * factor;
      d_a[i] = grad * by * slope;
      d_gate[i] = grad * y;
      d_bias[column] += d_a[i];
    }
  }
  const u32 down = 3, across = (width / 8 + 127) / 128;
  auto b = has_gate ? gate.data() : nullptr;
  auto with_bias = has_bias ? bias.data() : nullptr;
  double slack = 1e-5;
  Array<T> out(rows * width);
  cpu::launch({across, down, 1}, 128, 0, 0, [&] { activate<T, B, kind>(a.data(), b, with_bias, out.data(), rows, width, d); });
  compare(name + ", forward", out, value, slack);
  auto forward = out.copy();
  Array<float> sums(down * width), total(width);
  auto to = has_bias ? sums.data() : nullptr;
  cpu::launch({across, down, 1}, 128, 0, 7, [&] { activate_backward<T, B, kind>(a.data(), b, with_bias, d_out.data(), to, rows, width, d); });
  if (memcmp(a.data(), forward.data(), a.memory.size()) != 0) {
    printf("FAILED: %s: the backward pass computes another activation\n", name.c_str());
    wrong++;
  }
  compare(name + ", gradient", d_out, d_a, slack);
  if (has_gate) compare(name + ", gradient of the gate", gate, d_gate, slack);
  if (has_bias) {
    for (u32 column = 0; column < width; column++) {
      float sum = 0;
      for (u32 y = 0; y < down; y++) sum += sums.data()[y * width + column];
      total.data()[column] = sum;
    }
    compare(name + ", gradient of the bias", total, d_bias, 1e-4);
  }
}

template <typename T, typename B, int kind> void activations_of(const std::string& types) {
  for (int options = 0; options < 8; options++) {
    bool has_bias = options & 1, has_gate = options & 2, drops = options & 4;
    auto name = types + " activation " + std::to_string(kind) + (has_bias ? " bias" : "") + (has_gate ? " gate" : "") + (drops ? " dropout" : "");
    activations<T, B, kind>(11, 40, has_bias, has_gate, drops, name);
  }
  activations<T, B, kind>(7, 1096, true, false, true, types + " activation " + std::to_string(kind) + " of wide rows");
}

template <typename T, typename B> void all_activations(const std::string& types) {
  activations_of<T, B, RELU>(types);
  activations_of<T, B, GELU>(types);
  activations_of<T, B, GELU_TANH>(types);
  activations_of<T, B, QUICK_GELU>(types);
  activations_of<T, B, SILU>(types);
  activations_of<T, B, TANH>(types);
}

// --- Norms ------------------------------------------------------------------------------------------------------------------------

template <typename T, typename S, typename W, int MOST> void norms(u32 rows, u32 width, bool adds, bool has_bias, bool drops, const std::string& name) {
  auto d = dropout(drops, 4, width);
  auto in = Array<T>::random(rows * width, 1), d_out = Array<T>::random(rows * width, 2);
  auto residual = Array<S>::random(rows * width, 3, 2), d_more = Array<S>::random(rows * width, 4);
  auto in_bias = Array<W>::random(width, 5), weight = Array<W>::random(width, 6), bias = Array<W>::random(width, 7);
  const double eps = 1e-5;
  Array<S> sum(rows * width), d_sum(rows * width);
  Array<T> hat(rows * width), out(rows * width), d_in(rows * width);
  Array<float> inverse(rows);
  auto* x = adds ? in.data() : nullptr;
  auto* b = adds && has_bias ? in_bias.data() : nullptr;
  auto* s = adds ? sum.data() : nullptr;
  cpu::launch({rows, 1, 1}, 128, 0, 0, [&] {
    add_norm<T, S, W, MOST>(x, b, residual.data(), weight.data(), bias.data(), s, hat.data(), out.data(), inverse.data(), rows, width, float(eps), d);
  });
  const u32 blocks = 3;
  Array<float> columns(3 * blocks * width), totals(3 * width);
  cpu::launch({blocks, 1, 1}, 128, 0, 7, [&] {
    add_norm_backward<T, S, W, MOST>(d_out.data(), d_more.data(), hat.data(), inverse.data(), weight.data(), d_sum.data(), x ? d_in.data() : nullptr,
                                     columns.data(), rows, width, d);
  });
  std::vector<double> want_sum(rows * width), want_out(rows * width), want_d_sum(rows * width), want_d_in(rows * width), want_totals(3 * width);
  for (u32 row = 0; row < rows; row++) {
    std::vector<double> h(width);
    double mean = 0, variance = 0, a = 0, c = 0;
    for (u32 i = 0; i < width; i++) {
      u32 at = row * width + i;
      double value = residual.at(at) + (adds ? (in.at(at) + (b ? in_bias.at(i) : 0)) * factor_of(d, row, i) : 0);
      want_sum[at] = value;
      // As it is stored.
      S stored;
      store(stored, float(value));
      h[i] = wide(stored);
      mean += h[i] / width;
    }
    for (double value : h) variance += (value - mean) * (value - mean) / width;
    double inv = 1 / std::sqrt(variance + eps);
    for (u32 i = 0; i < width; i++) {
      u32 at = row * width + i;
      want_out[at] = (h[i] - mean) * inv * weight.at(i) + bias.at(i);
      h[i] = hat.at(at);
      a += d_out.at(at) * weight.at(i) / width;
      c += d_out.at(at) * weight.at(i) * h[i] / width;
    }
    for (u32 i = 0; i < width; i++) {
      u32 at = row * width + i;
      double value = (d_out.at(at) * weight.at(i) - a - h[i] * c) * inverse.at(row) + d_more.at(at), factor = factor_of(d, row, i);
      want_d_sum[at] = value;
      want_d_in[at] = value * factor;
      want_totals[i] += d_out.at(at) * h[i];
      want_totals[width + i] += d_out.at(at);
      want_totals[2 * width + i] += value * factor;
    }
  }
  for (u32 i = 0; i < 3 * width; i++) {
    float total = 0;
    for (u32 block = 0; block < blocks; block++) total += columns.data()[(i / width * blocks + block) * width + i % width];
    totals.data()[i] = total;
  }
  if (adds) compare(name + ", sum", sum, want_sum, 1e-5);
  compare(name + ", norm", out, want_out, 1e-4);
  compare(name + ", gradient of the sum", d_sum, want_d_sum, 1e-4);
  if (adds) compare(name + ", gradient", d_in, want_d_in, 1e-4);
  compare(name + ", gradients of parameters", totals, want_totals, 1e-3);
}

template <typename T, typename S, typename W, int MOST> void rms_norms(u32 rows, u32 width, bool has_past, const std::string& name) {
  auto in = Array<S>::random(rows * width, 1, 2), d_past = Array<S>::random(rows * width, 2);
  auto d_out = Array<T>::random(rows * width, 3);
  auto weight = Array<W>::random(width, 4);
  const double eps = 1e-6;
  const u32 blocks = 3;
  Array<T> out(rows * width);
  Array<float> inverse(rows), sums(blocks * width), d_weight(width);
  std::vector<double> want_out(rows * width), want_d_in(rows * width), want_d_weight(width);
  for (u32 row = 0; row < rows; row++) {
    double squares = 0, mean = 0;
    for (u32 i = row * width; i < (row + 1) * width; i++) squares += in.at(i) * in.at(i) / width;
    double inv = 1 / std::sqrt(squares + eps);
    for (u32 i = 0; i < width; i++) mean += d_out.at(row * width + i) * weight.at(i) * in.at(row * width + i) * inv / width;
    for (u32 i = 0; i < width; i++) {
      u32 at = row * width + i;
      double normed = in.at(at) * inv;
      want_out[at] = normed * weight.at(i);
      want_d_in[at] = (d_out.at(at) * weight.at(i) - normed * mean) * inv + (has_past ? d_past.at(at) : 0);
      want_d_weight[i] += d_out.at(at) * normed;
    }
  }
  cpu::launch({rows, 1, 1}, 128, 0, 0, [&] { rms_norm<T, S, W, MOST>(in.data(), weight.data(), out.data(), inverse.data(), rows, width, float(eps)); });
  // In the memory of what is added, as where nobody else has it.
  auto* past = has_past ? d_past.data() : nullptr;
  cpu::launch({blocks, 1, 1}, 128, 0, 7, [&] {
    rms_norm_backward<T, S, W, MOST>(d_out.data(), past, in.data(), inverse.data(), weight.data(), d_past.data(), sums.data(), rows, width);
  });
  for (u32 i = 0; i < width; i++) d_weight.data()[i] = sums.data()[i] + sums.data()[width + i] + sums.data()[2 * width + i];
  compare(name, out, want_out, 1e-5);
  compare(name + ", gradient", d_past, want_d_in, 1e-5);
  compare(name + ", gradient of the weight", d_weight, want_d_weight, 1e-4);
}

template <typename T, typename S, typename W> void all_norms(const std::string& types) {
  for (int options = 0; options < 8; options++) {
    bool adds = options & 1, has_bias = options & 2, drops = options & 4;
    auto name = types + " norm" + (adds ? " of a sum" : "") + (has_bias ? " bias" : "") + (drops ? " dropout" : "");
    norms<T, S, W, 1>(10, 72, adds, has_bias, drops, name);
  }
  norms<T, S, W, 2>(5, 1032, true, true, true, types + " norm of wide rows");
  norms<T, S, W, 4>(4, 4096, true, true, true, types + " norm of the widest rows");
  for (bool has_past : {false, true}) rms_norms<T, S, W, 1>(10, 72, has_past, types + " rms norm" + (has_past ? " of a residual" : ""));
  rms_norms<T, S, W, 3>(4, 2056, true, types + " rms norm of wide rows");
}

// --- The cross-entropy of rows of logits --------------------------------------------------------------------------------------------

template <typename T> void cross_entropies(u32 rows, u32 width, const std::string& name) {
  const long long ignored = -100;
  auto logits = Array<T>::random(rows * width, 1, 4);
  Array<long long> labels(rows);
  Array<float> loss(rows);
  std::vector<double> want_loss(rows), want(rows * width);
  for (u32 row = 0; row < rows; row++) {
    labels.data()[row] = row % 3 == 1 ? ignored : row * 7919 % width;
    // A row that is high throughout, and one with a single high logit.
    for (u32 i = 0; i < width && row == 2; i++) store(logits.data()[row * width + i], 300.0f + i % 5);
    if (row == 3) store(logits.data()[row * width + width - 1], 80.0f);
    if (labels.data()[row] == ignored) continue;
    double highest = -1e300, sum = 0;
    for (u32 i = 0; i < width; i++) highest = std::max(highest, logits.at(row * width + i));
    for (u32 i = 0; i < width; i++) sum += std::exp(logits.at(row * width + i) - highest);
    for (u32 i = 0; i < width; i++) {
      want[row * width + i] = std::exp(logits.at(row * width + i) - highest) / sum - (i == labels.data()[row] ? 1 : 0);
    }
    want_loss[row] = std::log(sum) + highest - logits.at(row * width + labels.data()[row]);
  }
  for (u32 differentiates : {0u, 1u}) {
    cpu::launch({rows, 1, 1}, 512, 0, differentiates, [&] { cross_entropy<T>(logits.data(), labels.data(), loss.data(), width, ignored, differentiates); });
    compare(name, loss, want_loss, 1e-5, 1e-4);
  }
  compare(name + ", gradient", logits, want, 1e-6);
}

// --- Rotary positions ---------------------------------------------------------------------------------------------------------------

template <typename T> void turns(u32 batch, u32 heads, u32 length, u32 width, const std::string& name) {
  // Rows of queries, of which there is more in memory, as where several products are one.
  u32 row = heads * width + 24, half = width / 2;
  auto in = Array<T>::random(batch * length * row, 1), cosines = Array<T>::random(length * width, 2), sines = Array<T>::random(length * width, 3);
  Array<T> out(batch * length * heads * width);
  u64 pairs = out.size() / 16;
  for (u32 is_back : {0u, 1u}) {
    std::vector<double> want(out.size());
    for (u32 token = 0; token < batch * length; token++) {
      for (u32 at = 0; at < heads * width; at++) {
        u32 i = at % width, other = i < half ? i + half : i - half, turn = token % length * width;
        double x = in.at(token * row + at), y = in.at(token * row + at - i + other);
        // The gradient goes through the turn of the other half.
        double sine = is_back ? (i < half ? sines.at(turn + other) : -sines.at(turn + other)) : (i < half ? -sines.at(turn + i) : sines.at(turn + i));
        want[token * heads * width + at] = x * cosines.at(turn + i) + y * sine;
      }
    }
    cpu::launch({2, 1, 1}, 256, 0, is_back, [&] {
      turn<T>(in.data(), (long long)length * row, width, row, cosines.data(), sines.data(), out.data(), pairs, length, heads, width, is_back);
    });
    compare(name + (is_back ? ", gradient" : ""), out, want, 1e-6);
  }
}

// --- Dropout of rows --------------------------------------------------------------------------------------------------------------

template <typename T> void drops(u32 rows, u32 width, const std::string& name) {
  auto d = dropout(true, 2, width);
  auto in = Array<T>::random(rows * width, 1), residual = Array<T>::random(rows * width, 2);
  Array<T> out(rows * width);
  std::vector<double> want(rows * width);
  for (u32 i = 0; i < rows * width; i++) want[i] = residual.at(i) + in.at(i) * factor_of(d, i / width, i % width);
  cpu::launch({2, 1, 1}, 256, 0, 0, [&] { drop_add<T, T, T>(in.data(), residual.data(), out.data(), rows * width, d); });
  compare(name, out, want, 1e-6);
}

// --- Sums, and AdamW ------------------------------------------------------------------------------------------------------------

// Two matrices.
template <typename T> void column_sums(u32 rows, u32 width, const std::string& name) {
  auto in = Array<float>::random(2 * rows * width, rows + width);
  Array<T> out(2 * width);
  std::vector<double> want(2 * width);
  for (u32 i = 0; i < 2 * rows * width; i++) want[i / (rows * width) * width + i % width] += in.at(i);
  cpu::launch({(width + SUM_COLUMNS - 1) / SUM_COLUMNS, 2, 1}, 1024, 0, rows, [&] { sum_rows<T>(in.data(), out.data(), rows, width); });
  compare(name, out, want, 1e-5 * rows);
}

template <typename T> void sums_of_some_rows(u32 rows, u32 width, const std::string& name) {
  const u32 parts = 3;
  auto in = Array<T>::random(rows * width, rows + width);
  Array<float> out(parts * width);
  std::vector<double> want(parts * width);
  for (u32 i = 0; i < rows * width; i++) want[i / width / 8 % parts * width + i % width] += in.at(i);
  cpu::launch({(width + 255) / 256, parts, 1}, 256, 0, rows, [&] { sum_some_rows<T>(in.data(), out.data(), rows, width); });
  compare(name, out, want, 1e-5 * rows);
}

template <typename T> void scaled(u64 count, const std::string& name) {
  auto data = Array<T>::random(count, unsigned(count));
  std::vector<double> want;
  for (u64 i = 0; i < count; i++) want.push_back(data.at(i) * 0.75);
  float factor = 0.75f;
  cpu::launch({2, 1, 1}, 256, 0, 1, [&] { scale_all<T>(data.data(), &factor, count); });
  compare(name, data, want, 0);
}

// Blocks of `chunk` elements of tensors of these sizes, for kernels over many tensors.
std::vector<u64> first_blocks(const std::vector<u64>& sizes, u64 chunk) {
  std::vector<u64> first{0};
  for (u64 n : sizes) first.push_back(first.back() + (n + chunk - 1) / chunk);
  return first;
}

template <typename T> void squares(const std::string& name) {
  const std::vector<u64> sizes{1000, 0, 512, 3};
  const u64 chunk = 256;
  auto first = first_blocks(sizes, chunk);
  std::vector<Array<T>> all;
  std::vector<OneOfMany<T>> table;
  std::vector<double> want(first.back());
  for (size_t k = 0; k < sizes.size(); k++) {
    all.push_back(Array<T>::random(sizes[k], unsigned(k + 1)));
    table.push_back({all[k].data(), sizes[k], first[k]});
    for (u64 i = 0; i < sizes[k]; i++) want[first[k] + i / chunk] += all[k].at(i) * all[k].at(i);
  }
  Array<float> out(first.back());
  cpu::launch({unsigned(first.back()), 1, 1}, 256, 0, 1, [&] { sum_squares<T>(table.data(), u32(sizes.size()), chunk, out.data()); });
  compare(name, out, want, 1e-3);
}

template <typename T> void updates(const std::string& name) {
  const std::vector<u64> sizes{1000, 512, 3};
  const u64 chunk = 512;
  const AdamW s{0.9f, 0.999f, 0.1f, 0.001f, 1e-8f, 0.999f, 0.5f, 0.02f, 7};
  auto first = first_blocks(sizes, chunk);
  std::vector<std::array<Array<T>, 4>> all;
  std::vector<Parameter<T>> table;
  std::vector<std::array<std::vector<double>, 3>> want;
  // In fp32 what is new outweighs what was there.
  float scale = sizeof(T) == 4 ? 100 : 0.5f;
  for (size_t k = 0; k < sizes.size(); k++) {
    unsigned seed = 10 * unsigned(k);
    all.push_back({Array<T>::random(sizes[k], seed + 1), Array<T>::random(sizes[k], seed + 2), Array<T>::random(sizes[k], seed + 3),
                   Array<T>::random(sizes[k], seed + 4)});
    auto& [p, g, m, v] = all.back();
    table.push_back({p.data(), g.data(), m.data(), v.data(), sizes[k], first[k]});
    want.push_back({std::vector<double>(sizes[k]), std::vector<double>(sizes[k]), std::vector<double>(sizes[k])});
    for (u64 i = 0; i < sizes[k]; i++) {
      store(v.data()[i], std::abs(float(v.at(i))));
      double grad = g.at(i) * scale, average = m.at(i) * 0.9 + grad * 0.1, square = v.at(i) * 0.999 + grad * grad * 0.001;
      want[k][0][i] = p.at(i) * 0.999 - s.size * average / (std::sqrt(square) / s.root2 + s.eps);
      want[k][1][i] = average;
      want[k][2][i] = square;
    }
  }
  cpu::launch({unsigned(first.back()), 1, 1}, 256, 0, 1, [&] { adamw<T>(table.data(), u32(sizes.size()), chunk, &scale, s); });
  for (size_t k = 0; k < sizes.size(); k++) {
    const Array<T>* got[] = {&all[k][0], &all[k][2], &all[k][3]};
    // Rounded up or down, and not to the nearest.
    for (int what = 0; what < 3; what++) compare(name + ", parameter " + std::to_string(k), *got[what], want[k][what], 1e-6, sizeof(T) == 2 ? 1e-2 : 0);
  }
}

}  // namespace

int main() {
  all_activations<BF16, BF16>("bf16");
  all_activations<BF16, float>("bf16 with a bias in fp32");
  all_activations<F16, float>("f16 with a bias in fp32");
  all_activations<float, float>("fp32");
  all_norms<BF16, BF16, BF16>("bf16");
  all_norms<BF16, float, float>("bf16 with a sum in fp32");
  all_norms<BF16, BF16, float>("bf16 with weights in fp32");
  all_norms<float, float, float>("fp32");
  for (u32 width : {8u, 1000u, 9000u}) {
    cross_entropies<BF16>(7, width, "bf16 cross-entropy of " + std::to_string(width));
    cross_entropies<F16>(7, width, "f16 cross-entropy of " + std::to_string(width));
    cross_entropies<float>(7, width, "fp32 cross-entropy of " + std::to_string(width));
  }
  for (u32 width : {16u, 96u, 128u}) {
    turns<BF16>(2, 3, 5, width, "bf16 turns of heads of " + std::to_string(width));
    turns<F16>(2, 3, 5, width, "f16 turns of heads of " + std::to_string(width));
    turns<float>(1, 1, 7, width, "fp32 turns of heads of " + std::to_string(width));
  }
  for (u32 width : {8u, 24u, 13u, 3u}) {
    drops<BF16>(9, width, "bf16 dropout of rows of " + std::to_string(width));
    drops<float>(9, width, "fp32 dropout of rows of " + std::to_string(width));
  }
  for (u32 rows : {1u, 33u, 264u}) {
    for (u32 width : {8u, 32u, 1000u}) {
      column_sums<float>(rows, width, "fp32 sums of " + std::to_string(rows) + " rows of " + std::to_string(width));
      column_sums<BF16>(rows, width, "bf16 sums of " + std::to_string(rows) + " rows of " + std::to_string(width));
    }
  }
  for (u32 rows : {1u, 30u, 100u}) {
    sums_of_some_rows<BF16>(rows, 520, "bf16, some of " + std::to_string(rows) + " rows");
    sums_of_some_rows<float>(rows, 8, "fp32, some of " + std::to_string(rows) + " rows");
  }
  for (u64 count : {5u, 8u, 9003u}) scaled<BF16>(count, std::to_string(count) + " numbers in bf16 times one");
  squares<BF16>("bf16 squares");
  squares<float>("fp32 squares");
  updates<BF16>("AdamW in bf16");
  updates<float>("AdamW in fp32");
  return wrong ? 1 : 0;
}
