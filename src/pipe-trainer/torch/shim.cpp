// What libtorch can do and tch cannot: a handful of functions with a C interface, wrapped by torch/mod.rs.
//
// Needs the headers of the torch wheel alone, no CUDA toolkit: CUDA kernels are compiled when they are needed.
//
// Tensors come and go as torch-sys hands them around: pointers to at::Tensor. A function returns nullptr, or what went wrong.

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include "attention.hpp"
#include "chunked_attention.hpp"
#include "functions.hpp"
#include "graph.hpp"
#include "quantized.hpp"
#include "ranks.hpp"

namespace {

// What is returned where there is no memory for a message. pipe_free_message knows it.
char no_memory[] = "std::bad_alloc";

char* message_of(const char* text) {
  char* copy = strdup(text);
  return copy ? copy : no_memory;
}

// Nothing that is thrown goes beyond this, also where it cannot be put into words.
template <typename F>
char* guarded(F&& f) noexcept {
  try {
    try {
      f();
      return nullptr;
    } catch (const std::bad_alloc&) {
      return no_memory;
    } catch (const c10::Error& error) {
      return message_of(error.what_without_backtrace());
    } catch (const std::exception& error) {
      return message_of(error.what());
    } catch (...) {
      return message_of("an error without a name");
    }
  } catch (...) {
    return no_memory;
  }
}

Optional optional(Tensor* tensor) {
  return tensor ? Optional(*tensor) : std::nullopt;
}

std::vector<Tensor> list(Tensor** tensors, size_t count) {
  std::vector<Tensor> all;
  all.reserve(count);
  for (size_t i = 0; i < count; i++) all.push_back(*tensors[i]);
  return all;
}

// --- Checkpointing ----------------------------------------------------------------------------------------------------

// A block of a model, computed by the other side.
using Block = char* (*)(void* data, Tensor** inputs, size_t count, Tensor** output);

struct Closure : torch::CustomClassHolder {
  Closure(Block block, void* data, void (*drop)(void*)) : block(block), data(data), drop(drop) {}
  ~Closure() override { drop(data); }

  Tensor call(variable_list inputs) const {
    std::vector<Tensor*> pointers;
    for (auto& input : inputs) pointers.push_back(&input);
    Tensor* output = nullptr;
    if (char* error = block(data, pointers.data(), pointers.size(), &output)) {
      auto freed = std::unique_ptr<char, decltype(&free)>(error, &free);
      throw std::runtime_error(error);
    }
    // There was an error, and no memory to say which.
    if (!output) throw std::bad_alloc();
    Tensor result = *output;
    delete output;
    return result;
  }

  Block block;
  void* data;
  void (*drop)(void*);
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(AutogradContext* ctx, c10::intrusive_ptr<Closure> closure, at::TensorList inputs) {
    ctx->saved_data["closure"] = c10::IValue::make_capsule(closure);
    ctx->save_for_backward(inputs.vec());
    return closure->call(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto capsule = ctx->saved_data["closure"].toCapsule();
    auto* closure = static_cast<Closure*>(capsule.get());
    variable_list inputs;
    for (const auto& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    Tensor output;
    {
      at::AutoGradMode enabled(true);
      output = closure->call(inputs);
    }
    torch::autograd::backward({output}, {gradients[0]});
    variable_list out(1);
    for (const auto& input : inputs) out.push_back(input.grad());
    return out;
  }
};

// --- The loss over a large vocabulary ---------------------------------------------------------------------------------
// Rows are taken a chunk at a time: logits, their log-softmax and their gradient exist for one chunk only, and the
// gradients of hidden states and head are ready when the loss is.

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  // A head that is not trained has no gradient.
  static Tensor forward(AutogradContext* ctx, Tensor hidden, Tensor weight, Tensor labels, int64_t ignored, int64_t rows,
                        bool differentiate, bool trains_head) {
    auto total = at::zeros({}, hidden.options().dtype(at::kFloat));
    Tensor d_hidden, d_weight;
    if (differentiate) d_hidden = at::empty_like(hidden);
    if (differentiate && trains_head) d_weight = hidden.size(0) > 0 ? at::empty_like(weight) : at::zeros_like(weight);
    for (int64_t start = 0; start < hidden.size(0); start += rows) {
      auto end = std::min(start + rows, hidden.size(0));
      auto h = hidden.slice(0, start, end);
      auto label = labels.slice(0, start, end);
      auto logits = at::linear(h, weight);
      Tensor d_logits;
      if (cross_entropy_fits(hidden, weight.size(0))) {
        total.add_(cross_entropy(logits, label, ignored, differentiate).sum());
        d_logits = logits;
      } else {
        d_logits = add_loss(total, std::move(logits), label, ignored, differentiate);
      }
      if (differentiate) {
        auto into = d_hidden.slice(0, start, end);
        at::mm_out(into, d_logits, weight);
        if (trains_head && start == 0) at::mm_out(d_weight, d_logits.t(), h);
        else if (trains_head) d_weight.addmm_(d_logits.t(), h);
      }
    }
    ctx->save_for_backward({d_hidden, d_weight});
    return total;
  }

  // Where there is no kernel for it. Gives the gradient of the logits.
  static Tensor add_loss(Tensor& total, Tensor logits, const Tensor& label, int64_t ignored, bool differentiate) {
    auto type = logits.scalar_type();
    auto kept = label.ne(ignored);
    auto at_label = label.masked_fill(kept.logical_not(), 0).unsqueeze(1);
    auto log_p = at::_log_softmax(logits.to(at::kFloat), 1, false);
    logits.reset();
    auto factor = kept.to(at::kFloat).unsqueeze(1);
    total.sub_(log_p.gather(1, at_label).mul_(factor).sum());
    if (!differentiate) return Tensor();
    auto d_logits = log_p.exp_();
    d_logits.scatter_add_(1, at_label, at::full_like(at_label, -1, log_p.options()));
    return d_logits.mul_(factor).to(type);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    // In place: this pass uses them up.
    auto scale = [&](Tensor& t) { return t.defined() ? scaled(t, gradients[0]) : t; };
    return {scale(saved[0]), scale(saved[1]), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// --- A feed-forward layer that keeps nothing of its inside --------------------------------------------------------------
// gelu(x w1^T + b1) w2^T + b2. Rows are taken a chunk at a time, and what is inside is recomputed for the gradient: where
// the inner width is many times the outer, that costs little beside moving it through memory, and keeping it costs most of all.

struct GeluFeedForward : torch::autograd::Function<GeluFeedForward> {
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2, int64_t rows) {
    ctx->save_for_backward({x, w1, b1, w2});
    ctx->saved_data["rows"] = rows;
    auto out = at::empty({x.size(0), w2.size(0)}, x.options());
    for (int64_t start = 0; start < x.size(0); start += rows) {
      auto end = std::min(start + rows, x.size(0));
      auto inner = at::addmm(b1, x.slice(0, start, end), w1.t());
      at::gelu_(inner);
      auto into = out.slice(0, start, end);
      at::addmm_out(into, b2, inner, w2.t());
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto &x = saved[0], &w1 = saved[1], &b1 = saved[2], &w2 = saved[3];
    auto rows = ctx->saved_data["rows"].toInt();
    auto d_out = gradients[0].contiguous();
    auto d_x = at::empty_like(x);
    // Chunks are added up in fp32: rounded each time, a narrow sum would lose what a single product does not.
    Tensor d_w1, d_b1, d_w2;
    auto add = [](Tensor& sum, Tensor part) {
      if (!sum.defined()) {
        sum = part;
      } else {
        if (sum.scalar_type() != at::kFloat && sum.scalar_type() != at::kDouble) sum = sum.to(at::kFloat);
        sum.add_(part);
      }
    };
    for (int64_t start = 0; start < x.size(0); start += rows) {
      auto end = std::min(start + rows, x.size(0));
      auto of_x = x.slice(0, start, end), of_out = d_out.slice(0, start, end);
      auto inner = at::addmm(b1, of_x, w1.t());
      add(d_w2, at::mm(of_out.t(), at::gelu(inner)));
      auto d_inner = at::gelu_backward(at::mm(of_out, w2), inner);
      inner.reset();
      add(d_w1, at::mm(d_inner.t(), of_x));
      add(d_b1, d_inner.sum(0));
      auto into = d_x.slice(0, start, end);
      at::mm_out(into, d_inner, w1);
    }
    auto kind = x.scalar_type();
    return {d_x, d_w1.to(kind), d_b1.to(kind), d_w2.to(kind), d_out.sum(0), Tensor()};
  }
};

// As `AdamWStep` in quantized.rs.
struct AdamWStep {
  double lr, beta1, beta2, eps, decay;
  uint64_t step;
};

// The numbers of a step as the kernels take them.
AdamW adamw_of(const AdamWStep& numbers, uint64_t seed) {
  auto [lr, beta1, beta2, eps, decay, step] = numbers;
  double correction1 = 1 - std::pow(beta1, double(step)), correction2 = 1 - std::pow(beta2, double(step));
  // Differs from step to step in bits that the hash spreads.
  auto noise = uint32_t((step * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull) >> 32);
  return {float(beta1), float(beta2), float(1 - beta1), float(1 - beta2), float(eps), float(1 - lr * decay),
          float(std::sqrt(correction2)), float(lr / correction1), noise};
}

// Whether the kernel takes parameters and gradients in fp32: all of them are.
bool fits_adamw(const std::vector<Tensor>& params, const std::vector<Tensor>& grads) {
  auto fits = [](const Tensor& t) { return t.is_cuda() && t.scalar_type() == at::kFloat; };
  return std::all_of(params.begin(), params.end(), [&](const Tensor& t) { return fits(t) && cuda::fits(t); }) &&
         std::all_of(grads.begin(), grads.end(), fits);
}

}  // namespace

extern "C" {

// One update of all parameters. `scale` (fp32, on their device) multiplies the gradients. With a seed the parameters are bf16
// and rounded stochastically.
char* pipe_adamw(Tensor** p, Tensor** g, Tensor** m, Tensor** v, size_t count, Tensor* scale, const AdamWStep* numbers,
                 const uint64_t* seed) {
  return guarded([&] {
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto params = list(p, count), grads = list(g, count), averages = list(m, count), squares = list(v, count);
    bool is_wide = seed == nullptr;
    if (params[0].is_cuda() && (!is_wide || fits_adamw(params, grads))) {
      return adamw_cuda(params, grads, averages, squares, *scale, adamw_of(*numbers, is_wide ? 0 : *seed));
    }
    if (is_wide) {
      auto [lr, beta1, beta2, eps, decay, step] = *numbers;
      auto inverse = scale->reciprocal();
      std::vector<Tensor> steps(count, at::full({}, double(step), inverse.options()));
      at::_fused_adamw_(params, grads, averages, squares, {}, steps, lr, beta1, beta2, decay, eps, false, false, inverse,
                        std::nullopt);
      return;
    }
    auto s = adamw_of(*numbers, *seed);
    for (size_t i = 0; i < count; i++) {
      adamw_bf16_cpu(params[i], grads[i], averages[i], squares[i], scale->item<float>(), s);
    }
  });
}

// The same with moments of 8 bits. `tensors` has as many as `count` of parameters, then of gradients, of codes of averages and of squares, and
// of the scales of either. `maps` [2, 256] are the numbers of the codes.
char* pipe_adamw_8bit(Tensor** tensors, size_t count, Tensor* maps, Tensor* scale, const AdamWStep* numbers, uint64_t seed) {
  return guarded([&] {
    if (count == 0) return;
    at::NoGradGuard no_grad;
    std::vector<NarrowMoments> all;
    auto of = [&](size_t what, size_t i) { return *tensors[what * count + i]; };
    for (size_t i = 0; i < count; i++) all.push_back({of(0, i), of(1, i), of(2, i), of(3, i), of(4, i), of(5, i)});
    auto step = adamw_of(*numbers, seed);
    if (all[0].p.is_cuda()) return update_8bit_on_card(all, *maps, *scale, step);
    auto* by_code = maps->data_ptr<float>();
    auto factor = scale->item<float>();
    for (auto& one : all) {
      if (one.p.scalar_type() == at::kBFloat16) update_8bit<at::BFloat16>(one, by_code, factor, step);
      else update_8bit<float>(one, by_code, factor, step);
    }
  });
}

// As `QuantizedTensors` in quantized.rs. The last two are null for weights of 8 bits.
struct QuantizedTensors {
  Tensor *codes, *scales, *scales_of_scales, *map;
  double offset;
  int64_t rows, columns;

  QuantizedWeight weight() const {
    return {*codes, *scales, optional(scales_of_scales).value_or(Tensor()), optional(map).value_or(Tensor()), offset, rows, columns};
  }
};

void pipe_nf4_numbers(float* out) { std::copy(std::begin(NF4), std::end(NF4), out); }

char* pipe_dequantize(const QuantizedTensors* weight, int type, Tensor** out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    *out = new Tensor(weight->weight().wide(at::ScalarType(type)));
  });
}

char* pipe_quantized_linear(Tensor* in, Tensor* bias, const QuantizedTensors* weight, Tensor** out) {
  return guarded([&] { *out = new Tensor(QuantizedLinear::apply(*in, optional(bias), weight->weight())); });
}

// Rounds `wide` (fp32) stochastically into `into` (bf16).
char* pipe_round_to_bf16(Tensor* into, Tensor* wide, uint64_t seed) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    round_to_bf16(*into, *wide, uint32_t(seed * 0xD1B54A32D192ED03ull >> 32));
  });
}

void pipe_free_message(char* message) {
  if (message != no_memory) free(message);
}

// The source of the kernels, before the first is needed.
char* pipe_kernels(const char* text) {
  return guarded([&] { cuda::source() = text; });
}

// `residual` may be null.
char* pipe_drop_add(Tensor* in, Tensor* residual, const Dropped* dropped, Tensor** out) {
  return guarded([&] { *out = new Tensor(DropAdd::apply(*in, optional(residual), *dropped)); });
}

// `bias` may be null.
char* pipe_chunked_attention(Tensor* q, Tensor* k, Tensor* v, Tensor* bias, bool causal, double scale, const Dropped* dropped, Tensor** out) {
  return guarded([&] { *out = new Tensor(ChunkedAttention::apply(*q, *k, *v, optional(bias), causal, scale, *dropped)); });
}

// Null where there is no kernel for it. `type` is that of the result; `sum` may be null, and gets what was normed otherwise.
char* pipe_add_norm(Tensor* in, Tensor* in_bias, Tensor* residual, Tensor* weight, Tensor* bias, int type, double eps,
                    const Dropped* dropped, Tensor** out, Tensor** sum) {
  return guarded([&] {
    *out = nullptr;
    if (!add_norm_fits(*residual, *weight, at::ScalarType(type))) return;
    auto results = AddNorm::apply(optional(in), optional(in_bias), *residual, *weight, *bias, int64_t(type), sum != nullptr,
                                  eps, *dropped);
    *out = new Tensor(results[0]);
    if (sum) *sum = new Tensor(results[1]);
  });
}

// Null where there is no kernel for it. `type` is that of the result; `past` gets the input.
char* pipe_rms_norm(Tensor* in, Tensor* weight, int type, double eps, Tensor** out, Tensor** past) {
  return guarded([&] {
    *out = nullptr;
    if (!add_norm_fits(*in, *weight, at::ScalarType(type))) return;
    auto results = RmsNorm::apply(*in, *weight, int64_t(type), eps);
    *out = new Tensor(results[0]);
    *past = new Tensor(results[1]);
  });
}

// `count` weights, then as many biases or none; as many results, and one more, the input, where `passes` is set. `apart`: not as one product.
char* pipe_linears(Tensor* in, Tensor** layers, size_t total, size_t count, bool passes, bool apart, Tensor** outs) {
  return guarded([&] {
    auto all = list(layers, total);
    auto results = Linears::apply(*in, at::TensorList(all), int64_t(count), passes, apart);
    for (size_t i = 0; i < results.size(); i++) outs[i] = new Tensor(results[i]);
  });
}

// Weights that are multiplied by one input become parts of one piece of memory.
char* pipe_lay_together(Tensor** weights, size_t count) {
  return guarded([&] { lay_together(list(weights, count)); });
}

char* pipe_linear(Tensor* in, Tensor* weight, Tensor* bias, Tensor** out) {
  return guarded([&] { *out = new Tensor(Linear::apply(*in, *weight, optional(bias))); });
}

// Of `layers` w1, b1, the gate, w2 and b2; absent ones are null. `past`, where it is not null, gets the input. On a card only.
char* pipe_feed_forward(Tensor* in, Tensor** layers, int64_t kind, const Dropped* dropped, Tensor** out, Tensor** past) {
  return guarded([&] {
    auto* l = layers;
    auto results = FeedForward::apply(*in, *l[0], optional(l[1]), optional(l[2]), *l[3], optional(l[4]), kind, *dropped, past != nullptr);
    *out = new Tensor(results[0]);
    if (past) *past = new Tensor(results[1]);
  });
}

char* pipe_gated_activation(Tensor* in, Tensor* gate, int64_t kind, Tensor** out) {
  return guarded([&] { *out = new Tensor(GatedActivation::apply(*in, *gate, kind)); });
}

// Null where there is no kernel for it.
char* pipe_turn(Tensor* heads, Tensor* cosines, Tensor* sines, Tensor** out) {
  return guarded([&] { *out = turn_fits(*heads, *cosines, *sines) ? new Tensor(Turn::apply(*heads, *cosines, *sines)) : nullptr; });
}

char* pipe_select_rows(Tensor* in, Tensor* from, Tensor* back, Tensor* lost, Tensor** out) {
  return guarded([&] { *out = new Tensor(SelectRows::apply(*in, *from, *back, *lost)); });
}

// Null where there is no kernel for it. `bias` and `lengths` may be null.
// `packing` are offsets and tiles of the queries, then those of the keys; all null where samples are rows of a rectangle.
char* pipe_attention(Tensor* q, Tensor* k, Tensor* v, Tensor* bias, Tensor* lengths, Tensor** packing, bool is_causal, double scale,
                     const Dropped* dropped, Tensor** out) {
  return guarded([&] {
    *out = nullptr;
    if (!Attention::fits(*q, *k, *v)) return;
    *out = new Tensor(Attention::apply(*q, *k, *v, optional(bias), optional(lengths), optional(packing[0]), optional(packing[1]),
                                       optional(packing[2]), optional(packing[3]), is_causal, scale, *dropped));
  });
}

char* pipe_has_attention(int64_t card, bool* has) {
  return guarded([&] { *has = Attention::has({c10::DeviceType::CUDA, c10::DeviceIndex(card)}); });
}

// The norm over all tensors together, fp32 and on their device.
char* pipe_total_norm(Tensor** tensors, size_t count, Tensor** out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    *out = new Tensor(total_norm(list(tensors, count)));
  });
}

// No gradient where it is null.
char* pipe_set_gradient(Tensor* tensor, Tensor* gradient) {
  return guarded([&] { tensor->mutable_grad() = gradient ? *gradient : Tensor(); });
}

char* pipe_checkpoint(Block block, void* data, void (*drop)(void*), Tensor** inputs, size_t count, Tensor** out) {
  return guarded([&] {
    c10::intrusive_ptr<Closure> closure;
    try {
      closure = c10::make_intrusive<Closure>(block, data, drop);
    } catch (...) {
      // No one else owns it yet.
      drop(data);
      throw;
    }
    auto all = list(inputs, count);
    *out = new Tensor(Checkpoint::apply(closure, at::TensorList(all)));
  });
}

char* pipe_linear_cross_entropy(Tensor* hidden, Tensor* weight, Tensor* labels, int64_t ignored, int64_t rows, Tensor** out) {
  return guarded([&] {
    bool differentiate = at::GradMode::is_enabled() && (hidden->requires_grad() || weight->requires_grad());
    *out = new Tensor(LinearCrossEntropy::apply(*hidden, *weight, *labels, ignored, rows, differentiate, weight->requires_grad()));
  });
}

char* pipe_gelu_feed_forward(Tensor* x, Tensor* w1, Tensor* b1, Tensor* w2, Tensor* b2, int64_t rows, Tensor** out) {
  return guarded([&] { *out = new Tensor(GeluFeedForward::apply(*x, *w1, *b1, *w2, *b2, rows)); });
}

// The card that this thread uses for whatever names no other. On a stream of its own: the default one cannot be captured.
char* pipe_use_card(int64_t index) {
  return guarded([&] {
    c10::Device card{c10::DeviceType::CUDA, c10::DeviceIndex(index)};
    c10::impl::VirtualGuardImpl cards(card.type());
    cards.setDevice(card);
    cards.exchangeStream(cards.getStreamFromGlobalPool(card));
  });
}

char* pipe_to_card(Tensor* tensor, int64_t index, Tensor** out) {
  return guarded([&] { *out = new Tensor(to_card(*tensor, {c10::DeviceType::CUDA, c10::DeviceIndex(index)})); });
}

// What this thread launches from now on is not computed but recorded, with memory that all graphs of the process share.
char* pipe_graph_begin(CudaGraph** graph) {
  return guarded([&] {
    auto begun = std::make_unique<CudaGraph>();
    begun->begin();
    *graph = begun.release();
  });
}

char* pipe_graph_end(CudaGraph* graph) {
  return guarded([&] { graph->end(); });
}

char* pipe_graph_replay(CudaGraph* graph) {
  return guarded([&] { graph->replay(); });
}

void pipe_graph_drop(CudaGraph* graph) {
  delete graph;
}

// Of one card: bytes allocated, reserved, most allocated, most reserved; retries of allocations.
char* pipe_card_memory(int64_t index, uint64_t* out) {
  return guarded([&] {
    auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(c10::DeviceIndex(index));
    out[0] = uint64_t(stats.allocated_bytes[0].current);
    out[1] = uint64_t(stats.reserved_bytes[0].current);
    out[2] = uint64_t(stats.allocated_bytes[0].peak);
    out[3] = uint64_t(stats.reserved_bytes[0].peak);
    out[4] = uint64_t(stats.num_alloc_retries);
  });
}

// The peaks of one card count from what is held now.
char* pipe_reset_peaks(int64_t index) {
  return guarded([&] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->resetPeakStats(c10::DeviceIndex(index)); });
}

char* pipe_empty_cache() {
  return guarded([&] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache(); });
}

// Records what the card does until pipe_trace_end, which writes it as a Chrome trace.
char* pipe_trace_begin() {
  return guarded([&] {
    using namespace torch::profiler::impl;
    ProfilerConfig config(ProfilerState::KINETO);
    std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  });
}

char* pipe_trace_end(const char* path) {
  return guarded([&] { torch::autograd::profiler::disableProfiler()->save(path); });
}

// For this thread and those that it starts.
void pipe_flush_denormals() {
  at::globalContext().setFlushDenormal(true);
}

char* pipe_allow_tf32(bool allow) {
  return guarded([&] {
    at::globalContext().setFloat32MatmulPrecision(allow ? "high" : "highest");
    at::globalContext().setAllowTF32CuDNN(allow);
  });
}

char* pipe_deterministic(bool on) {
  return guarded([&] {
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(on, false);
    // The gradients of these two kinds of attention are added up in any order.
    context.setSDPUseMemEfficient(!on);
    context.setSDPUseCuDNN(!on);
  });
}

// --- Several ranks ------------------------------------------------------------------------------------------------------

// Where ranks find each other: a file at `place`, or with a `port` the host of that name, where the first rank listens.
static c10::intrusive_ptr<c10d::Store> store_at(const char* place, uint16_t port, int rank, int count, std::chrono::milliseconds timeout) {
  if (port == 0) return c10::make_intrusive<c10d::FileStore>(place, count);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = rank == 0;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(place, options);
}

// Waits for all ranks. `host` sums tensors of the host; `device` those of the card, by NCCL, where one is wanted.
char* pipe_ranks_rendezvous(const char* place, uint16_t port, int rank, int count, int64_t timeout_ms, const char* address,
                            bool is_interface, int64_t card, ranks::Link** host, ranks::Link** device) {
  return guarded([&] {
    std::chrono::milliseconds timeout(timeout_ms);
    auto store = store_at(place, port, rank, count, timeout);
    store->setTimeout(timeout);
    *device = nullptr;
    auto gloo = std::make_unique<ranks::Gloo>(store, rank, count, timeout, address, is_interface);
    if (card >= 0) *device = new ranks::Nccl(*store, rank, count, card);
    *host = gloo.release();
  });
}

char* pipe_ranks_stand_in(int64_t card, double bytes_per_ns, double latency_ns, int64_t blocks, ranks::Link** device) {
  return guarded([&] { *device = new ranks::StandIn(card, bytes_per_ns, latency_ns, blocks); });
}

// Begins to sum a tensor in place.
char* pipe_ranks_sum(ranks::Link* link, Tensor* tensor) {
  return guarded([&] {
    link->sum(tensor->detach());
    link->all_begun();
  });
}

// Begins to give every rank what `roots` have, in place.
char* pipe_ranks_broadcast(ranks::Link* link, Tensor** tensors, const int32_t* roots, size_t count) {
  return guarded([&] {
    link->group_begin();
    for (size_t i = 0; i < count; i++) link->broadcast(tensors[i]->detach(), roots[i]);
    link->group_end();
    link->all_begun();
  });
}

char* pipe_ranks_ready(ranks::Link* link, bool* ready) {
  return guarded([&] { *ready = link->ready(); });
}

char* pipe_ranks_done(ranks::Link* link, bool* done) {
  return guarded([&] { *done = link->done(); });
}

char* pipe_ranks_leave(ranks::Link* link) {
  return guarded([&] { link->leave(); });
}

// `wait` returns when the sums of `link` are done, or what went wrong.
char* pipe_ranks_differentiable_sum(Tensor* tensor, ranks::Link* link, ranks::SumOverRanks::Wait wait, void* data, Tensor** out) {
  return guarded([&] { *out = new Tensor(ranks::SumOverRanks::apply(*tensor, int64_t(link), int64_t(wait), int64_t(data))); });
}

// Gradients of the parameters are views of the buckets, `bucket_of` says of which.
char* pipe_buckets_new(ranks::Link* link, Tensor** buckets, size_t bucket_count, Tensor** parameters, const size_t* bucket_of, size_t count,
                       ranks::BucketSums** out) {
  return guarded([&] {
    *out = new ranks::BucketSums(link, list(buckets, bucket_count), list(parameters, count), std::vector<size_t>(bucket_of, bucket_of + count));
  });
}

char* pipe_buckets_watch(ranks::BucketSums* buckets, bool recomputes, bool overlaps) {
  return guarded([&] { buckets->watch(recomputes, overlaps); });
}

char* pipe_buckets_forget(ranks::BucketSums* buckets) {
  return guarded([&] { buckets->forget(); });
}

char* pipe_buckets_finish(ranks::BucketSums* buckets, size_t* early, bool* late) {
  return guarded([&] { *early = buckets->finish(late); });
}
}
