// Attention with the kernels of attention.cu: no scores are kept, and the bias goes by distance instead of by query and key.

#pragma once

#include "cuda.hpp"
#include "functions.hpp"

namespace attention {

// --- Arguments, as in attention.cu -----------------------------------------------------------------------------------------

struct DropoutOfWeights {
  uint64_t key;
  uint32_t threshold;
  float kept;
  uint32_t first_sample;
  uint64_t place;

  explicit DropoutOfWeights(const Dropped& dropped) {
    auto of = Dropout::of(dropped, {1, 1});
    key = of.key;
    threshold = of.threshold;
    kept = of.kept;
    first_sample = of.first_sample;
    place = of.place;
  }
};

// [batch, heads, length, width]
struct View {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;

  View() = default;
  explicit View(const Tensor& t) : data(t.data_ptr()), batch(t.stride(0)), head(t.stride(1)), row(t.stride(2)) {}
};

struct Arguments {
  View q, k, v, o, d_o, d_q, d_k, d_v;
  const void *bias = nullptr, *lengths = nullptr;
  void *lse = nullptr, *rows = nullptr, *d_bias_blocks = nullptr, *d_bias = nullptr;
  const void *q_offsets = nullptr, *k_offsets = nullptr, *q_tiles = nullptr, *k_tiles = nullptr;
  uint32_t batch, heads, queries, keys, width, distances, origin, tiles, sums, is_causal;
  float scale;
  uint32_t shared;
  DropoutOfWeights dropout{Dropped{}};
};
static_assert(sizeof(Arguments) == 416, "as in attention.cu");

// Where the rows of samples are, for queries and for keys: undefined where samples are rows of a rectangle.
struct Packing {
  Tensor q_offsets, q_tiles, k_offsets, k_tiles;

  bool is_packed() const { return q_offsets.defined(); }

  void check() const {
    for (const auto& t : {q_offsets, q_tiles, k_offsets, k_tiles}) {
      TORCH_CHECK(t.defined() && t.is_contiguous() && t.scalar_type() == at::kInt, "attention: offsets and tiles are not int32 in one piece");
    }
    TORCH_CHECK(q_offsets.numel() == k_offsets.numel() && q_offsets.numel() > 1, "attention: queries and keys of other samples");
    TORCH_CHECK(q_tiles.size(-1) == 4 && k_tiles.size(-1) == 4, "attention: tiles are not [tiles, 4]");
  }
};

// --- Kernels for a shape, with their grids ---------------------------------------------------------------------------------------

inline int64_t blocks(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

struct Kernels {
  // A tile has as many rows as a block takes queries.
  static constexpr int64_t THREADS = kernels::Attention::THREADS, QUERIES = kernels::Attention::QUERIES, ROWS = 8;

  Kernels(const Arguments& a, int64_t key_tiles, at::Device device, at::ScalarType type)
      : a(a), key_tiles(key_tiles), device(device), of{cuda::type_of(type), a.width, a.bias != nullptr, a.dropout.threshold != 0} {}

  void forward() const { launch(of.forward(), query_blocks()); }

  void backward() const {
    launch(of.rows(), blocks(a.queries, ROWS));
    launch(of.of_keys(), a.k_tiles ? key_tiles * (QUERIES / of.keys()) : blocks(a.keys, of.keys()));
    launch(of.of_queries(), query_blocks());
    if (a.bias) cuda::launch_grid(device, of.bias_sum(), {blocks(a.distances, THREADS), a.heads, 1}, a);
  }

  // Of d_bias_blocks: [batch, heads, blocks of queries, positions], packed [heads, sums]. That is about 1/64 of all scores in bf16.
  static std::vector<int64_t> bias_blocks(const Arguments& a) {
    if (a.q_tiles) return {a.heads, a.sums};
    return {a.batch, a.heads, blocks(a.queries, QUERIES), blocks(a.keys, 32) * 32 + QUERIES};
  }

  // The sums of all tiles of packed queries: each has as many as its sample has keys, and up to 160 more.
  static int64_t most_sums(int64_t tokens, int64_t longest, int64_t samples) {
    return (longest + 288) * tokens / QUERIES + 160 * samples + 1;
  }

  int64_t query_blocks() const { return a.q_tiles ? a.tiles : blocks(a.queries, QUERIES); }

  void launch(const kernels::Kernel& kernel, int64_t x) const {
    cuda::launch_grid(device, kernel, {x, a.heads, a.q_tiles ? 1 : a.batch}, a);
  }

  const Arguments& a;
  int64_t key_tiles;
  at::Device device;
  kernels::Attention of;
};

// Whether kernels can read rows in pieces of 16 bytes.
inline bool fits(const Tensor& t) {
  bool aligned = reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0 && (t.stride(3) == 1 || t.size(3) == 1);
  for (int64_t d = 0; d < 3; d++) aligned = aligned && (t.size(d) == 1 || t.stride(d) % 8 == 0);
  return aligned;
}

inline Tensor fitting(const Tensor& t) {
  return fits(t) ? t : t.clone(at::MemoryFormat::Contiguous);
}

// [batch, length, heads, width] in memory. Where some of them are slices of one tensor so are their gradients, one beside the other: a product that
// gave them all takes them back as they are.
inline std::vector<Tensor> gradients_like(at::ArrayRef<Tensor> all) {
  std::vector<Tensor> made;
  for (size_t first = 0, end; first < all.size(); first = end) {
    const auto& t = all[first];
    for (end = first + 1; end < all.size() && all[end].is_alias_of(t) && all[end].sizes() == t.sizes();) end++;
    auto room = at::empty({t.size(0), t.size(2), int64_t(end - first), t.size(1), t.size(3)}, t.options());
    for (size_t i = first; i < end; i++) made.push_back(room.select(2, int64_t(i - first)).transpose(1, 2));
  }
  return made;
}

inline Arguments arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor& lengths, const Packing& packing,
                           bool is_causal, double scale, const Dropped& dropped) {
  Arguments a{};
  a.q = View(q);
  a.k = View(k);
  a.v = View(v);
  if (bias.defined()) a.bias = bias.data_ptr();
  if (lengths.defined()) a.lengths = lengths.data_ptr();
  a.batch = q.size(0);
  a.heads = q.size(1);
  a.queries = q.size(2);
  a.keys = k.size(2);
  a.width = q.size(3);
  a.distances = bias.defined() ? bias.size(1) : 0;
  a.origin = a.queries - 1;
  if (packing.is_packed()) {
    a.q_offsets = packing.q_offsets.data_ptr();
    a.k_offsets = packing.k_offsets.data_ptr();
    a.q_tiles = packing.q_tiles.data_ptr();
    a.k_tiles = packing.k_tiles.data_ptr();
    a.batch = packing.q_offsets.numel() - 1;
    a.tiles = packing.q_tiles.size(0);
    a.origin = (a.distances - 1) / 2;
    a.sums = Kernels::most_sums(a.queries, a.origin + 1, a.batch);
  }
  a.is_causal = is_causal;
  a.scale = float(scale);
  a.shared = a.heads / uint32_t(k.size(1));
  a.dropout = DropoutOfWeights(dropped);
  return a;
}

// The same for queries, keys and values. Heads of queries that share keys and values each have gradients of their own for these.
inline std::vector<Tensor> gradients_of(const Tensor& q, const Tensor& k, const Tensor& v, uint32_t shared) {
  if (shared == 1) return gradients_like({q, k, v});
  auto of_keys = [&] { return at::empty({k.size(0), k.size(2), q.size(1), k.size(3)}, k.options()).transpose(1, 2); };
  return {gradients_like({q})[0], of_keys(), of_keys()};
}

// The gradients of keys or values that several heads of queries share, from those of each of these heads.
inline Tensor shared_sum(const Tensor& each, uint32_t shared) {
  if (shared == 1) return each;
  auto rows = each.transpose(1, 2);
  return rows.view({rows.size(0), rows.size(1), rows.size(2) / shared, shared, rows.size(3)}).sum(3).transpose(1, 2);
}

}  // namespace attention

// q [batch, heads, queries, width], k and v [batch, heads, keys, width], or a part of the heads, each for as many heads of queries; bias fp32 [heads, queries + keys - 1], at
// key - query + queries - 1; lengths int32 [batch]. Gives [batch, queries, heads, width]; the gradients of q, k and v have this
// layout too. A query that sees no key gives 0.
// Where samples are packed the batch is 1, offsets say where each sample begins, and the bias is [heads, 2 * longest - 1], at
// key - query + longest - 1.
struct Attention : torch::autograd::Function<Attention> {
  static bool has(c10::Device device) { return cuda::capability(device) >= kernels::ATTENTION_SINCE; }

  // Whether there is a kernel for such tensors.
  static bool fits(const Tensor& q, const Tensor& k, const Tensor& v) {
    auto type = q.scalar_type();
    auto width = q.size(-1);
    return q.is_cuda() && q.dim() == 4 && (type == at::kBFloat16 || type == at::kHalf) && k.scalar_type() == type &&
           v.scalar_type() == type && k.sizes() == v.sizes() && k.size(-1) == width && q.size(1) % k.size(1) == 0 && width % 8 == 0 && width <= kernels::WIDEST_HEAD &&
           q.size(0) <= 65535 && q.size(1) <= 65535 && q.numel() > 0 && k.numel() > 0 && has(q.device());
  }

  static Tensor forward(AutogradContext* ctx, Tensor q, Tensor k, Tensor v, Optional added, Optional ends, Optional q_offsets, Optional q_tiles,
                        Optional k_offsets, Optional k_tiles, bool is_causal, double scale, Dropped dropped) {
    auto of = [](const Optional& t) { return t.value_or(Tensor()); };
    auto bias = of(added), lengths = of(ends);
    attention::Packing packing{of(q_offsets), of(q_tiles), of(k_offsets), of(k_tiles)};
    if (packing.is_packed()) {
      packing.check();
      TORCH_CHECK(q.size(0) == 1 && !lengths.defined(), "attention: packed samples are one row");
    }
    TORCH_CHECK(q.size(0) == k.size(0) && q.size(1) % k.size(1) == 0, "attention: queries and keys of other sizes");
    if (bias.defined()) {
      TORCH_CHECK(bias.dim() == 2 && bias.size(0) == q.size(1) && (packing.is_packed() || bias.size(1) == q.size(2) + k.size(2) - 1),
                  "attention: the bias is not [heads, queries + keys - 1]");
      ctx->saved_data["bias_type"] = int64_t(bias.scalar_type());
      bias = bias.to(at::kFloat).contiguous();
    }
    if (lengths.defined()) {
      TORCH_CHECK(lengths.numel() == q.size(0), "attention: there is not one length for each sample");
      lengths = lengths.to(q.device(), at::kInt).contiguous();
    }
    q = attention::fitting(q);
    k = attention::fitting(k);
    v = attention::fitting(v);
    auto a = attention::arguments(q, k, v, bias, lengths, packing, is_causal, scale, dropped);
    auto o = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options());
    auto lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    a.o = attention::View(o.transpose(1, 2));
    a.lse = lse.data_ptr();
    attention::Kernels(a, key_tiles(packing), q.device(), q.scalar_type()).forward();
    ctx->save_for_backward({q, k, v, bias, lengths, o, lse, packing.q_offsets, packing.q_tiles, packing.k_offsets, packing.k_tiles});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["is_causal"] = is_causal;
    keep(ctx, dropped);
    return o;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3], &lengths = saved[4], &o = saved[5], &lse = saved[6];
    attention::Packing packing{saved[7], saved[8], saved[9], saved[10]};
    auto a = attention::arguments(q, k, v, bias, lengths, packing, ctx->saved_data["is_causal"].toBool(), ctx->saved_data["scale"].toDouble(), kept(ctx));
    auto d_o = attention::fitting(gradients[0].to(q.scalar_type()).transpose(1, 2));
    auto made = attention::gradients_of(q, k, v, a.shared);
    auto &d_q = made[0], &d_k = made[1], &d_v = made[2];
    auto rows = at::empty({lse.numel(), 2}, lse.options());
    a.o = attention::View(o.transpose(1, 2));
    a.d_o = attention::View(d_o);
    a.d_q = attention::View(d_q);
    a.d_k = attention::View(d_k);
    a.d_v = attention::View(d_v);
    a.lse = lse.data_ptr();
    a.rows = rows.data_ptr();
    Tensor d_bias, d_bias_blocks;
    if (bias.defined()) {
      d_bias = at::empty_like(bias);
      d_bias_blocks = at::empty(attention::Kernels::bias_blocks(a), lse.options());
      a.d_bias = d_bias.data_ptr();
      a.d_bias_blocks = d_bias_blocks.data_ptr();
    }
    attention::Kernels(a, key_tiles(packing), q.device(), q.scalar_type()).backward();
    if (bias.defined()) d_bias = d_bias.to(at::ScalarType(ctx->saved_data["bias_type"].toInt()));
    return {d_q, attention::shared_sum(d_k, a.shared), attention::shared_sum(d_v, a.shared), d_bias, Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }

  static int64_t key_tiles(const attention::Packing& packing) { return packing.is_packed() ? packing.k_tiles.size(0) : 0; }
};
