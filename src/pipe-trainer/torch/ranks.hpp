// Several processes that train together: how their tensors become one sum. Every rank makes the same calls in the same order.
//
// On cards NCCL does it, found by name when it is needed: its header is not in the wheel. Everywhere else Gloo does, through c10d.

#pragma once

#define USE_C10D_GLOO

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>

#include "cuda.hpp"
#include "functions.hpp"

namespace ranks {

// What sums. A sum is begun, and is there when `done` says so.
struct Link {
  virtual ~Link() = default;
  virtual void sum(Tensor tensor) = 0;
  // What `root` has, everywhere.
  virtual void broadcast(Tensor tensor, int root) = 0;
  // Several calls between these two may be made as one.
  virtual void group_begin() {}
  virtual void group_end() {}
  // Nothing more is begun until `done`.
  virtual void all_begun() {}
  // Whether what this rank has to give is computed.
  virtual bool ready() { return true; }
  virtual bool done() = 0;
  // Gives up on what was begun and is not done.
  virtual void leave() {}
};

// --- Gloo ---------------------------------------------------------------------------------------------------------------

class Gloo : public Link {
  struct Begun {
    Tensor tensor;
    // A copy on the host, where the tensor is on a card: it is there when `copied` is.
    Tensor host;
    std::unique_ptr<c10::Event> copied;
    int root;
    c10::intrusive_ptr<c10d::Work> work;
  };

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  std::deque<Begun> begun;

  void start(Begun& one) {
    std::vector<Tensor> tensors{one.host};
    if (one.root < 0) {
      one.work = group->allreduce(tensors);
    } else {
      c10d::BroadcastOptions options;
      options.rootRank = one.root;
      one.work = group->broadcast(tensors, options);
    }
  }

  void begin(Tensor tensor, int root) {
    at::NoGradGuard no_grad;
    Begun one{tensor.detach(), tensor.detach(), nullptr, root, {}};
    if (tensor.is_cuda()) {
      one.host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
      one.host.copy_(one.tensor, true);
      one.copied = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
      one.copied->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(tensor.device()));
    } else if (begun.empty() || begun.back().work) {
      start(one);
    }
    begun.push_back(std::move(one));
  }

 public:
  // Listens on an address of this machine, or on a network interface of that name.
  Gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int count, std::chrono::milliseconds timeout,
       const char* address, bool is_interface) {
    using Group = c10d::ProcessGroupGloo;
    auto options = Group::Options::create(timeout);
    options->devices.push_back(is_interface ? Group::createDeviceForInterface(address) : Group::createDeviceForHostname(address));
    group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, count, options);
  }

  void sum(Tensor tensor) override { begin(std::move(tensor), -1); }
  void broadcast(Tensor tensor, int root) override { begin(std::move(tensor), root); }

  bool ready() override {
    for (auto& one : begun) {
      if (one.copied && !one.copied->query()) return false;
    }
    return true;
  }

  bool done() override {
    // In order: one is started when all before it are.
    for (auto& one : begun) {
      if (one.work) continue;
      if (one.copied && !one.copied->query()) break;
      start(one);
    }
    while (!begun.empty()) {
      auto& one = begun.front();
      if (!one.work || !one.work->isCompleted()) return false;
      one.work->wait();
      if (one.copied) {
        at::NoGradGuard no_grad;
        one.tensor.copy_(one.host);
      }
      begun.pop_front();
    }
    return true;
  }
};

// --- NCCL ---------------------------------------------------------------------------------------------------------------

class Nccl : public Link {
  // As in nccl.h, where both are fixed.
  struct Id {
    char bytes[128];
  };
  enum Type { Half = 6, Float = 7, Double = 8, BFloat16 = 9 };

  struct Functions {
    int (*id)(Id*);
    int (*join)(void** comm, int count, Id, int rank);
    int (*all_reduce)(const void*, void*, size_t, int type, int sum, void* comm, void* stream);
    int (*broadcast)(const void*, void*, size_t, int type, int root, void* comm, void* stream);
    int (*group_begin)();
    int (*group_end)();
    int (*failed)(void* comm, int* error);
    int (*abort)(void* comm);
    const char* (*text)(int);
    const char* (*last_error)(void* comm);
  };

  static const Functions& functions() {
    static const Functions all = [] {
      Library library("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL, "NCCL");
      auto find = [&](auto& into, const char* name) { library.find(into, name); };
      Functions f{};
      find(f.id, "ncclGetUniqueId");
      find(f.join, "ncclCommInitRank");
      find(f.all_reduce, "ncclAllReduce");
      find(f.broadcast, "ncclBroadcast");
      find(f.group_begin, "ncclGroupStart");
      find(f.group_end, "ncclGroupEnd");
      find(f.failed, "ncclCommGetAsyncError");
      find(f.abort, "ncclCommAbort");
      find(f.text, "ncclGetErrorString");
      find(f.last_error, "ncclGetLastError");
      return f;
    }();
    return all;
  }

  void check(int status, const char* what) const {
    if (status == 0) return;
    const char* last = functions().last_error(comm);
    TORCH_CHECK(false, "NCCL: ", what, ": ", functions().text(status), last && *last ? ": " : "", last ? last : "");
  }

  static int type_of(const Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case at::kHalf: return Half;
      case at::kFloat: return Float;
      case at::kDouble: return Double;
      case at::kBFloat16: return BFloat16;
      default: TORCH_CHECK(false, "NCCL: no sums of ", tensor.scalar_type());
    }
  }

  c10::Device card;
  c10::impl::VirtualGuardImpl cards{c10::DeviceType::CUDA};
  c10::Stream stream;
  void* comm = nullptr;
  std::unique_ptr<c10::Event> computed, summed;

  // Behind everything that this thread has launched so far.
  void catch_up() {
    c10::Event event(c10::DeviceType::CUDA);
    event.record(cards.getStream(card));
    event.block(stream);
  }

 public:
  Nccl(c10d::Store& store, int rank, int count, int64_t index)
      : card(c10::DeviceType::CUDA, c10::DeviceIndex(index)), stream(cards.getStreamFromGlobalPool(card, true)) {
    Id id{};
    if (rank == 0) {
      check(functions().id(&id), "ncclGetUniqueId");
      store.set("nccl", std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
    } else {
      auto bytes = store.get("nccl");
      TORCH_CHECK(bytes.size() == sizeof id.bytes, "NCCL: no id");
      memcpy(id.bytes, bytes.data(), sizeof id.bytes);
    }
    c10::DeviceGuard use(card);
    check(functions().join(&comm, count, id, rank), "ncclCommInitRank");
  }

  void sum(Tensor tensor) override {
    catch_up();
    auto* at = tensor.data_ptr();
    check(functions().all_reduce(at, at, size_t(tensor.numel()), type_of(tensor), 0, comm, stream.native_handle()), "ncclAllReduce");
  }

  void broadcast(Tensor tensor, int root) override {
    catch_up();
    auto* at = tensor.data_ptr();
    check(functions().broadcast(at, at, size_t(tensor.numel()), type_of(tensor), root, comm, stream.native_handle()), "ncclBroadcast");
  }

  void group_begin() override { check(functions().group_begin(), "ncclGroupStart"); }
  void group_end() override { check(functions().group_end(), "ncclGroupEnd"); }

  void all_begun() override {
    computed = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    computed->record(cards.getStream(card));
    summed = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    summed->record(stream);
    // What is launched from now on finds the sums.
    summed->block(cards.getStream(card));
  }

  bool ready() override { return !computed || computed->query(); }

  bool done() override {
    int error = 0;
    check(functions().failed(comm, &error), "ncclCommGetAsyncError");
    check(error, "a sum");
    return !summed || summed->query();
  }

  void leave() override {
    if (comm) functions().abort(comm);
    comm = nullptr;
  }
};

// --- A stand-in ----------------------------------------------------------------------------------------------------------
// Takes as long as sums over a link of so many bytes a second would, on as much of the card: for measurements on one card.

class StandIn : public Link {
  c10::Device card;
  c10::impl::VirtualGuardImpl cards{c10::DeviceType::CUDA};
  c10::Stream stream;
  double bytes_per_ns, latency_ns;
  int64_t blocks;
  std::unique_ptr<c10::Event> summed;

 public:
  StandIn(int64_t index, double bytes_per_ns, double latency_ns, int64_t blocks)
      : card(c10::DeviceType::CUDA, c10::DeviceIndex(index)), stream(cards.getStreamFromGlobalPool(card, true)),
        bytes_per_ns(bytes_per_ns), latency_ns(latency_ns), blocks(blocks) {}

  void sum(Tensor tensor) override {
    c10::Event event(c10::DeviceType::CUDA);
    event.record(cards.getStream(card));
    event.block(stream);
    auto ns = (unsigned long long)(latency_ns + double(tensor.numel() * tensor.element_size()) / bytes_per_ns);
    // The stream of this thread is where kernels are launched.
    auto before = cards.exchangeStream(stream);
    cuda::launch(card, kernels::spin(), blocks, ns);
    cards.exchangeStream(before);
  }
  void broadcast(Tensor tensor, int) override { sum(std::move(tensor)); }
  void all_begun() override {
    summed = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    summed->record(stream);
    summed->block(cards.getStream(card));
  }
  bool done() override { return !summed || summed->query(); }
};

// --- Gradients that are summed while others are still computed -------------------------------------------------------------

// A gradient may be added to several times in one backward pass, where blocks are computed again. How often was counted in an
// earlier pass; one that comes later than that is `late`, and the sum is wrong.
class BucketSums {
  std::mutex mutex;
  std::vector<Tensor> buckets;
  std::vector<size_t> bucket_of;
  // How often each parameter is added to, in passes that compute blocks again and in those that do not. 0 is not known.
  std::vector<uint32_t> expected[2];
  std::vector<uint32_t> seen;
  // Parameters of each bucket that are still added to.
  std::vector<size_t> missing;
  size_t next = 0;
  bool watches = false, sums = false, late = false;
  int way = 0;

  void begin_sums() {
    while (next < buckets.size() && missing[next] == 0) link->sum(buckets[next++]);
  }

  struct Hook : torch::autograd::PostAccumulateGradHook {
    Hook(BucketSums* buckets, size_t index) : buckets(buckets), index(index) {}
    void operator()(const at::Tensor&) override { buckets->added(index); }
    BucketSums* buckets;
    size_t index;
  };

  void added(size_t index) {
    std::lock_guard<std::mutex> guard(mutex);
    if (!watches) return;
    seen[index]++;
    if (!sums) return;
    auto wanted = expected[way][index];
    if (seen[index] == wanted) {
      missing[bucket_of[index]]--;
      begin_sums();
    } else if (seen[index] > wanted && bucket_of[index] < next) {
      late = true;
    }
  }

 public:
  Link* link;

  BucketSums(Link* link, std::vector<Tensor> buckets, const std::vector<Tensor>& parameters, std::vector<size_t> bucket_of)
      : buckets(std::move(buckets)), bucket_of(std::move(bucket_of)), link(link) {
    for (size_t i = 0; i < parameters.size(); i++) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters[i], std::make_unique<Hook>(this, i));
    }
  }

  // Before the backward pass of the last part. Sums begin during it where the pass is known.
  void watch(bool recomputes, bool overlaps) {
    std::lock_guard<std::mutex> guard(mutex);
    way = recomputes ? 1 : 0;
    watches = true;
    late = false;
    next = 0;
    seen.assign(bucket_of.size(), 0);
    sums = overlaps && !expected[way].empty();
    if (!sums) return;
    missing.assign(buckets.size(), 0);
    for (size_t i = 0; i < bucket_of.size(); i++) {
      if (expected[way][i] > 0) missing[bucket_of[i]]++;
    }
  }

  // Nothing is summed any more until `watch`.
  void forget() {
    std::lock_guard<std::mutex> guard(mutex);
    watches = sums = late = false;
    next = 0;
  }

  // After it, or where there was none: the sums that have not begun yet do. Returns how many had begun before.
  size_t finish(bool* was_late) {
    std::lock_guard<std::mutex> guard(mutex);
    auto early = next;
    if (watches) expected[way] = seen;
    watches = sums = false;
    while (next < buckets.size()) link->sum(buckets[next++]);
    next = 0;
    link->all_begun();
    *was_late = late;
    late = false;
    return early;
  }
};

// A sum that a gradient goes through: the gradient of what each rank gave is the sum of the gradients of what all ranks got.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  using Wait = char* (*)(void* data);

  static Tensor summed(const Tensor& tensor, Link* link, Wait wait, void* data) {
    auto sum = tensor.detach().clone();
    link->sum(sum);
    link->all_begun();
    if (char* error = wait(data)) {
      auto freed = std::unique_ptr<char, decltype(&free)>(error, &free);
      throw std::runtime_error(error);
    }
    return sum;
  }

  static Tensor forward(AutogradContext* ctx, Tensor tensor, int64_t link, int64_t wait, int64_t data) {
    ctx->saved_data["link"] = link;
    ctx->saved_data["wait"] = wait;
    ctx->saved_data["data"] = data;
    return summed(tensor, reinterpret_cast<Link*>(link), reinterpret_cast<Wait>(wait), reinterpret_cast<void*>(data));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto of = [&](const char* name) { return ctx->saved_data[name].toInt(); };
    auto sum = summed(gradients[0].contiguous(), reinterpret_cast<Link*>(of("link")), reinterpret_cast<Wait>(of("wait")),
                      reinterpret_cast<void*>(of("data")));
    return {sum, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace ranks
