// What CUDA has without headers and kernels.cu, quantized.cu and attention.cu use, for a CPU. Included before kernels.cu.

#pragma once

#include <immintrin.h>

#include <algorithm>

#include "fibers.hpp"

#define PIPE_ON_CPU
#define __device__
#define __global__
#define __constant__ static const
#define __shared__ static
#define __launch_bounds__(...)

using std::max;
using std::min;

inline float __uint_as_float(unsigned bits) { float out; memcpy(&out, &bits, 4); return out; }
inline unsigned __float_as_uint(float x) { unsigned out; memcpy(&out, &x, 4); return out; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
// What is stored is rounded, whatever the compiler would make of it.
inline float __fmul_rn(float x, float y) { volatile float out = x * y; return out; }
inline float __fadd_rn(float x, float y) { volatile float out = x + y; return out; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_reciprocal(float x) { return 1 / x; }
inline float fast_root(float x) { return std::sqrt(x); }

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) out |= unsigned(bytes >> (selector >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
  return out;
}

inline void __syncthreads() { cpu::barrier(); }

inline void __syncwarp() {
  int nothing = 0;
  cpu::collective(nothing, [](int**) {});
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lane) {
  if (mask != 0xFFFFFFFFu) cpu::fail("a shuffle of some lanes");
  struct { T in, out; int from; } mine{value, T(), lane};
  cpu::collective(mine, [](auto** lanes) {
    for (int i = 0; i < 32; i++) lanes[i]->out = lanes[i ^ lanes[i]->from]->in;
  });
  return mine.out;
}

struct F16;
float wide(F16 x);
void store(F16& to, float x);
