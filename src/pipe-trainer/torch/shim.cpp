// What libtorch can do and tch cannot: a handful of functions with a C interface, wrapped by torch/mod.rs.
//
// Needs the headers of the torch wheel alone, no CUDA toolkit: CUDA kernels are written as text and compiled by libtorch's own
// just-in-time compiler, which is found in libtorch_cuda.so when it is loaded.
//
// Tensors come and go as torch-sys hands them around: pointers to at::Tensor. A function returns nullptr, or what went wrong.

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string>

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

template <typename F>
char* guarded(F&& f) {
  try {
    f();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an error without a name");
  }
}

std::vector<Tensor> list(Tensor** tensors, size_t count) {
  std::vector<Tensor> all;
  all.reserve(count);
  for (size_t i = 0; i < count; i++) all.push_back(*tensors[i]);
  return all;
}

// libtorch's compiler of elementwise kernels; loaded with libtorch_cuda.so.
using Jit = c10::SmallVector<Tensor> (*)(const std::string&, const std::string&, int, const c10::SmallVector<Tensor>&,
                                         const c10::SmallVector<at::Scalar>&, bool);

Jit jit() {
  static Jit found = [] {
    const char* name =
        "_ZN2at4cuda22CompileAndLaunchKernelERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES8_iRKN3c1011SmallVector"
        "INS_6TensorELj6EEERKNSA_INS9_6ScalarELj1EEEb";
    void* symbol = dlsym(RTLD_DEFAULT, name);
    TORCH_CHECK(symbol, "libtorch_cuda.so has no compiler of kernels");
    return reinterpret_cast<Jit>(symbol);
  }();
  return found;
}

// --- AdamW in bf16 with stochastic rounding -------------------------------------------------------------------------
// The noise is a hash of the values at hand and the step, so that it needs no generator and a resumed run draws the same.
// Formula of torch.optim.AdamW; all arithmetic in fp32, only what is stored is rounded.

const char* kAdamW = R"(
template <typename T> void adamw(T p, T g, T m, T v, T lr, T beta1, T beta2, T eps, T decay, T root2, T size, T seed,
                                 T& p_out, T& m_out, T& v_out) {
  m = m + (g - m) * (1 - beta1);
  v = v * beta2 + g * g * (1 - beta2);
  T w = p * (1 - lr * decay) - size * m / (sqrt(v) / root2 + eps);
  unsigned h = __float_as_uint(g) * 0x9E3779B1u ^ __float_as_uint(m) * 0x85EBCA77u ^ __float_as_uint(w) * 0xC2B2AE3Du
             ^ __float_as_uint(seed) * 0x27D4EB2Fu;
  h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
  p_out = __uint_as_float((__float_as_uint(w) + (h & 0xFFFFu)) & 0xFFFF0000u);
  h *= 0x9E3779B1u; h ^= h >> 16;
  m_out = __uint_as_float((__float_as_uint(m) + (h & 0xFFFFu)) & 0xFFFF0000u);
  h *= 0x85EBCA77u; h ^= h >> 16;
  v_out = __uint_as_float((__float_as_uint(v) + (h & 0xFFFFu)) & 0xFFFF0000u);
}
)";

uint32_t bits(float value) {
  uint32_t out;
  memcpy(&out, &value, 4);
  return out;
}

float real(uint32_t value) {
  float out;
  memcpy(&out, &value, 4);
  return out;
}

struct AdamW {
  float lr, beta1, beta2, eps, decay, root2, size, seed;
};

// The same on the CPU.
void adamw_bf16_cpu(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v, const AdamW& s) {
  auto *pp = p.data_ptr<at::BFloat16>(), *pm = m.data_ptr<at::BFloat16>(), *pv = v.data_ptr<at::BFloat16>();
  auto contiguous = g.contiguous();
  auto* pg = contiguous.data_ptr<at::BFloat16>();
  at::parallel_for(0, p.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      float grad = float(pg[i]);
      float average = float(pm[i]) + (grad - float(pm[i])) * (1 - s.beta1);
      float square = float(pv[i]) * s.beta2 + grad * grad * (1 - s.beta2);
      float w = float(pp[i]) * (1 - s.lr * s.decay) - s.size * average / (std::sqrt(square) / s.root2 + s.eps);
      uint32_t h = bits(grad) * 0x9E3779B1u ^ bits(average) * 0x85EBCA77u ^ bits(w) * 0xC2B2AE3Du ^ bits(s.seed) * 0x27D4EB2Fu;
      h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
      pp[i] = real((bits(w) + (h & 0xFFFFu)) & 0xFFFF0000u);
      h *= 0x9E3779B1u; h ^= h >> 16;
      pm[i] = real((bits(average) + (h & 0xFFFFu)) & 0xFFFF0000u);
      h *= 0x85EBCA77u; h ^= h >> 16;
      pv[i] = real((bits(square) + (h & 0xFFFFu)) & 0xFFFF0000u);
    }
  });
}

// `into` and all views of its memory show what `from` holds; nothing is copied.
void take_memory(const Tensor& into, const Tensor& from) {
  into.storage().unsafeGetStorageImpl()->set_data_ptr(
      from.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr()));
}

void adamw_bf16(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v, const AdamW& s) {
  if (!p.is_cuda()) return adamw_bf16_cpu(p, g, m, v, s);
  auto out = jit()(kAdamW, "adamw", 3, {p, g, m, v},
                   {s.lr, s.beta1, s.beta2, s.eps, s.decay, s.root2, s.size, s.seed}, true);
  take_memory(p, out[0]);
  take_memory(m, out[1]);
  take_memory(v, out[2]);
}

// --- Stochastic rounding to bf16 --------------------------------------------------------------------------------------
// As above, with a hash of the value and the seed.

const char* kRound = R"(
template <typename T> T round_to_bf16(T w, T seed) {
  unsigned h = __float_as_uint(w) * 0xC2B2AE3Du ^ __float_as_uint(seed) * 0x27D4EB2Fu;
  h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
  return __uint_as_float((__float_as_uint(w) + (h & 0xFFFFu)) & 0xFFFF0000u);
}
)";

void round_to_bf16(const Tensor& into, const Tensor& wide, float seed) {
  if (into.is_cuda()) {
    // The result is fp32 that bf16 can hold: copying it rounds nothing.
    into.copy_(jit()(kRound, "round_to_bf16", 1, {wide}, {seed}, false)[0]);
    return;
  }
  TORCH_CHECK(into.is_contiguous() && into.sizes() == wide.sizes(), "rounding needs two tensors of one shape");
  auto from = wide.contiguous();
  auto* pi = into.data_ptr<at::BFloat16>();
  auto* pw = from.data_ptr<float>();
  at::parallel_for(0, into.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      uint32_t h = bits(pw[i]) * 0xC2B2AE3Du ^ bits(seed) * 0x27D4EB2Fu;
      h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
      pi[i] = real((bits(pw[i]) + (h & 0xFFFFu)) & 0xFFFF0000u);
    }
  });
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
      std::string message = error;
      free(error);
      throw std::runtime_error(message);
    }
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
  static Tensor forward(AutogradContext* ctx, Tensor hidden, Tensor weight, Tensor labels, int64_t ignored, int64_t rows,
                        bool differentiate) {
    auto total = at::zeros({}, hidden.options().dtype(at::kFloat));
    Tensor d_hidden, d_weight;
    if (differentiate) {
      d_hidden = at::empty_like(hidden);
      d_weight = at::zeros_like(weight);
    }
    for (int64_t start = 0; start < hidden.size(0); start += rows) {
      auto end = std::min(start + rows, hidden.size(0));
      auto h = hidden.slice(0, start, end);
      auto label = labels.slice(0, start, end);
      auto kept = label.ne(ignored);
      auto at_label = label.masked_fill(kept.logical_not(), 0).unsqueeze(1);
      auto logits = at::linear(h, weight);
      auto log_p = at::_log_softmax(logits.to(at::kFloat), 1, false);
      logits.reset();
      auto factor = kept.to(at::kFloat).unsqueeze(1);
      total.sub_(log_p.gather(1, at_label).mul_(factor).sum());
      if (differentiate) {
        auto d_logits = log_p.exp_();
        d_logits.scatter_add_(1, at_label, at::full_like(at_label, -1, log_p.options()));
        d_logits.mul_(factor);
        auto cast = d_logits.to(hidden.scalar_type());
        auto into = d_hidden.slice(0, start, end);
        at::mm_out(into, cast, weight);
        d_weight.addmm_(cast.t(), h);
      }
    }
    ctx->save_for_backward({d_hidden, d_weight});
    return total;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto scale = [&](const Tensor& t) { return t.mul(gradients[0].to(t.scalar_type())); };
    return {scale(saved[0]), scale(saved[1]), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// --- A feed-forward layer that keeps nothing of its inside --------------------------------------------------------------
// gelu(x w1^T + b1) w2^T + b2. Rows are taken a chunk at a time, and what is inside is computed again for the gradient: where
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

// --- gelu(a) * b ------------------------------------------------------------------------------------------------------

const char* kGated = R"(
template <typename T> T gated(T a, T b) {
  T inner = T(0.7978845608028654) * (a + T(0.044715) * a * a * a);
  return T(0.5) * a * (1 + tanh(inner)) * b;
}
)";

const char* kGatedBackward = R"(
template <typename T> void gated_backward(T a, T b, T g, T& da, T& db) {
  T inner = T(0.7978845608028654) * (a + T(0.044715) * a * a * a);
  T t = tanh(inner);
  T slope = T(0.7978845608028654) * (1 + T(0.134145) * a * a);
  da = g * b * (T(0.5) * (1 + t) + T(0.5) * a * (1 - t * t) * slope);
  db = g * T(0.5) * a * (1 + t);
}
)";

struct GatedGelu : torch::autograd::Function<GatedGelu> {
  static Tensor forward(AutogradContext* ctx, Tensor a, Tensor b) {
    ctx->save_for_backward({a, b});
    return jit()(kGated, "gated", 1, {a, b}, {}, false)[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto out = jit()(kGatedBackward, "gated_backward", 2, {saved[0], saved[1], gradients[0]}, {}, true);
    return {out[0], out[1]};
  }
};

}  // namespace

extern "C" {

// One update of all parameters. `scale` (fp32, on their device) multiplies the gradients.
char* pipe_adamw(Tensor** p, Tensor** g, Tensor** m, Tensor** v, size_t count, Tensor* scale, double lr, double beta1,
                 double beta2, double eps, double decay, uint64_t step) {
  return guarded([&] {
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto params = list(p, count), grads = list(g, count), averages = list(m, count), squares = list(v, count);
    auto inverse = scale->reciprocal();
    std::vector<Tensor> steps(count, at::full({}, double(step), inverse.options()));
    at::_fused_adamw_(params, grads, averages, squares, {}, steps, lr, beta1, beta2, decay, eps, false, false, inverse,
                      std::nullopt);
  });
}

// One update of bf16 parameters that lie one behind the other in `p`, with stochastic rounding. Their gradients are `g`.
char* pipe_adamw_bf16(Tensor* p, Tensor** g, size_t count, Tensor* m, Tensor* v, Tensor* scale, double lr, double beta1,
                      double beta2, double eps, double decay, uint64_t step, uint64_t seed) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::vector<Tensor> rows;
    for (size_t i = 0; i < count; i++) rows.push_back(g[i]->reshape(-1));
    auto gradient = count == 1 ? rows[0] : at::cat(rows);
    rows.clear();
    gradient.mul_(*scale);
    double correction1 = 1 - std::pow(beta1, double(step)), correction2 = 1 - std::pow(beta2, double(step));
    // A float that differs from step to step in bits that the hash spreads.
    float mixed = real(0x3F800000u | uint32_t((step * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull) >> 41));
    AdamW s{float(lr), float(beta1), float(beta2), float(eps), float(decay), float(std::sqrt(correction2)),
            float(lr / correction1), mixed};
    adamw_bf16(*p, gradient, *m, *v, s);
  });
}

// Rounds `wide` (fp32) stochastically into `into` (bf16).
char* pipe_round_to_bf16(Tensor* into, Tensor* wide, uint64_t seed) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    round_to_bf16(*into, *wide, real(0x3F800000u | uint32_t(seed * 0xD1B54A32D192ED03ull >> 41)));
  });
}

// Puts the tensors one behind the other into new memory, of which they are views from now on.
char* pipe_flatten(Tensor** tensors, size_t count, Tensor** out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::vector<Tensor> rows;
    for (size_t i = 0; i < count; i++) rows.push_back(tensors[i]->reshape(-1));
    auto flat = at::cat(rows);
    rows.clear();
    int64_t start = 0;
    for (size_t i = 0; i < count; i++) {
      auto size = tensors[i]->numel();
      tensors[i]->set_data(flat.narrow(0, start, size).view(tensors[i]->sizes()));
      start += size;
    }
    *out = new Tensor(flat);
  });
}

// The norm over all tensors together, fp32 and on their device.
char* pipe_total_norm(Tensor** tensors, size_t count, Tensor** out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto norms = at::_foreach_norm(list(tensors, count), 2, at::kFloat);
    *out = new Tensor(at::linalg_vector_norm(at::stack(norms)));
  });
}

char* pipe_forget_gradient(Tensor* tensor) {
  return guarded([&] { tensor->mutable_grad() = Tensor(); });
}

char* pipe_checkpoint(Block block, void* data, void (*drop)(void*), Tensor** inputs, size_t count, Tensor** out) {
  // Owned from here on, whatever happens.
  auto closure = c10::make_intrusive<Closure>(block, data, drop);
  return guarded([&] {
    auto all = list(inputs, count);
    *out = new Tensor(Checkpoint::apply(closure, at::TensorList(all)));
  });
}

char* pipe_linear_cross_entropy(Tensor* hidden, Tensor* weight, Tensor* labels, int64_t ignored, int64_t rows, Tensor** out) {
  return guarded([&] {
    bool differentiate = at::GradMode::is_enabled() && (hidden->requires_grad() || weight->requires_grad());
    *out = new Tensor(LinearCrossEntropy::apply(*hidden, *weight, *labels, ignored, rows, differentiate));
  });
}

char* pipe_gelu_feed_forward(Tensor* x, Tensor* w1, Tensor* b1, Tensor* w2, Tensor* b2, int64_t rows, Tensor** out) {
  return guarded([&] { *out = new Tensor(GeluFeedForward::apply(*x, *w1, *b1, *w2, *b2, rows)); });
}

char* pipe_gated_gelu(Tensor* a, Tensor* b, Tensor** out) {
  return guarded([&] { *out = new Tensor(GatedGelu::apply(*a, *b)); });
}

// Bytes allocated, reserved, most allocated, most reserved; retries of allocations. For the card 0.
char* pipe_card_memory(uint64_t* out) {
  return guarded([&] {
    auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(0);
    out[0] = uint64_t(stats.allocated_bytes[0].current);
    out[1] = uint64_t(stats.reserved_bytes[0].current);
    out[2] = uint64_t(stats.allocated_bytes[0].peak);
    out[3] = uint64_t(stats.reserved_bytes[0].peak);
    out[4] = uint64_t(stats.num_alloc_retries);
  });
}

char* pipe_empty_cache() {
  return guarded([&] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache(); });
}

// For this thread and those that it starts.
void pipe_flush_denormals() {
  at::globalContext().setFlushDenormal(true);
}

void pipe_allow_tf32(bool allow) {
  at::globalContext().setFloat32MatmulPrecision(allow ? "high" : "highest");
}

char* pipe_deterministic(bool on) {
  return guarded([&] { at::globalContext().setDeterministicAlgorithms(on, false); });
}
}
