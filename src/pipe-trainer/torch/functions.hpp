// Functions with gradients of their own, so that less is kept for the backward pass and less is moved.

#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cuda.hpp"
#include "dropout.hpp"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<Tensor>;

inline void keep(AutogradContext* ctx, const Dropped& dropped) {
  ctx->saved_data["share"] = dropped.share;
  ctx->saved_data["key"] = int64_t(dropped.key);
  ctx->saved_data["first_sample"] = int64_t(dropped.first_sample);
  ctx->saved_data["place"] = int64_t(dropped.place);
  ctx->saved_data["tokens"] = int64_t(dropped.tokens);
}

inline Dropped kept(AutogradContext* ctx) {
  auto number = [&](const char* name) { return ctx->saved_data[name].toInt(); };
  return {ctx->saved_data["share"].toDouble(), uint64_t(number("key")), uint32_t(number("first_sample")), uint64_t(number("place")),
          uint64_t(number("tokens"))};
}

// Whether nobody else has its memory.
inline bool is_alone(const Tensor& t) {
  return t.use_count() == 1 && t.storage().use_count() == 1;
}

// --- residual + dropped in ------------------------------------------------------------------------------------------------

inline Tensor drop_add(const Tensor& in, const Tensor& residual, at::ScalarType out_type, const Dropped& dropped) {
  auto dropout = Dropout::of(dropped, in.sizes());
  if (!in.is_cuda()) {
    auto out = dropout::rows_on_cpu(in, dropout).to(out_type);
    return residual.defined() ? out.add_(residual) : out;
  }
  auto x = cuda::fitting(in);
  auto r = residual.defined() ? cuda::fitting(residual) : Tensor();
  auto out = at::empty(x.sizes(), x.options().dtype(out_type));
  auto kernel = kernels::drop_add(cuda::type_of(x.scalar_type()), cuda::type_of(out_type));
  const void *px = x.data_ptr(), *pr = r.defined() ? r.data_ptr() : nullptr;
  cuda::launch(x.device(), kernel, cuda::blocks_for(x.numel(), kernel.threads), px, pr, out.data_ptr(), uint64_t(x.numel()), dropout);
  return out;
}

struct DropAdd : torch::autograd::Function<DropAdd> {
  static Tensor forward(AutogradContext* ctx, Tensor in, Optional added, Dropped dropped) {
    auto residual = added.value_or(Tensor());
    keep(ctx, dropped);
    ctx->saved_data["type"] = int64_t(in.scalar_type());
    ctx->saved_data["adds"] = residual.defined();
    auto type = residual.defined() ? residual.scalar_type() : in.scalar_type();
    return drop_add(in, residual, type, dropped);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto dropped = kept(ctx);
    auto type = at::ScalarType(ctx->saved_data["type"].toInt());
    auto d_in = dropped.share == 0 && gradients[0].scalar_type() == type ? gradients[0] : drop_add(gradients[0], Tensor(), type, dropped);
    return {d_in, ctx->saved_data["adds"].toBool() ? gradients[0] : Tensor(), Tensor()};
  }
};

// --- Some of the weights of attention -------------------------------------------------------------------------------------

// `in` is [samples, heads, queries, keys]. No gradient of its own: its caller has one.
inline Tensor drop_weights(const Tensor& in, const Dropped& dropped) {
  auto dropout = Dropout::of(dropped, in.sizes());
  if (dropout.threshold == 0) return in;
  if (!in.is_cuda()) return dropout::weights_on_cpu(in, dropout);
  auto x = in.contiguous(), out = at::empty_like(x);
  uint32_t heads = x.size(1), queries = x.size(2), keys = x.size(3);
  auto tiles = uint64_t(x.size(0)) * heads * ((queries + 15) / 16) * ((keys + 15) / 16);
  const void* px = x.data_ptr();
  auto blocks = std::max<int64_t>(1, std::min<int64_t>((tiles + 7) / 8, 16384));
  cuda::launch(x.device(), kernels::drop_weights(cuda::type_of(x.scalar_type())), blocks, px, out.data_ptr(), heads, queries, keys, tiles, dropout);
  return out;
}

// --- Rows in another order ------------------------------------------------------------------------------------------------

// Row i is row `from[i]` of `in`, [rows, width]. Row i of the gradient is row `back[i]`, or zero where `lost[i]`: a row of `in` that stands in
// several places counts in one of them. As a gradient of torch's own, all of them would be added up by many threads.
struct SelectRows : torch::autograd::Function<SelectRows> {
  static Tensor forward(AutogradContext* ctx, Tensor in, Tensor from, Tensor back, Tensor lost) {
    ctx->save_for_backward({back, lost});
    return in.index_select(0, from);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto d_in = gradients[0].index_select(0, saved[0]).masked_fill_(saved[1].unsqueeze(1), 0);
    return {d_in, Tensor(), Tensor(), Tensor()};
  }
};

// --- Sums of columns -----------------------------------------------------------------------------------------------------

// The columns of `in` [rows, width], or of each of some such matrices, in fp32, added up in `type`.
inline Tensor sum_rows(const Tensor& in, at::ScalarType type) {
  auto sizes = in.sizes().vec();
  sizes.erase(sizes.end() - 2);
  auto out = at::empty(sizes, in.options().dtype(type));
  int64_t rows = in.size(-2), width = in.size(-1);
  if (out.numel() == 0) return out;
  cuda::Grid grid{(width + kernels::SUM_COLUMNS - 1) / kernels::SUM_COLUMNS, out.numel() / width, 1};
  const void* pi = in.data_ptr();
  cuda::launch_grid(in.device(), kernels::sum_rows(cuda::type_of(type)), grid, pi, out.data_ptr(), uint32_t(rows), uint32_t(width));
  return out;
}

// The columns of `in` [rows, width], of any kind, added up in fp32.
inline Tensor sum_of_rows(const Tensor& in, at::ScalarType type) {
  int64_t rows = in.size(0), width = in.size(1);
  if (!in.is_cuda() || !cuda::fits(in) || width % 8 || in.numel() == 0) return in.sum(0, false, at::kFloat).to(type);
  auto columns = (width + kernels::SOME_COLUMNS - 1) / kernels::SOME_COLUMNS;
  // Some blocks for each multiprocessor.
  auto parts = std::max<int64_t>(1, std::min((rows + 7) / 8, 528 / columns));
  auto sums = at::empty({parts, width}, in.options().dtype(at::kFloat));
  const void* pi = in.data_ptr();
  cuda::launch_grid(in.device(), kernels::sum_some_rows(cuda::type_of(in.scalar_type())), {columns, parts, 1}, pi, sums.data_ptr(), uint32_t(rows),
                    uint32_t(width));
  return sum_rows(sums, type);
}

// --- norm(residual + dropped (in + in_bias)) -------------------------------------------------------------------------------
// Without `in` the norm of the residual. Gives the norm, and where `keeps` is set the sum as well.

inline bool add_norm_fits(const Tensor& residual, const Tensor& weight, at::ScalarType out) {
  auto width = residual.size(-1);
  auto kind = weight.scalar_type(), sum = residual.scalar_type();
  return residual.is_cuda() && width % 8 == 0 && width <= kernels::WIDEST_NORM && (sum == out || sum == at::kFloat) &&
         (kind == out || kind == at::kFloat);
}

struct AddNorm : torch::autograd::Function<AddNorm> {
  static kernels::Norm kernel(at::ScalarType out, at::ScalarType sum, const Tensor& weight) {
    return {cuda::type_of(out), cuda::type_of(sum), cuda::type_of(weight.scalar_type()), weight.numel()};
  }

  static void* pointer(const Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

  static variable_list forward(AutogradContext* ctx, Optional input, Optional input_bias, Tensor residual, Tensor weight,
                               Tensor bias, int64_t type, bool keeps, double eps, Dropped dropped) {
    auto kind = at::ScalarType(type);
    auto in = input ? cuda::fitting(*input) : Tensor(), in_bias = input_bias.value_or(Tensor());
    residual = cuda::fitting(residual);
    uint32_t width = residual.size(-1);
    uint64_t rows = residual.numel() / width;
    auto sum = keeps ? at::empty_like(residual) : Tensor();
    auto out = at::empty(residual.sizes(), residual.options().dtype(kind)), hat = at::empty_like(out);
    auto inverse = at::empty({int64_t(rows)}, residual.options().dtype(at::kFloat));
    cuda::launch(residual.device(), kernel(kind, residual.scalar_type(), weight).forward(), std::min<int64_t>(rows, 65536), pointer(in),
                 pointer(in_bias), pointer(residual), pointer(weight), pointer(bias), pointer(sum), pointer(hat), pointer(out),
                 pointer(inverse), rows, width, float(eps), Dropout::of(dropped, residual.sizes()));
    ctx->save_for_backward({hat, inverse, weight});
    keep(ctx, dropped);
    ctx->saved_data["type"] = int64_t(residual.scalar_type());
    ctx->saved_data["adds"] = in.defined();
    ctx->saved_data["biased"] = in_bias.defined();
    ctx->set_materialize_grads(false);
    return keeps ? variable_list{out, sum} : variable_list{out};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &hat = saved[0], &inverse = saved[1], &weight = saved[2];
    bool adds = ctx->saved_data["adds"].toBool(), biased = ctx->saved_data["biased"].toBool();
    auto type = at::ScalarType(ctx->saved_data["type"].toInt()), kind = hat.scalar_type();
    auto dropout = Dropout::of(kept(ctx), hat.sizes());
    auto d_out = gradients[0].defined() ? cuda::fitting(gradients[0]) : at::zeros_like(hat);
    auto more = gradients.size() > 1 && gradients[1].defined() ? cuda::fitting(gradients[1]) : Tensor();
    uint32_t width = hat.size(-1);
    uint64_t rows = hat.numel() / width;
    int64_t blocks = std::min<int64_t>(rows, 792);
    auto d_sum = at::empty(hat.sizes(), hat.options().dtype(type));
    bool same = dropout.threshold == 0 && kind == type;
    auto d_in = adds && !same ? at::empty_like(d_out) : Tensor();
    auto columns = at::empty({3, blocks, int64_t(width)}, inverse.options());
    cuda::launch(hat.device(), kernel(kind, type, weight).backward(), blocks, pointer(d_out), pointer(more), pointer(hat),
                 pointer(inverse), pointer(weight), pointer(d_sum), pointer(d_in), pointer(columns), rows, width, dropout);
    auto totals = sum_rows(columns, weight.scalar_type());
    return {adds ? (same ? d_sum : d_in) : Tensor(), biased ? totals[2] : Tensor(), d_sum, totals[0], totals[1],
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// --- The norm by the root mean square ------------------------------------------------------------------------------------
// Gives the norm in `type`, and what came in, as a residual: whatever its gradient is, the kernel adds it.

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static variable_list forward(AutogradContext* ctx, Tensor in, Tensor weight, int64_t type, double eps) {
    auto kind = at::ScalarType(type);
    auto x = cuda::fitting(in);
    uint32_t width = x.size(-1);
    uint64_t rows = x.numel() / width;
    auto out = at::empty(x.sizes(), x.options().dtype(kind));
    auto inverse = at::empty({int64_t(rows)}, x.options().dtype(at::kFloat));
    cuda::launch(x.device(), AddNorm::kernel(kind, x.scalar_type(), weight).rms_forward(), std::min<int64_t>(rows, 65536), x.data_ptr(),
                 weight.data_ptr(), out.data_ptr(), inverse.data_ptr(), rows, width, float(eps));
    ctx->save_for_backward({x, weight, inverse});
    ctx->saved_data["type"] = type;
    ctx->set_materialize_grads(false);
    return {out, in};
  }

  // As that of Linears.
  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    auto saved = ctx->get_saved_variables();
    auto &in = saved[0], &weight = saved[1], &inverse = saved[2];
    auto d_past = std::move(gradients[1]);
    if (!gradients[0].defined()) return {d_past, Tensor(), Tensor(), Tensor()};
    auto kind = at::ScalarType(ctx->saved_data["type"].toInt());
    auto d_out = cuda::fitting(gradients[0]);
    bool is_own = d_past.defined() && is_alone(d_past) && cuda::fits(d_past);
    if (d_past.defined() && !is_own) d_past = cuda::fitting(d_past);
    uint32_t width = in.size(-1);
    uint64_t rows = in.numel() / width;
    int64_t blocks = std::min<int64_t>(rows, 792);
    auto d_in = is_own ? d_past : at::empty_like(in);
    auto sums = weight.requires_grad() ? at::empty({blocks, int64_t(width)}, inverse.options()) : Tensor();
    cuda::launch(in.device(), AddNorm::kernel(kind, in.scalar_type(), weight).rms_backward(), blocks, d_out.data_ptr(), AddNorm::pointer(d_past),
                 in.data_ptr(), inverse.data_ptr(), weight.data_ptr(), d_in.data_ptr(), AddNorm::pointer(sums), rows, width);
    return {d_in, sums.defined() ? sum_rows(sums, weight.scalar_type()) : Tensor(), Tensor(), Tensor()};
  }
};

// --- Gradients of weights -------------------------------------------------------------------------------------------------
// They are as wide as the weights: what a product of narrow numbers was added up to is not rounded to the narrow kind first.

inline Tensor rows_of(const Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

// a b in `type`.
inline Tensor product_as(const Tensor& a, const Tensor& b, at::ScalarType type) {
  if (a.scalar_type() == type) return a.mm(b);
  if (a.is_cuda() && type == at::kFloat) return at::mm(a, b, type);
  return a.mm(b).to(type);
}

inline void add_product(Tensor& sum, const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == sum.scalar_type()) {
    sum.addmm_(a, b);
  } else if (a.is_cuda() && sum.scalar_type() == at::kFloat) {
    at::addmm_out(sum, sum, a, b, sum.scalar_type());
  } else {
    sum.add_(a.mm(b));
  }
}

// Whether a backward pass adds to a gradient that is there, which it may do in place.
inline bool has_gradient(const Tensor& parameter) {
  if (!parameter.is_leaf() || at::GradMode::is_enabled()) return false;
  const auto& gradient = parameter.grad();
  return gradient.defined() && gradient.is_contiguous() && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.sizes() == parameter.sizes();
}

// The gradient of a weight, d_out^T in. Where the weight has one already the product itself adds to it, and autograd is given none; who waits for
// that gradient is told, as autograd would do. None where the weight is not trained.
inline Tensor weight_gradient(const Tensor& weight, const Tensor& d_out, const Tensor& in) {
  if (!weight.requires_grad()) return Tensor();
  if (!has_gradient(weight)) return product_as(d_out.t(), in, weight.scalar_type());
  add_product(weight.mutable_grad(), d_out.t(), in);
  if (auto& hook = torch::autograd::impl::post_acc_grad_hooks(weight)) (*hook)(weight);
  return Tensor();
}

// The gradient of a bias: the sum of all rows, added up in fp32.
inline Tensor bias_gradient(const Tensor& bias, const Tensor& d_out) {
  return bias.defined() && bias.requires_grad() ? sum_of_rows(d_out, bias.scalar_type()) : Tensor();
}

// The gradient of what goes into a product and past it, as a residual does: d_past + d_out w. Where nobody else has d_past the product itself adds
// to it.
inline Tensor past_product(Tensor d_past, const Tensor& d_out, const Tensor& weight) {
  bool is_own = is_alone(d_past) && d_past.is_contiguous() && d_past.scalar_type() == d_out.scalar_type();
  if (!is_own) return d_out.mm(weight).view(d_past.sizes()).add_(d_past);
  rows_of(d_past).addmm_(d_out, weight);
  return d_past;
}

// --- x w^T + b where the weights are wider than what is computed in ----------------------------------------------------
// The narrow copy of the weights is made again for the backward pass instead of being kept.

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
    auto d_weight = weight_gradient(weight, d_out, rows_of(in));
    return {d_in, d_weight, bias_gradient(bias, d_out)};
  }
};

// --- Several products of one input, as one -----------------------------------------------------------------------------------
// Weights and biases one after the other (all biases or none). What comes out are slices of one tensor, and where `passes` is set what came in. Where
// they are `apart` each product has a tensor of its own, which is not kept as long as the others are, and the gradients of the input are added up in the
// products that make them.

// Matrices that lie one below the other, as one.
inline Optional lie_together(at::ArrayRef<Tensor> tensors) {
  const auto& first = tensors[0];
  auto sizes = first.sizes().vec();
  auto at = first.storage_offset();
  sizes[0] = 0;
  for (const auto& t : tensors) {
    bool is_next = t.is_contiguous() && t.storage().is_alias_of(first.storage()) && t.storage_offset() == at && t.scalar_type() == first.scalar_type();
    if (!is_next || t.sizes().slice(1) != first.sizes().slice(1)) return std::nullopt;
    at += t.numel();
    sizes[0] += t.size(0);
  }
  at::NoGradGuard no_grad;
  return first.detach().as_strided(sizes, first.strides());
}

// Lays them so, in new memory.
inline void lay_together(std::vector<Tensor> tensors) {
  at::NoGradGuard no_grad;
  // Kernels read them in pieces of 16 bytes.
  for (const auto& t : tensors) {
    if (t.nbytes() % 16 || t.scalar_type() != tensors[0].scalar_type() || t.sizes().slice(1) != tensors[0].sizes().slice(1)) return;
  }
  auto whole = at::cat(tensors);
  int64_t start = 0;
  for (auto& t : tensors) {
    t.set_data(whole.narrow(0, start, t.size(0)));
    start += t.size(0);
  }
}

struct Linears : torch::autograd::Function<Linears> {
  // Narrow, one below the other: a view where they lie so already.
  static Tensor stacked(at::ArrayRef<Tensor> tensors, at::ScalarType type) {
    if (auto whole = lie_together(tensors)) return whole->to(type);
    if (tensors[0].scalar_type() == type) return at::cat(tensors);
    int64_t rows = 0;
    for (const auto& t : tensors) rows += t.size(0);
    auto sizes = tensors[0].sizes().vec();
    sizes[0] = rows;
    auto all = at::empty(sizes, tensors[0].options().dtype(type));
    int64_t start = 0;
    for (const auto& t : tensors) {
      all.narrow(0, start, t.size(0)).copy_(t);
      start += t.size(0);
    }
    return all;
  }

  // The rows of all, one beside the other: a view where they lie so already, as those of attention do.
  static Tensor beside(const variable_list& all) {
    std::vector<Tensor> parts;
    int64_t width = 0;
    for (const auto& t : all) {
      parts.push_back(rows_of(t));
      width += parts.back().size(1);
    }
    const auto& first = parts[0];
    auto at = first.storage_offset();
    for (const auto& part : parts) {
      bool is_next = part.is_alias_of(first) && part.storage_offset() == at && part.stride(0) == width && part.stride(1) == 1;
      if (!is_next) return at::cat(parts, 1);
      at += part.size(1);
    }
    return first.as_strided({first.size(0), width}, {width, 1});
  }

  static variable_list forward(AutogradContext* ctx, Tensor in, at::TensorList layers, int64_t count, bool passes, bool apart) {
    auto weights = layers.slice(0, count), biases = layers.slice(count);
    ctx->saved_data["count"] = count;
    ctx->saved_data["apart"] = apart;
    auto saved = layers.vec();
    saved.push_back(in);
    ctx->save_for_backward(saved);
    auto type = in.scalar_type();
    if (apart) {
      variable_list outs;
      for (int64_t i = 0; i < count; i++) outs.push_back(at::linear(in, weights[i].to(type), biases.empty() ? Optional() : Optional(biases[i].to(type))));
      if (passes) outs.push_back(in);
      return outs;
    }
    auto out = at::linear(in, stacked(weights, type), biases.empty() ? Optional() : Optional(at::cat(biases).to(type)));
    variable_list outs;
    int64_t start = 0;
    for (const auto& weight : weights) {
      outs.push_back(out.narrow(-1, start, weight.size(0)));
      start += weight.size(0);
    }
    if (passes) outs.push_back(in);
    return outs;
  }

  // By reference: what it takes out of the gradients belongs to it alone.
  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    auto saved = ctx->get_saved_variables();
    auto count = ctx->saved_data["count"].toInt();
    Tensor d_past;
    if (int64_t(gradients.size()) > count) {
      d_past = std::move(gradients.back());
      gradients.pop_back();
    }
    auto in = saved.back();
    saved.pop_back();
    at::ArrayRef<Tensor> layers(saved);
    auto weights = layers.slice(0, count), biases = layers.slice(count);
    if (ctx->saved_data["apart"].toBool()) return backward_apart(std::move(d_past), gradients, in, weights, biases);
    auto d_out = beside(gradients);
    gradients.clear();
    bool trains = std::any_of(weights.begin(), weights.end(), [](const Tensor& weight) { return weight.requires_grad(); });
    auto d_weight = trains ? product_as(d_out.t(), rows_of(in), weights[0].scalar_type()) : Tensor();
    auto narrow = stacked(weights, in.scalar_type());
    auto d_in = d_past.defined() ? past_product(std::move(d_past), d_out, narrow) : d_out.mm(narrow).view(in.sizes());
    auto d_bias = biases.empty() ? Tensor() : sum_of_rows(d_out, biases[0].scalar_type());
    variable_list out{d_in};
    int64_t start = 0;
    for (const auto& weight : weights) {
      out.push_back(trains ? d_weight.narrow(0, start, weight.size(0)) : Tensor());
      start += weight.size(0);
    }
    start = 0;
    for (const auto& bias : biases) {
      out.push_back(d_bias.narrow(0, start, bias.size(0)));
      start += bias.size(0);
    }
    out.resize(out.size() + 3);
    return out;
  }

  static variable_list backward_apart(Tensor d_in, variable_list& gradients, const Tensor& in, at::ArrayRef<Tensor> weights, at::ArrayRef<Tensor> biases) {
    variable_list d_weights, d_biases;
    for (size_t i = 0; i < weights.size(); i++) {
      auto d_out = rows_of(gradients[i]);
      auto narrow = weights[i].to(in.scalar_type());
      if (i > 0) rows_of(d_in).addmm_(d_out, narrow);
      else d_in = d_in.defined() ? past_product(std::move(d_in), d_out, narrow) : d_out.mm(narrow).view(in.sizes());
      d_weights.push_back(weight_gradient(weights[i], d_out, rows_of(in)));
      if (!biases.empty()) d_biases.push_back(bias_gradient(biases[i], d_out));
      gradients[i].reset();
    }
    variable_list out{d_in};
    out.insert(out.end(), d_weights.begin(), d_weights.end());
    out.insert(out.end(), d_biases.begin(), d_biases.end());
    out.resize(out.size() + 3);
    return out;
  }
};

// --- w2 (dropped act(w1 x + b1)) + b2, or with a gate w2 (dropped act(w1 x) * (wg x)) -----------------------------------
// Of what lies between the two products only what went into the activation is kept. Gives what came in as well, where `passes` is set.

enum Kind : int64_t { kRelu, kGelu, kGeluTanh, kQuickGelu, kSilu, kTanh };

struct Activation {
  kernels::Activation kernel(const Tensor& a, const Tensor& bias) const {
    auto type = [](const Tensor& t) { return cuda::type_of(t.scalar_type()); };
    return {type(a), type(bias.defined() ? bias : a), kind};
  }

  Tensor forward(const Tensor& a, const Tensor& gate, const Tensor& bias) const {
    auto out = at::empty_like(a);
    const void *pa = a.data_ptr(), *pg = pointer(gate), *pb = pointer(bias);
    launch(kernel(a, bias).forward(), a, blocks_of_rows(a, 8192), pa, pg, pb, out.data_ptr());
    return out;
  }

  // What `forward` gave is written over `a`, the gradient of `a` over that of what it gave, and that of the gate over the gate. Gives that of the
  // bias, where there is one.
  Tensor backward(const Tensor& a, const Tensor& gate, const Tensor& bias, const Tensor& d_out) const {
    // Partial sums cost as much as they take, and each multiprocessor wants some blocks.
    auto blocks = blocks_of_rows(a, bias.defined() ? 1056 : 8192);
    auto sums = bias.defined() ? at::empty({blocks, a.size(1)}, a.options().dtype(at::kFloat)) : Tensor();
    const void* pb = pointer(bias);
    launch(kernel(a, bias).backward(), a, blocks, a.data_ptr(), pointer(gate), pb, d_out.data_ptr(), pointer(sums));
    return bias.defined() ? sum_rows(sums, bias.scalar_type()) : Tensor();
  }

  // Each takes every so-manyth row of its columns.
  static int64_t blocks_of_rows(const Tensor& a, int64_t most) {
    return std::max<int64_t>(1, std::min({a.size(0), most / blocks_of_columns(a), int64_t(65535)}));
  }

  static int64_t blocks_of_columns(const Tensor& a) {
    return (a.size(1) / 8 + kernels::Activation::THREADS - 1) / kernels::Activation::THREADS;
  }

  template <typename... Pointers>
  void launch(const kernels::Kernel& kernel, const Tensor& a, int64_t blocks, Pointers... pointers) const {
    cuda::launch_grid(a.device(), kernel, {blocks_of_columns(a), blocks, 1}, pointers..., uint32_t(a.size(0)), uint32_t(a.size(1)), dropout);
  }

  static void* pointer(const Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

  int64_t kind;
  Dropout dropout;
};

struct FeedForward : torch::autograd::Function<FeedForward> {
  // What lies between the products has the samples and positions of what comes in.
  static Dropout inner_dropout(const Dropped& dropped, const Tensor& in, const Tensor& w1) {
    auto sizes = in.sizes().vec();
    sizes.back() = w1.size(0);
    return Dropout::of(dropped, sizes);
  }

  static variable_list forward(AutogradContext* ctx, Tensor in, Tensor w1, Optional bias1, Optional gated, Tensor w2, Optional bias2,
                               int64_t kind, Dropped dropped, bool passes) {
    auto b1 = bias1.value_or(Tensor()), gate = gated.value_or(Tensor()), b2 = bias2.value_or(Tensor());
    auto type = in.scalar_type();
    auto narrow = [&](const Tensor& t) { return t.defined() ? t.to(type) : t; };
    auto x = rows_of(in);
    auto a = x.mm(narrow(w1).t());
    auto g = gate.defined() ? x.mm(narrow(gate).t()) : Tensor();
    auto hidden = Activation{kind, inner_dropout(dropped, in, w1)}.forward(a, g, b1);
    auto out = at::linear(hidden, narrow(w2), narrow(b2));
    ctx->save_for_backward({in, w1, b1, gate, w2, b2, a, g});
    ctx->saved_data["kind"] = kind;
    keep(ctx, dropped);
    auto sizes = in.sizes().vec();
    sizes.back() = w2.size(0);
    auto given = out.view(sizes);
    return passes ? variable_list{given, in} : variable_list{given};
  }

  // As that of Linears.
  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    auto saved = ctx->get_saved_variables();
    auto &in = saved[0], &w1 = saved[1], &b1 = saved[2], &gate = saved[3], &w2 = saved[4], &b2 = saved[5];
    auto type = in.scalar_type();
    auto narrow = [&](const Tensor& t) { return t.to(type); };
    Activation activation{ctx->saved_data["kind"].toInt(), inner_dropout(kept(ctx), in, w1)};
    auto d_past = gradients.size() > 1 ? std::move(gradients[1]) : Tensor();
    auto x = rows_of(in), d_out = rows_of(gradients[0]);
    // In the memory of what was kept, and of the gradient of the second product's input: all of it is used up by this pass.
    auto &hidden = saved[6], &d_g = saved[7];
    auto d_a = d_out.mm(narrow(w2));
    auto d_b1 = activation.backward(hidden, d_g, b1, d_a);
    auto d_w2 = weight_gradient(w2, d_out, hidden);
    auto d_w1 = weight_gradient(w1, d_a, x);
    auto d_b2 = bias_gradient(b2, d_out);
    auto d_in = d_past.defined() ? past_product(std::move(d_past), d_a, narrow(w1)) : d_a.mm(narrow(w1)).view(in.sizes());
    Tensor d_gate;
    if (gate.defined()) {
      d_gate = weight_gradient(gate, d_g, x);
      rows_of(d_in).addmm_(d_g, narrow(gate));
    }
    return {d_in, d_w1, d_b1, d_gate, d_w2, d_b2, Tensor(), Tensor(), Tensor()};
  }
};

// --- act(a) * gate -----------------------------------------------------------------------------------------------------------
// What the activation gave is not kept: the backward pass computes it again.

struct GatedActivation : torch::autograd::Function<GatedActivation> {
  static Tensor forward(AutogradContext* ctx, Tensor a, Tensor gate, int64_t kind) {
    a = cuda::fitting(a);
    gate = cuda::fitting(gate);
    ctx->save_for_backward({a, gate});
    ctx->saved_data["kind"] = kind;
    return of(kind, a).forward(rows_of(a), rows_of(gate), Tensor()).view(a.sizes());
  }

  // As that of Linears. In the memory of what was kept, as FeedForward's.
  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    auto saved = ctx->get_saved_variables();
    auto &a = saved[0], &gate = saved[1];
    auto d_out = std::move(gradients[0]);
    if (!is_alone(d_out) || !cuda::fits(d_out)) d_out = d_out.clone(at::MemoryFormat::Contiguous);
    of(ctx->saved_data["kind"].toInt(), a).backward(rows_of(a), rows_of(gate), Tensor(), rows_of(d_out));
    return {d_out, gate, Tensor()};
  }

  static Activation of(int64_t kind, const Tensor& a) { return {kind, Dropout::of(Dropped{}, a.sizes())}; }
};

// --- Rotary positions -----------------------------------------------------------------------------------------------------------
// Each feature of the first half of a head is turned with the one of the second half. Gives [batch, heads, length, width], in memory [batch, length,
// heads, width].

inline bool turn_fits(const Tensor& heads, const Tensor& cosines, const Tensor& sines) {
  auto type = heads.scalar_type();
  bool fits = heads.is_cuda() && heads.dim() == 4 && heads.size(3) % 16 == 0 && heads.numel() > 0 && cosines.dim() == 2 &&
              cosines.size(0) == heads.size(2) && cosines.size(1) == heads.size(3) && cosines.sizes() == sines.sizes() &&
              (type == at::kBFloat16 || type == at::kHalf || type == at::kFloat);
  return fits && cosines.scalar_type() == type && sines.scalar_type() == type;
}

struct Turn : torch::autograd::Function<Turn> {
  static Tensor turned(Tensor in, const Tensor& cosines, const Tensor& sines, bool is_back) {
    bool is_aligned = reinterpret_cast<uintptr_t>(in.data_ptr()) % 16 == 0 && in.stride(3) == 1;
    for (int64_t d = 0; d < 3; d++) is_aligned = is_aligned && (in.size(d) == 1 || in.stride(d) % 8 == 0);
    if (!is_aligned) in = in.clone(at::MemoryFormat::Contiguous);
    auto batch = in.size(0), heads = in.size(1), length = in.size(2), width = in.size(3);
    auto out = at::empty({batch, length, heads, width}, in.options());
    auto kernel = kernels::turn(cuda::type_of(in.scalar_type()));
    const void *pi = in.data_ptr(), *pc = cosines.data_ptr(), *ps = sines.data_ptr();
    long long strides[] = {in.stride(0), in.stride(1), in.stride(2)};
    cuda::launch(in.device(), kernel, cuda::blocks_for(out.numel() / 2, kernel.threads), pi, strides[0], strides[1], strides[2], pc, ps,
                 out.data_ptr(), uint64_t(out.numel() / 16), uint32_t(length), uint32_t(heads), uint32_t(width), uint32_t(is_back));
    return out.transpose(1, 2);
  }

  static Tensor forward(AutogradContext* ctx, Tensor in, Tensor cosines, Tensor sines) {
    cosines = cuda::fitting(cosines);
    sines = cuda::fitting(sines);
    ctx->save_for_backward({cosines, sines});
    return turned(in, cosines, sines, false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    return {turned(gradients[0], saved[0], saved[1], true), Tensor(), Tensor()};
  }
};

// --- Numbers times a number on their device ----------------------------------------------------------------------------------

// In place.
inline Tensor scaled(Tensor t, const Tensor& factor) {
  bool has_kernel = t.is_cuda() && cuda::fits(t) && factor.scalar_type() == at::kFloat && (t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf);
  if (!has_kernel) return t.mul_(factor.to(t.scalar_type()));
  const void* pf = factor.data_ptr();
  cuda::launch(t.device(), kernels::scale_all(cuda::type_of(t.scalar_type())), cuda::blocks_for(t.numel(), 256), t.data_ptr(), pf, uint64_t(t.numel()));
  return t;
}

// --- The cross-entropy of rows of logits ----------------------------------------------------------------------------------

inline bool cross_entropy_fits(const Tensor& hidden, int64_t words) {
  auto type = hidden.scalar_type();
  return hidden.is_cuda() && words % 8 == 0 && (type == at::kBFloat16 || type == at::kHalf || type == at::kFloat);
}

// Of each row of logits [rows, words], which become its gradient where `differentiates`.
inline Tensor cross_entropy(const Tensor& logits, const Tensor& labels, int64_t ignored, bool differentiates) {
  TORCH_CHECK(cuda::fits(logits), "cross-entropy: logits are not one piece of memory");
  auto at = labels.contiguous();
  auto loss = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const void* pl = at.data_ptr<int64_t>();
  cuda::launch(logits.device(), kernels::cross_entropy(cuda::type_of(logits.scalar_type())), logits.size(0), logits.data_ptr(), pl,
               loss.data_ptr(), uint32_t(logits.size(1)), (long long)(ignored), uint32_t(differentiates));
  return loss;
}

// --- From host memory to a card, without waiting for what the card does ----------------------------------------------------

inline Tensor to_card(const Tensor& tensor, c10::Device device) {
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

// --- AdamW, in bf16 with stochastic rounding -------------------------------------------------------------------------------
// The noise is a hash of the values at hand, their place and the step, so that it needs no generator and a resumed run draws the same.
// Formula of torch.optim.AdamW; all arithmetic in fp32, only what is stored is rounded. As in kernels.cu.

// new1 and new2 are 1 - beta, and fade is 1 - lr * decay, each rounded once: 1 - 0.999f would be 5e-5 beside 0.001.
struct AdamW {
  float beta1, beta2, new1, new2, eps, fade, root2, size;
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
      float average = float(pm[i]) + (grad - float(pm[i])) * s.new1;
      float square = float(pv[i]) * s.beta2 + grad * grad * s.new2;
      float w = float(pp[i]) * s.fade - s.size * average / (std::sqrt(square) / s.root2 + s.eps);
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

inline void adamw_cuda(const std::vector<Tensor>& p, const std::vector<Tensor>& g, const std::vector<Tensor>& m,
                       const std::vector<Tensor>& v, const Tensor& scale, const AdamW& s) {
  std::vector<Tensor> kept;
  for (const auto& gradient : g) kept.push_back(cuda::fitting(gradient));
  cuda::Blocks<AdamWParameter> all;
  for (size_t i = 0; i < p.size(); i++) {
    TORCH_CHECK(cuda::fits(p[i]) && cuda::fits(m[i]) && cuda::fits(v[i]), "AdamW: a parameter is not one piece of memory");
    uint64_t n = p[i].numel();
    all.add({p[i].data_ptr(), kept[i].data_ptr(), m[i].data_ptr(), v[i].data_ptr(), n, all.count()}, n);
  }
  auto there = to_card(all.table(), p[0].device());
  const void *pt = there.data_ptr(), *ps = scale.data_ptr();
  cuda::launch(p[0].device(), kernels::adamw(cuda::type_of(p[0].scalar_type())), all.count(), pt, uint32_t(p.size()), uint64_t(all.CHUNK), ps, s);
}

// --- The norm over many tensors together -----------------------------------------------------------------------------------
// In fp32: of their squares one sum for each block, and the sum of those.

struct OneOfMany {
  void* data;
  uint64_t n, first;
};

inline Tensor total_norm(const std::vector<Tensor>& tensors) {
  auto type = tensors[0].scalar_type();
  bool fits = std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.is_cuda() && cuda::fits(t) && t.scalar_type() == type; });
  if (!fits) return at::linalg_vector_norm(at::stack(at::_foreach_norm(tensors, 2, at::kFloat)));
  cuda::Blocks<OneOfMany> all;
  for (const auto& t : tensors) all.add({t.data_ptr(), uint64_t(t.numel()), all.count()}, t.numel());
  auto there = to_card(all.table(), tensors[0].device());
  auto sums = at::empty({int64_t(all.count())}, tensors[0].options().dtype(at::kFloat));
  const void* pt = there.data_ptr();
  cuda::launch(sums.device(), kernels::sum_squares(cuda::type_of(type)), all.count(), pt, uint32_t(tensors.size()), uint64_t(all.CHUNK), sums.data_ptr());
  return sums.sum().sqrt_();
}

// --- Stochastic rounding to bf16 --------------------------------------------------------------------------------------
// As above, with a hash of the value, its place and the seed.

inline void round_to_bf16(const Tensor& into, const Tensor& wide, uint32_t seed) {
  TORCH_CHECK(into.is_contiguous() && into.sizes() == wide.sizes(), "rounding needs two tensors of one shape");
  auto from = wide.contiguous();
  if (into.is_cuda()) {
    const void* pf = from.data_ptr();
    cuda::launch(into.device(), kernels::round_to_bf16(), cuda::blocks_for(from.numel(), 256), pf, into.data_ptr(), uint64_t(from.numel()), seed);
    return;
  }
  auto* pi = into.data_ptr<at::BFloat16>();
  auto* pw = from.data_ptr<float>();
  at::parallel_for(0, into.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) pi[i] = rounded(pw[i], mixed(bits(pw[i]) * 0xC2B2AE3Du ^ (seed + uint32_t(i)) * 0x27D4EB2Fu));
  });
}
