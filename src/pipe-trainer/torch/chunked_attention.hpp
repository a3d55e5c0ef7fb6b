// Attention of which nothing as large as its weights is kept: they are computed a few samples at a time, and once more for the gradient. For
// what has no kernel of its own: the CPU, fp32, wide heads.

#pragma once

#include "functions.hpp"

struct ChunkedAttention : torch::autograd::Function<ChunkedAttention> {
  // Bytes of the weights that exist at a time, in fp32. On the CPU few enough for the cache, and for memory that is not given back
  // to the kernel and fetched again each time.
  static constexpr int64_t CHUNK = 64 << 20, CPU_CHUNK = 512 << 10;

  // Everything about some of the samples.
  struct Chunk {
    int64_t start, count;
    Tensor q, k, v, bias;
    Dropped dropped;

    Chunk(int64_t start, int64_t count, at::ArrayRef<Tensor> all, const Dropped& of_all) : start(start), count(count), dropped(of_all) {
      q = of(all[0]);
      k = of(all[1]);
      v = of(all[2]);
      if (all[3].defined()) bias = all[3].size(0) == 1 ? all[3] : of(all[3]);
      dropped.first_sample += uint32_t(start);
    }

    Tensor of(const Tensor& t) const { return t.narrow(0, start, count); }

    // In fp32, before anything is dropped.
    Tensor weights(double scale, const Tensor& later) const {
      // Scaled before it is rounded: fp16 ends at 65504. On the CPU products in fp32 are the faster ones.
      auto wide = q.is_cuda() ? q : q.to(at::kFloat);
      auto scores = at::matmul(wide * scale, k.to(wide.scalar_type()).transpose(2, 3)).to(at::kFloat);
      if (bias.defined()) scores.add_(bias);
      if (later.defined()) scores.masked_fill_(later, -std::numeric_limits<float>::infinity());
      return at::_softmax(scores, -1, false);
    }
  };

  static int64_t samples_at_a_time(const Tensor& q, const Tensor& k) {
    int64_t bytes = q.is_cuda() ? CHUNK : CPU_CHUNK * at::get_num_threads();
    return std::max<int64_t>(1, bytes / std::max<int64_t>(1, 4 * q.size(1) * q.size(2) * k.size(2)));
  }

  static Tensor later(bool causal, const Tensor& q, const Tensor& k) {
    if (!causal) return Tensor();
    return at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu_(1 + k.size(2) - q.size(2));
  }

  // Of [samples, heads, length, width], as merging the heads wants it.
  static Tensor merged_like(const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  }

  static Tensor forward(AutogradContext* ctx, Tensor q, Tensor k, Tensor v, Optional added, bool causal, double scale, Dropped dropped) {
    auto bias = added.value_or(Tensor());
    ctx->save_for_backward({q, k, v, bias});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["bias"] = bias.defined() && bias.requires_grad();
    keep(ctx, dropped);
    auto hidden = later(causal, q, k), out = merged_like(q);
    auto most = samples_at_a_time(q, k);
    for (int64_t start = 0; start < q.size(0); start += most) {
      Chunk chunk(start, std::min(most, q.size(0) - start), {q, k, v, bias}, dropped);
      auto weights = drop_weights(chunk.weights(scale, hidden).to(q.scalar_type()), chunk.dropped);
      chunk.of(out).copy_(at::matmul(weights, chunk.v));
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3];
    auto scale = ctx->saved_data["scale"].toDouble();
    auto hidden = later(ctx->saved_data["causal"].toBool(), q, k);
    auto d_q = merged_like(q), d_k = merged_like(k), d_v = merged_like(v);
    // What is added up is added up in fp32.
    auto d_bias = !ctx->saved_data["bias"].toBool() ? Tensor() : bias.size(0) == 1 ? at::zeros_like(bias, at::kFloat) : at::empty_like(bias);
    auto most = samples_at_a_time(q, k);
    for (int64_t start = 0; start < q.size(0); start += most) {
      Chunk chunk(start, std::min(most, q.size(0) - start), {q, k, v, bias}, kept(ctx));
      auto d_out = chunk.of(gradients[0]);
      auto weights = chunk.weights(scale, hidden);
      chunk.of(d_v).copy_(at::matmul(drop_weights(weights.to(q.scalar_type()), chunk.dropped).transpose(2, 3), d_out));
      auto d_weights = drop_weights(at::matmul(d_out, chunk.v.transpose(2, 3)), chunk.dropped).to(at::kFloat);
      auto d_scores = at::_softmax_backward_data(d_weights, weights, -1, at::kFloat);
      d_weights.reset();
      weights.reset();
      if (d_bias.defined()) {
        if (d_bias.size(0) == 1) {
          d_bias.add_(d_scores.sum_to_size(d_bias.sizes()));
        } else {
          chunk.of(d_bias).copy_(d_scores.sum_to_size(chunk.of(d_bias).sizes()));
        }
      }
      auto narrow = d_scores.to(q.scalar_type());
      chunk.of(d_q).copy_(at::matmul(narrow, chunk.k).mul_(scale));
      chunk.of(d_k).copy_(at::matmul(narrow.transpose(2, 3), chunk.q).mul_(scale));
    }
    if (d_bias.defined()) d_bias = d_bias.to(bias.scalar_type());
    return {d_q, d_k, d_v, d_bias, Tensor(), Tensor(), Tensor()};
  }
};
