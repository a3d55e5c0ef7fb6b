// CUDA graphs: what a stream is given to do, recorded once and launched as one. The class is at::cuda::CUDAGraph, found by the names of its functions
// because its header needs the CUDA toolkit; it keeps the memory of what is recorded out of everyone else's hands.

#pragma once

#include <cstddef>
#include <utility>

#include <torch/torch.h>

#include "library.hpp"

class CudaGraph {
  using Pool = std::pair<unsigned long long, unsigned long long>;

  struct Functions {
    void (*construct)(void*, bool keeps_graph);
    void (*destroy)(void*);
    void (*begin)(void*, Pool, int mode);
    void (*end)(void*);
    void (*replay)(void*);
    Pool (*new_pool)();
  };

  static const Functions& functions() {
    static const Functions all = [] {
      Library library("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD, "CUDA graphs");
      auto find = [&](auto& into, const char* name) { library.find(into, name); };
      Functions f{};
      find(f.construct, "_ZN2at4cuda9CUDAGraphC1Eb");
      find(f.destroy, "_ZN2at4cuda9CUDAGraphD1Ev");
      find(f.begin, "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
      find(f.end, "_ZN2at4cuda9CUDAGraph11capture_endEv");
      find(f.replay, "_ZN2at4cuda9CUDAGraph6replayEv");
      find(f.new_pool, "_ZN2at4cuda17graph_pool_handleEv");
      return f;
    }();
    return all;
  }

  // Graphs run one after another, so that each may use the memory of all. A pool that all graphs have left is not used again.
  static inline size_t living = 0;
  static inline Pool pool;

  // Room for the object, which has less than 200 bytes.
  alignas(std::max_align_t) unsigned char object[1024];
  bool begun = false;

 public:
  CudaGraph() { functions().construct(object, false); }
  ~CudaGraph() {
    functions().destroy(object);
    if (begun) living--;
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void begin() {
    // What other threads ask of CUDA meanwhile is their own affair.
    const int thread_local_mode = 1;
    if (living == 0) pool = functions().new_pool();
    functions().begin(object, pool, thread_local_mode);
    begun = true;
    living++;
  }
  void end() { functions().end(object); }
  void replay() { functions().replay(object); }
};
