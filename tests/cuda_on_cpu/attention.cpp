// Compares the kernels of attention.cu, run on a CPU, with a plain implementation in fp64.
// usage: attention [PART PARTS]   (only the cases with number % PARTS == PART)

#include "cuda.hpp"

#include "../../src/pipe-trainer/torch/kernels.cu"

#include "ptx.hpp"

#include "../../src/pipe-trainer/torch/attention.cu"
#include "../../src/pipe-trainer/torch/attention_forward.cu"
#include "../../src/pipe-trainer/torch/attention_backward.cu"

#include <algorithm>
#include <string>

namespace {

struct Case {
  u32 batch, heads, queries, keys, width;
  bool half, causal, bias, ragged;
  double share;
  int layout;
  u32 shared = 1;  // heads of queries that have one of keys and values

  Case of_keys() const {
    Case c = *this;
    c.heads /= shared;
    return c;
  }

  std::string name() const {
    char text[160];
    snprintf(text, sizeof text, "%s B%u H%u/%u %ux%u D%u%s%s%s%s layout %d", half ? "f16 " : "bf16", batch, heads, shared, queries, keys, width,
             causal ? " causal" : "", bias ? " bias" : "", ragged ? " lengths" : "", share > 0 ? " dropout" : "", layout);
    return text;
  }
};

double narrow(bool half, double x) {
  if (half) { F16 y; store(y, float(x)); return wide(y); }
  BF16 y;
  store(y, float(x));
  return wide(y);
}

// --- Tensors [batch, heads, length, width] of 16-bit numbers -------------------------------------------------------------------

struct Array {
  cpu::Guarded memory;
  AttentionTensor view;
  u32 batch, heads, length, width;
  bool half;

  static i64 elements(const AttentionTensor& t, u32 b, u32 h, u32 l, u32 d) {
    return (b - 1) * t.batch + (h - 1) * t.head + (l - 1) * t.row + d;
  }
  // 0: [batch, length, heads, width]. 1: [batch, heads, length, width]. 2: as 0 with unused elements between the rows.
  static AttentionTensor strides(int layout, u32 h, u32 l, u32 d) {
    i64 row = layout == 1 ? d : i64(h) * d + (layout == 2 ? 24 : 0);
    return {nullptr, layout == 1 ? i64(h) * l * d : l * row, layout == 1 ? i64(l) * d : i64(d), row};
  }

  Array(const Case& c, u32 length, int layout)
      : memory(2 * elements(strides(layout, c.heads, length, c.width), c.batch, c.heads, length, c.width)),
        view(strides(layout, c.heads, length, c.width)), batch(c.batch), heads(c.heads), length(length), width(c.width), half(c.half) {
    view.data = memory.data();
  }

  u16& bits(u32 b, u32 h, u32 l, u32 d) const {
    return reinterpret_cast<u16*>(view.data)[b * view.batch + h * view.head + l * view.row + d];
  }
  double get(u32 b, u32 h, u32 l, u32 d) const {
    u16 x = bits(b, h, l, d);
    return half ? wide(F16{x}) : wide(BF16{x});
  }
  void set(u32 b, u32 h, u32 l, u32 d, double x) {
    if (half) { F16 y; store(y, float(x)); bits(b, h, l, d) = y.bits; }
    else { BF16 y; store(y, float(x)); bits(b, h, l, d) = y.bits; }
  }
  template <typename F> void each(F f) {
    for (u32 b = 0; b < batch; b++)
      for (u32 h = 0; h < heads; h++)
        for (u32 l = 0; l < length; l++)
          for (u32 d = 0; d < width; d++) f(b, h, l, d);
  }
  void randomize(std::mt19937& random, double size) {
    std::normal_distribution<double> normal(0, size);
    each([&](u32 b, u32 h, u32 l, u32 d) { set(b, h, l, d, normal(random)); });
  }
};

struct Floats {
  cpu::Guarded memory;
  explicit Floats(size_t count) : memory(count * 4) {}
  float* data() const { return reinterpret_cast<float*>(memory.data()); }
  size_t size() const { return memory.size() / 4; }
};

// --- Dropout by the formula, one element at a time -----------------------------------------------------------------------------

bool is_dropped(const AttentionDropout& d, u32 b, u32 h, u32 i, u32 j) {
  u32 r[4], lane = (i % 8) * 4 + (j % 8) / 2, e = 4 * ((j % 16) / 8) + 2 * ((i % 16) / 8) + j % 2;
  philox(d.key, (j / 16) * 32 + lane, i / 16, d.first_sample + b, h + 1, r);
  return ((r[e / 2] >> (16 * (e % 2))) & 0xFFFF) < d.threshold;
}

// --- Running the kernels --------------------------------------------------------------------------------------------------------

u32 blocks(u32 count, u32 size) { return (count + size - 1) / size; }
u32 samples_of(const AttentionArguments& a) { return a.q_tiles ? 1 : a.batch; }

template <typename T, int WIDTH, bool HAS_BIAS, bool DROPS>
void forward(const AttentionArguments& a, unsigned order) {
  typedef ForwardShape<WIDTH> Shape;
  cpu::launch({a.q_tiles ? a.tiles : blocks(a.queries, Shape::QUERIES), a.heads, samples_of(a)}, THREADS, Shape::BYTES, order,
              [&] { attention_forward<T, WIDTH, HAS_BIAS, DROPS>(a); });
}

template <typename T, int WIDTH, bool HAS_BIAS, bool DROPS>
void backward(const AttentionArguments& a, unsigned order) {
  typedef KeysShape<WIDTH> Keys;
  typedef QueriesShape<WIDTH, HAS_BIAS> Queries;
  cpu::launch({blocks(a.queries, 8), a.heads, samples_of(a)}, THREADS, 0, order, [&] { attention_backward_rows<T>(a); });
  // Queries and keys have as many tiles in these tests.
  cpu::launch({a.q_tiles ? a.tiles * (128 / Keys::KEYS) : blocks(a.keys, Keys::KEYS), a.heads, samples_of(a)}, THREADS, Keys::BYTES, order,
              [&] { attention_backward_keys<T, WIDTH, HAS_BIAS, DROPS>(a); });
  cpu::launch({a.q_tiles ? a.tiles : blocks(a.queries, Queries::QUERIES), a.heads, samples_of(a)}, THREADS, Queries::BYTES, order,
              [&] { attention_backward_queries<T, WIDTH, HAS_BIAS, DROPS>(a); });
  if (HAS_BIAS) {
    cpu::launch({blocks(a.distances, THREADS), a.heads, 1}, THREADS, 0, order, [&] { attention_bias_sum(a); });
  }
}

template <typename T, int WIDTH> void run(const AttentionArguments& a, const Case& c, unsigned order, bool is_forward) {
  auto with = [&](auto bias, auto drops) {
    constexpr bool B = decltype(bias)::value, D = decltype(drops)::value;
    is_forward ? forward<T, WIDTH, B, D>(a, order) : backward<T, WIDTH, B, D>(a, order);
  };
  std::true_type yes;
  std::false_type no;
  if (c.bias) { if (c.share > 0) with(yes, yes); else with(yes, no); }
  else { if (c.share > 0) with(no, yes); else with(no, no); }
}

void run(const AttentionArguments& a, const Case& c, unsigned order, bool is_forward) {
  auto of_type = [&](auto type) {
    typedef decltype(type) T;
    if (c.width <= 32) run<T, 32>(a, c, order, is_forward);
    else if (c.width <= 64) run<T, 64>(a, c, order, is_forward);
    else if (c.width <= 96) run<T, 96>(a, c, order, is_forward);
    else run<T, 128>(a, c, order, is_forward);
  };
  if (c.half) of_type(F16()); else of_type(BF16());
}

// --- One case --------------------------------------------------------------------------------------------------------------------

// The largest error of an element over the sum of the absolute values of its terms.
struct Worst {
  double o = 0, lse = 0, d_q = 0, d_k = 0, d_v = 0, d_bias = 0;
  bool operator<(double limit) const {
    return o < limit && lse < 1e-4 && d_q < limit && d_k < limit && d_v < limit && d_bias < limit;
  }
};

void compare(double& worst, double got, double want, double terms) {
  double error = std::abs(got - want) / (terms + 1e-3);
  worst = std::isfinite(got) ? std::max(worst, error) : INFINITY;
}

struct Result {
  Worst worst;
  std::string problem;
};

Result check(const Case& c, unsigned number) {
  std::mt19937 random(1000 + number);
  auto layout = [&](int i) { return c.layout == 3 ? (number + i) % 3 : c.layout; };
  Array q(c, c.queries, layout(0)), k(c.of_keys(), c.keys, layout(1)), v(c.of_keys(), c.keys, layout(2)), d_o(c, c.queries, c.layout == 1 ? 0 : layout(0));
  Array o(c, c.queries, 0), d_q(c, c.queries, 0), d_k(c, c.keys, 0), d_v(c, c.keys, 0);
  u32 distances = c.queries + c.keys - 1;
  Floats bias(c.bias ? c.heads * distances : 0), d_bias(c.bias ? c.heads * distances : 0);
  Floats lse(c.batch * c.heads * c.queries), rows(2 * c.batch * c.heads * c.queries);
  u32 blocks = (c.queries + 127) / 128;
  Floats d_bias_blocks(c.bias ? size_t(c.batch) * c.heads * blocks * BiasGradient::positions(int(c.keys)) : 0);
  cpu::Guarded lengths(c.batch * 4);
  q.randomize(random, 1.5);
  k.randomize(random, 1.5);
  v.randomize(random, 1);
  d_o.randomize(random, 1);
  std::normal_distribution<float> normal(0, 2);
  for (size_t i = 0; i < bias.size(); i++) bias.data()[i] = normal(random);
  for (u32 b = 0; b < c.batch; b++) {
    int length = b == 0 ? int(c.keys) : int(random() % (c.keys + 1));
    memcpy(lengths.data() + 4 * b, &length, 4);
  }
  u32 threshold = u32(std::lround(c.share * 65536));
  AttentionDropout dropout{0x123456789ABCDEFull * (number + 1), threshold, float(65536.0 / (65536.0 - threshold)), 7 + number};
  double scale = number % 2 ? 1 / std::sqrt(double(c.width)) : 0.35;
  AttentionArguments a{};
  a.q = q.view; a.k = k.view; a.v = v.view; a.o = o.view; a.d_o = d_o.view; a.d_q = d_q.view; a.d_k = d_k.view; a.d_v = d_v.view;
  a.bias = c.bias ? bias.data() : nullptr;
  a.lengths = c.ragged ? reinterpret_cast<const int*>(lengths.data()) : nullptr;
  a.lse = lse.data(); a.rows = reinterpret_cast<RowSums*>(rows.data()); a.d_bias_blocks = d_bias_blocks.data(); a.d_bias = d_bias.data();
  a.batch = c.batch; a.heads = c.heads; a.queries = c.queries; a.keys = c.keys; a.width = c.width;
  a.distances = distances; a.origin = c.queries - 1;
  a.is_causal = c.causal;
  a.shared = c.shared;
  a.scale = float(scale);
  a.dropout = dropout;
  scale = a.scale;

  Result result;
  // Two orders of the warps give the same bits.
  std::vector<cpu::Guarded*> outputs{&o.memory, &lse.memory, &d_q.memory, &d_k.memory, &d_v.memory, &d_bias.memory};
  std::vector<std::vector<unsigned char>> before;
  for (unsigned order = 0; order < (number % 3 == 0 ? 2 : 1); order++) {
    for (auto* output : outputs) output->fill_with_nan();
    rows.memory.fill_with_nan();
    d_bias_blocks.memory.fill_with_nan();
    run(a, c, order ? number + 1 : number % 2, true);
    run(a, c, order ? number + 1 : number % 2, false);
    for (size_t i = 0; i < outputs.size(); i++) {
      std::vector<unsigned char> bytes(outputs[i]->data(), outputs[i]->data() + outputs[i]->size());
      if (order && bytes != before[i]) result.problem = "another order of the warps gives another result";
      if (!order) before.push_back(std::move(bytes));
      if (!outputs[i]->intact()) result.problem = "a write outside of an output";
    }
  }

  // In fp64.
  u32 nq = c.queries, nk = c.keys, w = c.width;
  Worst& worst = result.worst;
  std::vector<double> want_bias(c.heads * distances), terms_bias(c.heads * distances);
  for (u32 b = 0; b < c.batch; b++)
    for (u32 h = 0; h < c.heads; h++) {
      auto values = [&](const Array& t, u32 n, u32 h) {
        std::vector<double> all(size_t(n) * w);
        for (u32 i = 0; i < n; i++) for (u32 d = 0; d < w; d++) all[i * w + d] = t.get(b, h, i, d);
        return all;
      };
      auto Q = values(q, nq, h), K = values(k, nk, h / c.shared), V = values(v, nk, h / c.shared), G = values(d_o, nq, h);
      std::vector<double> dk(nk * w), dk_terms(nk * w), dv(nk * w), dv_terms(nk * w);
      int length = int(nk);
      if (c.ragged) memcpy(&length, lengths.data() + 4 * b, 4);
      for (u32 i = 0; i < nq; i++) {
        std::vector<double> s(nk, -INFINITY), p(nk, 0), dp(nk, 0), kept(nk, 1);
        double most = -INFINITY, sum = 0;
        for (int j = 0; j < int(nk); j++) {
          if (j >= length || (c.causal && j > int(i) + int(nk) - int(nq))) continue;
          double x = 0;
          for (u32 d = 0; d < w; d++) x += Q[i * w + d] * K[j * w + d];
          s[j] = x * scale + (c.bias ? bias.data()[h * distances + j - i + nq - 1] : 0.0f);
          most = std::max(most, s[j]);
        }
        for (u32 j = 0; j < nk; j++) if (s[j] > -INFINITY) sum += std::exp(s[j] - most);
        float got_lse = lse.data()[(b * c.heads + h) * nq + i];
        if (sum > 0) compare(worst.lse, got_lse, most + std::log(sum), 1);
        else if (got_lse != INFINITY) worst.lse = INFINITY;
        std::vector<double> out(w, 0), out_terms(w, 0), dq(w, 0), dq_terms(w, 0);
        double row_delta = 0, row_terms = 0;
        for (u32 j = 0; j < nk; j++) {
          if (s[j] == -INFINITY) continue;
          p[j] = std::exp(s[j] - most) / sum;
          if (threshold) kept[j] = is_dropped(dropout, b, h, i, j) ? 0 : double(dropout.kept);
          for (u32 d = 0; d < w; d++) {
            double term = p[j] * kept[j] * V[j * w + d];
            out[d] += term;
            out_terms[d] += std::abs(term);
            dp[j] += kept[j] * G[i * w + d] * V[j * w + d];
          }
        }
        for (u32 d = 0; d < w; d++) {
          compare(worst.o, o.get(b, h, i, d), out[d], out_terms[d]);
          row_delta += G[i * w + d] * out[d];
          row_terms += std::abs(G[i * w + d] * out[d]);
        }
        for (u32 j = 0; j < nk; j++) {
          if (s[j] == -INFINITY) continue;
          double ds = p[j] * (dp[j] - row_delta), terms = p[j] * (std::abs(dp[j]) + row_terms);
          for (u32 d = 0; d < w; d++) {
            dq[d] += scale * ds * K[j * w + d];
            dq_terms[d] += std::abs(scale * terms * K[j * w + d]);
            dk[j * w + d] += scale * ds * Q[i * w + d];
            dk_terms[j * w + d] += std::abs(scale * terms * Q[i * w + d]);
            dv[j * w + d] += p[j] * kept[j] * G[i * w + d];
            dv_terms[j * w + d] += std::abs(p[j] * kept[j] * G[i * w + d]);
          }
          if (c.bias) {
            want_bias[h * distances + j - i + nq - 1] += ds;
            terms_bias[h * distances + j - i + nq - 1] += terms;
          }
        }
        for (u32 d = 0; d < w; d++) compare(worst.d_q, d_q.get(b, h, i, d), dq[d], dq_terms[d]);
      }
      for (u32 j = 0; j < nk; j++)
        for (u32 d = 0; d < w; d++) {
          compare(worst.d_k, d_k.get(b, h, j, d), dk[j * w + d], dk_terms[j * w + d]);
          compare(worst.d_v, d_v.get(b, h, j, d), dv[j * w + d], dv_terms[j * w + d]);
        }
    }
  for (size_t i = 0; i < d_bias.size(); i++) compare(worst.d_bias, d_bias.data()[i], want_bias[i], terms_bias[i]);
  // Four roundings of 2^-9 or 2^-12 and some room.
  if (result.problem.empty() && !(worst < (c.half ? 1.5e-3 : 1e-2))) result.problem = "errors are too large";
  return result;
}

// With rows of the identity matrix as values the output is the weights themselves: what is dropped is exactly 0, what is kept is
// not.
std::string check_dropped(const Case& c, unsigned number) {
  Array q(c, c.queries, 0), k(c, c.keys, 0), v(c, c.keys, 0), o(c, c.queries, 0);
  Floats lse(c.batch * c.heads * c.queries);
  std::mt19937 random(number);
  q.randomize(random, 0.3);
  k.randomize(random, 0.3);
  AttentionArguments a{};
  a.q = q.view; a.k = k.view; a.v = v.view; a.o = o.view;
  a.lse = lse.data();
  a.batch = c.batch; a.heads = c.heads; a.queries = c.queries; a.keys = c.keys; a.width = c.width;
  a.is_causal = c.causal;
  a.shared = 1;
  a.scale = 0.1f;
  u32 threshold = u32(std::lround(c.share * 65536));
  a.dropout = {0xFEDCBA9876543210ull + number, threshold, float(65536.0 / (65536.0 - threshold)), number};
  size_t dropped = 0, all = 0;
  for (u32 first = 0; first < c.keys; first += c.width) {
    v.each([&](u32 b, u32 h, u32 l, u32 d) { v.set(b, h, l, d, l == first + d); });
    run(a, c, number, true);
    for (u32 b = 0; b < c.batch; b++)
      for (u32 h = 0; h < c.heads; h++)
        for (u32 i = 0; i < c.queries; i++)
          for (u32 j = first; j < std::min(first + c.width, c.keys); j++) {
            if (c.causal && int(j) > int(i) + int(c.keys) - int(c.queries)) continue;
            bool expected = is_dropped(a.dropout, b, h, i, j);
            if (expected != (o.get(b, h, i, j - first) == 0)) return "an element is dropped against the formula";
            dropped += expected;
            all++;
          }
  }
  double share = double(dropped) / double(all);
  if (std::abs(share - c.share) > 6 * std::sqrt(c.share * (1 - c.share) / double(all))) return "the share that is dropped is off";
  return "";
}

// --- Packed samples: the same bits as each of them alone -----------------------------------------------------------------------

// The rows of packed samples, as data/packing.rs writes them. The last of `lengths` is spare.
struct Rows {
  std::vector<int> offsets{0};
  std::vector<Tile> tiles;
  u32 longest = 1, sums = 0;

  explicit Rows(const std::vector<u32>& lengths) {
    for (size_t s = 0; s < lengths.size(); s++) {
      bool spare = s + 1 == lengths.size();
      for (u32 first = 0; first < lengths[s]; first += 128) {
        tiles.push_back({int(s), int(first), int(sums), 0});
        sums += u32(BiasGradient::positions(spare ? 0 : int(lengths[s])));
      }
      if (!spare) longest = std::max(longest, lengths[s]);
      offsets.push_back(offsets.back() + int(lengths[s]));
    }
  }
  u32 tokens() const { return u32(offsets.back()); }
};

std::string check_packed(Case c, const std::vector<u32>& queries, const std::vector<u32>& keys, unsigned number) {
  Rows q_rows(queries), k_rows(keys);
  while (q_rows.tiles.size() < k_rows.tiles.size() + 1) q_rows.tiles.push_back({-1, 0, 0, 0});
  while (k_rows.tiles.size() < q_rows.tiles.size()) k_rows.tiles.push_back({-1, 0, 0, 0});
  std::mt19937 random(500 + number);
  auto normal = std::normal_distribution<float>(0, 1);
  u32 longest = std::max(q_rows.longest, k_rows.longest), distances = 2 * longest - 1, threshold = u32(std::lround(c.share * 65536));
  Floats bias(c.heads * distances), d_bias(c.heads * distances);
  for (size_t i = 0; i < bias.size(); i++) bias.data()[i] = normal(random);
  AttentionArguments a{};
  a.heads = c.heads; a.width = c.width; a.is_causal = c.causal; a.shared = c.shared; a.scale = 0.3f;
  a.dropout = {0x5DEECE66Dull * (number + 1), threshold, float(65536.0 / (65536.0 - threshold)), 3};

  c.batch = 1;
  Array q(c, q_rows.tokens(), 0), k(c.of_keys(), k_rows.tokens(), 0), v(c.of_keys(), k_rows.tokens(), 0), d_o(c, q_rows.tokens(), 0);
  Array o(c, q_rows.tokens(), 0), d_q(c, q_rows.tokens(), 0), d_k(c, k_rows.tokens(), 0), d_v(c, k_rows.tokens(), 0);
  Floats lse(c.heads * q_rows.tokens()), rows(2 * c.heads * q_rows.tokens()), sums(c.heads * q_rows.sums);
  for (auto* t : {&q, &k, &v, &d_o}) t->randomize(random, 1);
  for (auto* t : {&o, &d_q, &d_k, &d_v}) t->memory.fill_with_nan();
  sums.memory.fill_with_nan();
  AttentionArguments packed = a;
  packed.q = q.view; packed.k = k.view; packed.v = v.view; packed.o = o.view; packed.d_o = d_o.view;
  packed.d_q = d_q.view; packed.d_k = d_k.view; packed.d_v = d_v.view;
  packed.lse = lse.data(); packed.rows = reinterpret_cast<RowSums*>(rows.data());
  packed.bias = c.bias ? bias.data() : nullptr; packed.d_bias_blocks = sums.data(); packed.d_bias = d_bias.data();
  packed.q_offsets = q_rows.offsets.data(); packed.k_offsets = k_rows.offsets.data();
  packed.q_tiles = q_rows.tiles.data(); packed.k_tiles = k_rows.tiles.data();
  packed.batch = u32(queries.size()); packed.queries = q_rows.tokens(); packed.keys = k_rows.tokens();
  packed.distances = distances; packed.origin = longest - 1; packed.tiles = u32(q_rows.tiles.size()); packed.sums = q_rows.sums;
  run(packed, c, number, true);
  run(packed, c, number, false);
  for (auto* t : {&o, &d_q, &d_k, &d_v}) if (!t->memory.intact()) return "a write outside of an output";

  std::vector<double> want_bias(bias.size());
  for (u32 s = 0; s + 1 < queries.size(); s++) {
    u32 nq = queries[s], nk = keys[s], first_q = u32(q_rows.offsets[s]), first_k = u32(k_rows.offsets[s]);
    if (nq == 0 || nk == 0) continue;
    Array sq(c, nq, 0), sk(c.of_keys(), nk, 0), sv(c.of_keys(), nk, 0), sd_o(c, nq, 0), so(c, nq, 0), sd_q(c, nq, 0), sd_k(c, nk, 0), sd_v(c, nk, 0);
    auto copy = [&](Array& to, const Array& from, u32 first) {
      to.each([&](u32, u32 h, u32 l, u32 d) { to.bits(0, h, l, d) = from.bits(0, h, first + l, d); });
    };
    copy(sq, q, first_q); copy(sd_o, d_o, first_q); copy(sk, k, first_k); copy(sv, v, first_k);
    u32 own = nq + nk - 1;
    Floats s_bias(c.heads * own), s_d_bias(c.heads * own), s_lse(c.heads * nq), s_rows(2 * c.heads * nq);
    Floats s_sums(c.heads * blocks(nq, 128) * u32(BiasGradient::positions(int(nk))));
    auto at = [&](u32 h, u32 i) { return h * distances + i + longest - nq; };
    for (u32 h = 0; h < c.heads; h++) for (u32 i = 0; i < own; i++) s_bias.data()[h * own + i] = bias.data()[at(h, i)];
    AttentionArguments alone = a;
    alone.q = sq.view; alone.k = sk.view; alone.v = sv.view; alone.o = so.view; alone.d_o = sd_o.view;
    alone.d_q = sd_q.view; alone.d_k = sd_k.view; alone.d_v = sd_v.view;
    alone.lse = s_lse.data(); alone.rows = reinterpret_cast<RowSums*>(s_rows.data());
    alone.bias = c.bias ? s_bias.data() : nullptr; alone.d_bias_blocks = s_sums.data(); alone.d_bias = s_d_bias.data();
    alone.batch = 1; alone.queries = nq; alone.keys = nk; alone.distances = own; alone.origin = nq - 1;
    alone.dropout.first_sample += s;
    run(alone, c, number, true);
    run(alone, c, number, false);
    std::string problem;
    auto same = [&](Array& mine, const Array& all, u32 first, const char* name) {
      mine.each([&](u32, u32 h, u32 l, u32 d) {
        if (mine.bits(0, h, l, d) != all.bits(0, h, first + l, d)) problem = std::string(name) + " is not that of the sample alone";
      });
    };
    same(so, o, first_q, "o"); same(sd_q, d_q, first_q, "d_q"); same(sd_k, d_k, first_k, "d_k"); same(sd_v, d_v, first_k, "d_v");
    if (!problem.empty()) return problem;
    if (c.bias) for (u32 h = 0; h < c.heads; h++) for (u32 i = 0; i < own; i++) want_bias[at(h, i)] += s_d_bias.data()[h * own + i];
  }
  for (size_t i = 0; c.bias && i < want_bias.size(); i++) {
    if (!(std::abs(d_bias.data()[i] - want_bias[i]) <= 1e-4 * (1 + std::abs(want_bias[i])))) return "the gradient of the bias is not the sum of the samples'";
  }
  // The spare rows are zeros.
  auto zero = [](const Array& t, u32 first) {
    for (u32 h = 0; h < t.heads; h++) for (u32 l = first; l < t.length; l++) for (u32 d = 0; d < t.width; d++) if (t.get(0, h, l, d) != 0) return false;
    return true;
  };
  u32 spare_q = u32(q_rows.offsets[queries.size() - 1]), spare_k = u32(k_rows.offsets[keys.size() - 1]);
  if (!zero(o, spare_q) || !zero(d_q, spare_q) || !zero(d_k, spare_k) || !zero(d_v, spare_k)) return "a spare row is not zero";
  return "";
}

// Lengths of samples, the spare one last: like ones, ragged ones, one long among short ones, empty ones.
std::vector<std::vector<u32>> packings() {
  return {{3, 1, 0}, {160, 160, 7}, {200, 30, 17, 1, 129, 0, 5, 40}, {1, 1, 2, 300, 3, 1, 130}, {64, 0, 0, 128, 0, 9}};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const u32 widths[] = {64, 32, 128, 80, 24, 96, 8};
  const std::pair<u32, u32> lengths[] = {{1, 1}, {17, 33}, {64, 64}, {129, 67}, {31, 200}, {200, 31}, {128, 128}, {1, 130}, {133, 1}, {65, 129}, {160, 160}, {7, 5}};
  unsigned n = 0;
  for (auto width : widths)
    for (auto [queries, keys] : lengths) {
      n++;
      Case c{};
      c.batch = 1 + n % 2;
      c.heads = 1 + n / 2 % 2;
      c.queries = queries;
      c.keys = keys;
      c.width = width;
      c.half = n % 3 == 1;
      c.causal = n % 5 < 2;
      c.bias = n % 4 < 2;
      c.ragged = c.batch == 2 && n % 3 != 0;
      c.share = n / 2 % 3 == 0 ? 0 : n % 7 == 0 ? 0.5 : 0.1;
      c.layout = int(n % 4);
      all.push_back(c);
    }
  // All features at once, and a batch with short samples.
  for (bool half : {false, true})
    for (u32 width : {64u, 128u}) all.push_back({3, 1, 97, 161, width, half, false, true, true, 0.1, 3});
  all.push_back({1, 1, 260, 260, 64, false, true, true, false, 0.1, 3});
  all.push_back({1, 2, 150, 150, 64, false, true, true, true, 0, 0});
  // Grouped heads.
  for (u32 shared : {2u, 4u}) {
    for (u32 width : {64u, 128u}) all.push_back({2, 4, 70, 133, width, shared == 2, true, false, false, width == 64 ? 0.1 : 0, 3, shared});
  }
  std::mt19937 random(20);
  for (int i = 0; i < 120; i++) {
    auto below = [&](u32 n) { return u32(random() % n); };
    u32 queries = 1 + below(200), keys = below(3) ? 1 + below(200) : queries;
    all.push_back({1 + below(3), 1 + below(2), queries, keys, widths[below(7)], below(3) == 0, below(2) == 0, below(2) == 0, below(2) == 0,
                   below(2) ? 0.1 : 0.0, int(below(4))});
  }
  return all;
}

}  // namespace

int main(int count, char** arguments) {
  unsigned part = count > 2 ? unsigned(atoi(arguments[1])) : 0, parts = count > 2 ? unsigned(atoi(arguments[2])) : 1;
  unsigned number = 0, failed = 0, run_cases = 0;
  Worst bf16, f16;
  for (const auto& c : cases()) {
    unsigned mine = number++;
    if (mine % parts != part) continue;
    auto [w, problem] = check(c, mine);
    run_cases++;
    Worst& worst = c.half ? f16 : bf16;
    for (auto field : {&Worst::o, &Worst::lse, &Worst::d_q, &Worst::d_k, &Worst::d_v, &Worst::d_bias}) {
      worst.*field = std::max(worst.*field, w.*field);
    }
    if (!problem.empty() || getenv("VERBOSE")) {
      printf("%-60s o %.1e lse %.1e dq %.1e dk %.1e dv %.1e dbias %.1e  %s\n", c.name().c_str(), w.o, w.lse, w.d_q, w.d_k, w.d_v,
             w.d_bias, problem.c_str());
      fflush(stdout);
    }
    failed += !problem.empty();
  }
  for (Case c : {Case{2, 2, 50, 75, 64, false, false, false, false, 0.1, 0}, Case{1, 2, 130, 40, 32, true, true, false, false, 0.3, 0},
                 Case{1, 1, 33, 140, 128, false, false, false, false, 0.5, 0}}) {
    unsigned mine = number++;
    if (mine % parts != part) continue;
    run_cases++;
    auto problem = check_dropped(c, mine);
    if (!problem.empty()) printf("%-60s %s\n", c.name().c_str(), problem.c_str());
    failed += !problem.empty();
  }
  for (auto lengths : packings())
    for (u32 width : {64u, 32u, 128u})
      for (int variant = 0; variant < 4; variant++) {
        unsigned mine = number++;
        if (mine % parts != part) continue;
        run_cases++;
        // With a bias or causal: attention to itself. Else the keys are those of other texts.
        Case c{1, 2, 0, 0, width, variant == 1, variant == 2, variant == 0 || variant == 2, false, variant < 3 ? 0.1 : 0.0, 0, variant == 2 ? 2u : 1u};
        auto keys = lengths;
        if (variant == 1 || variant == 3) std::rotate(keys.begin(), keys.begin() + 1, keys.end() - 1);
        auto problem = check_packed(c, lengths, keys, mine);
        if (!problem.empty()) printf("packed, %zu samples, %s: %s\n", lengths.size(), c.name().c_str(), problem.c_str());
        failed += !problem.empty();
      }
  for (auto [name, w] : {std::pair{"bf16", bf16}, {"f16", f16}}) {
    printf("%-5s largest errors: o %.1e  lse %.1e  dq %.1e  dk %.1e  dv %.1e  dbias %.1e\n", name, w.o, w.lse, w.d_q, w.d_k, w.d_v, w.d_bias);
  }
  printf("%u cases, %u failed\n", run_cases, failed);
  return failed != 0;
}
