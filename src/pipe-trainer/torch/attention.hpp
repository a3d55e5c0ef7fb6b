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
  uint32_t batch, heads, queries, keys, width, is_causal;
  float scale;
  DropoutOfWeights dropout{Dropped{}};
};
static_assert(sizeof(Arguments) == 368, "as in attention.cu");

// --- Kernels for a shape, with their grids and shared memory --------------------------------------------------------------------

inline int64_t blocks(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

struct Kernels {
  static constexpr int64_t THREADS = 128, QUERIES = 128;

  Kernels(const Arguments& a, at::Device device, at::ScalarType type) : a(a), device(device), type(cuda::type_name(type)) {
    padded = (a.width + 31) / 32 * 32;
    pitch = 2 * (padded + 8);
    auto flag = [](bool on) { return on ? "true" : "false"; };
    variant = "<" + this->type + ", " + std::to_string(padded) + ", " + flag(a.bias) + ", " + flag(a.dropout.threshold) + ">";
  }

  void forward() const {
    int64_t keys = padded <= 64 ? 64 : 32;
    int64_t shared = 4 * keys * pitch + (padded <= 64 ? 0 : QUERIES * pitch) + 2 * (QUERIES + keys) * 4;
    launch("attention_forward" + variant, blocks(a.queries, QUERIES), shared);
  }

  void backward() const {
    launch("attention_backward_rows<" + type + ">", blocks(a.queries, 8), 0);
    int64_t keys = padded <= 64 ? 128 : 64;
    int64_t of_keys = 2 * keys * pitch + 2 * (2 * 32 * pitch + 2 * 32 * 4) + 2 * (32 + keys) * 4;
    launch("attention_backward_keys" + variant, blocks(a.keys, keys), of_keys);
    int64_t of_queries = 2 * QUERIES * pitch + (padded <= 96 ? 4 : 2) * 32 * pitch;
    if (a.bias) of_queries += (2 * (QUERIES + 32) + 4 * 8 * 72 + 4 * 2 * 32) * 4;
    launch("attention_backward_queries" + variant, blocks(a.queries, QUERIES), of_queries);
    if (a.bias) {
      cuda::launch_grid(device, "attention_bias_sum", {blocks(a.queries + a.keys - 1, THREADS), a.heads, 1}, THREADS, 0, a);
    }
  }

  // Of d_bias_blocks: [batch, heads, blocks of queries, positions]. That is about 1/64 of all scores in bf16.
  static std::vector<int64_t> bias_blocks(const Arguments& a) {
    return {a.batch, a.heads, blocks(a.queries, QUERIES), blocks(a.keys, 32) * 32 + QUERIES};
  }

  void launch(const std::string& name, int64_t x, int64_t shared) const {
    cuda::launch_grid(device, name, {x, a.heads, a.batch}, THREADS, unsigned(shared), a);
  }

  const Arguments& a;
  at::Device device;
  std::string type, variant;
  int64_t padded, pitch;
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

inline Arguments arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor& lengths, bool is_causal,
                           double scale, const Dropped& dropped) {
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
  a.is_causal = is_causal;
  a.scale = float(scale);
  a.dropout = DropoutOfWeights(dropped);
  return a;
}

}  // namespace attention

// q [batch, heads, queries, width], k and v [batch, heads, keys, width]; bias fp32 [heads, queries + keys - 1], at
// key - query + queries - 1; lengths int32 [batch]. Gives [batch, queries, heads, width]; the gradients of q, k and v have this
// layout too. A query that sees no key gives 0.
struct Attention : torch::autograd::Function<Attention> {
  static bool has(c10::Device device) { return cuda::capability(device) >= 80; }

  // Whether there is a kernel for such tensors.
  static bool fits(const Tensor& q, const Tensor& k, const Tensor& v) {
    auto type = q.scalar_type();
    auto width = q.size(-1);
    return q.is_cuda() && q.dim() == 4 && (type == at::kBFloat16 || type == at::kHalf) && k.scalar_type() == type &&
           v.scalar_type() == type && k.sizes() == v.sizes() && k.size(-1) == width && width % 8 == 0 && width <= 128 &&
           q.size(0) <= 65535 && q.size(1) <= 65535 && q.numel() > 0 && k.numel() > 0 && has(q.device());
  }

  static Tensor forward(AutogradContext* ctx, Tensor q, Tensor k, Tensor v, Optional added, Optional ends, bool is_causal,
                        double scale, Dropped dropped) {
    auto bias = added.value_or(Tensor()), lengths = ends.value_or(Tensor());
    TORCH_CHECK(q.size(0) == k.size(0) && q.size(1) == k.size(1), "attention: queries and keys of other sizes");
    if (bias.defined()) {
      TORCH_CHECK(bias.dim() == 2 && bias.size(0) == q.size(1) && bias.size(1) == q.size(2) + k.size(2) - 1,
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
    auto a = attention::arguments(q, k, v, bias, lengths, is_causal, scale, dropped);
    auto o = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options());
    auto lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    a.o = attention::View(o.transpose(1, 2));
    a.lse = lse.data_ptr();
    attention::Kernels(a, q.device(), q.scalar_type()).forward();
    ctx->save_for_backward({q, k, v, bias, lengths, o, lse});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["is_causal"] = is_causal;
    keep(ctx, dropped);
    return o;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3], &lengths = saved[4], &o = saved[5], &lse = saved[6];
    auto a = attention::arguments(q, k, v, bias, lengths, ctx->saved_data["is_causal"].toBool(), ctx->saved_data["scale"].toDouble(), kept(ctx));
    auto d_o = attention::fitting(gradients[0].to(q.scalar_type()).transpose(1, 2));
    // [batch, length, heads, width] in memory.
    auto like = [](const Tensor& t) { return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2); };
    auto d_q = like(q), d_k = like(k), d_v = like(v), rows = at::empty({lse.numel(), 2}, lse.options());
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
    attention::Kernels(a, q.device(), q.scalar_type()).backward();
    if (bias.defined()) d_bias = d_bias.to(at::ScalarType(ctx->saved_data["bias_type"].toInt()));
    return {d_q, d_k, d_v, d_bias, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};
