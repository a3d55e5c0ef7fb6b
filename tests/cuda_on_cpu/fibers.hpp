// Runs CUDA kernels on a CPU: every thread of a block is a fiber of one OS thread. Fibers switch at barriers and at warp
// collectives only, so a run is deterministic; the order of the warps is a parameter, and a missing barrier shows as a
// difference between two orders.
//
// Shared memory is filled with NaN patterns before each block, and a page without access follows it.

#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

namespace cpu {

[[noreturn]] inline void fail(const char* message) {
  fprintf(stderr, "emulator: %s\n", message);
  abort();
}

// --- Memory that ends at a page without access ----------------------------------------------------------------------------

const size_t PAGE = 4096;

// A page without access is on either side. `bytes` end at the second one but for what a 16-byte alignment needs; the rest of the
// pages holds a pattern that `intact` checks.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    room_ = (bytes + 15) / 16 * 16;
    pages_ = (room_ + PAGE - 1) / PAGE * PAGE;
    all_ = static_cast<unsigned char*>(mmap(nullptr, pages_ + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (all_ == MAP_FAILED) fail("mmap failed");
    if (pages_ && mprotect(all_ + PAGE, pages_, PROT_READ | PROT_WRITE) != 0) fail("mprotect failed");
    memset(all_ + PAGE, 0xFF, pages_);
  }
  Guarded(const Guarded&) = delete;
  Guarded(Guarded&& other) noexcept { *this = std::move(other); }
  Guarded& operator=(Guarded&& other) noexcept {
    std::swap(all_, other.all_);
    std::swap(bytes_, other.bytes_);
    std::swap(room_, other.room_);
    std::swap(pages_, other.pages_);
    return *this;
  }
  ~Guarded() {
    if (all_) munmap(all_, pages_ + 2 * PAGE);
  }

  unsigned char* data() const { return all_ + PAGE + pages_ - room_; }
  size_t size() const { return bytes_; }
  void fill_with_nan() { memset(all_ + PAGE, 0xFF, pages_); }
  bool intact() const {
    auto blank = [](const unsigned char* from, const unsigned char* to) {
      while (from < to) if (*from++ != 0xFF) return false;
      return true;
    };
    return blank(all_ + PAGE, data()) && blank(data() + bytes_, all_ + PAGE + pages_);
  }

 private:
  unsigned char* all_ = nullptr;
  size_t bytes_ = 0, room_ = 0, pages_ = 0;
};

// --- Switching stacks ----------------------------------------------------------------------------------------------------------

#if !defined(__x86_64__)
#error "the switch of fibers is written for x86-64"
#endif
extern "C" void pipe_switch_fiber(void** save, void* to);
asm(R"(
.text
.globl pipe_switch_fiber
pipe_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum State { READY, AT_BARRIER, DONE };

struct PendingCopy {
  unsigned char* to;
  const unsigned char* from;
  unsigned bytes, copied;
};

struct Fiber {
  void* stack_pointer = nullptr;
  State state = READY;
  // Copies in the background: groups that were committed, and the group that was not.
  std::vector<std::vector<PendingCopy>> groups;
  std::vector<PendingCopy> open;
};

struct Warp {
  unsigned arrived = 0;
  uint64_t generation = 0;
  void* slots[32];
};

// The block that runs.
struct Block {
  static constexpr size_t STACK = 128 * 1024;

  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<unsigned> warp_order;
  unsigned char* stacks = nullptr;
  void* scheduler = nullptr;
  unsigned current = 0, at_barrier = 0, done = 0;
  uint64_t idle = 0;
  const std::function<void()>* body = nullptr;
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
};

inline Block& block() {
  static Block the;
  return the;
}

}  // namespace cpu

inline cpu::Index threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {

inline void switch_to(unsigned next) {
  Block& b = block();
  unsigned from = b.current;
  if (next == from) return;
  b.current = next;
  threadIdx.x = next;
  pipe_switch_fiber(&b.fibers[from].stack_pointer, b.fibers[next].stack_pointer);
}

// Another lane of this warp that can run, or a lane of another warp, or back to the scheduler.
inline void yield() {
  Block& b = block();
  if (++b.idle > 10'000'000) fail("deadlock: a barrier or a warp collective that some threads do not reach");
  unsigned warp = b.current / 32, lane = b.current % 32;
  for (unsigned i = 1; i <= 32; i++) {
    unsigned next = warp * 32 + (lane + i) % 32;
    if (b.fibers[next].state == READY) return switch_to(next);
  }
  size_t place = 0;
  while (b.warp_order[place] != warp) place++;
  for (size_t w = 1; w < b.warps.size(); w++) {
    unsigned other = b.warp_order[(place + w) % b.warps.size()];
    for (unsigned i = 0; i < 32; i++) {
      if (b.fibers[other * 32 + i].state == READY) return switch_to(other * 32 + i);
    }
  }
  if (b.done != b.fibers.size()) fail("deadlock: threads wait at a barrier that others have passed or left");
  void* unused;
  pipe_switch_fiber(&unused, b.scheduler);
}

inline void finish_group(std::vector<PendingCopy>& group) {
  for (auto& copy : group) {
    memcpy(copy.to, copy.from, copy.copied);
    memset(copy.to + copy.copied, 0, copy.bytes - copy.copied);
  }
}

inline void fiber_main() {
  Block& b = block();
  (*b.body)();
  Fiber& fiber = b.fibers[b.current];
  if (!fiber.open.empty() || !fiber.groups.empty()) fail("a thread ends while its copies are under way");
  fiber.state = DONE;
  b.done++;
  b.idle = 0;
  yield();
  fail("a fiber that has ended runs");
}

// Runs `body` for each thread of each block, the warps in the given order (0: ascending; another number: a permutation of it).
inline void launch(Index grid, unsigned threads, size_t shared_bytes, unsigned order, const std::function<void()>& body) {
  Block& b = block();
  if (threads % 32) fail("blocks are whole warps here");
  if (!b.stacks) {
    b.stacks = static_cast<unsigned char*>(
        mmap(nullptr, Block::STACK * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (b.stacks == MAP_FAILED) fail("mmap failed");
  }
  Guarded shared(shared_bytes);
  b.shared = shared.data();
  b.shared_bytes = shared_bytes;
  b.body = &body;
  gridDim = grid;
  blockDim = {threads, 1, 1};
  b.warp_order.resize(threads / 32);
  std::iota(b.warp_order.begin(), b.warp_order.end(), 0u);
  if (order) std::shuffle(b.warp_order.begin(), b.warp_order.end(), std::mt19937(order));
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        shared.fill_with_nan();
        b.fibers.assign(threads, {});
        b.warps.assign(threads / 32, {});
        b.at_barrier = b.done = 0;
        b.idle = 0;
        for (unsigned t = 0; t < threads; t++) {
          auto* top = reinterpret_cast<void**>(b.stacks + Block::STACK * (t + 1));
          *--top = nullptr;                                 // keeps the stack aligned as after a call
          *--top = reinterpret_cast<void*>(&fiber_main);    // what the first switch returns to
          top -= 6;                                         // the registers it pops
          b.fibers[t].stack_pointer = top;
        }
        b.current = b.warp_order[0] * 32;
        threadIdx = {b.current, 0, 0};
        pipe_switch_fiber(&b.scheduler, b.fibers[b.current].stack_pointer);
        if (!shared.intact()) fail("a write outside of shared memory");
      }
}

// --- Barriers and collectives ----------------------------------------------------------------------------------------------------

inline void barrier() {
  Block& b = block();
  if (++b.at_barrier == b.fibers.size()) {
    b.at_barrier = 0;
    b.idle = 0;
    for (auto& fiber : b.fibers) fiber.state = READY;
    // The warps go on in their order.
    if (b.current != b.warp_order[0] * 32) switch_to(b.warp_order[0] * 32);
    return;
  }
  b.fibers[b.current].state = AT_BARRIER;
  yield();
}

// Every lane brings `mine`; the last one to arrive runs `all` on those of the whole warp.
template <typename T, typename F>
void collective(T& mine, F all) {
  Block& b = block();
  Warp& warp = b.warps[b.current / 32];
  warp.slots[b.current % 32] = &mine;
  uint64_t generation = warp.generation;
  if (++warp.arrived == 32) {
    T* lanes[32];
    for (int i = 0; i < 32; i++) lanes[i] = static_cast<T*>(warp.slots[i]);
    all(lanes);
    warp.arrived = 0;
    warp.generation++;
    b.idle = 0;
    return;
  }
  while (warp.generation == generation) yield();
}

}  // namespace cpu
