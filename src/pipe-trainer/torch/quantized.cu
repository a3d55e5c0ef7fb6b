// Weights of 4 and 8 bits made wide again, and AdamW with moments of 8 bits. Follows kernels.cu and quantized_numbers.hpp in the text that is compiled.

// --- Numbers of 4 bits (NormalFloat, Dettmers et al., 2023) ---------------------------------------------------------------------
// Products and sums are rounded one by one, so that the CPU gives the same bits: quantized.hpp.

__constant__ float NF4[16] = NF4_NUMBERS;

struct alignas(16) FourWords { u32 v[4]; };

// The scale of a block of 64 is itself a number of 8 bits, in blocks of 256.
struct BlockScales {
  const unsigned char* codes;
  const float* scales;
  float offset;
  __device__ float at(u64 block, const float* numbers) const {
    return __fadd_rn(__fmul_rn(numbers[codes[block]], scales[block / 256]), offset);
  }
};

// Two numbers in a byte, the first in its upper half. A thread takes four groups of eight at a time, so that enough reads are under way.
template <typename T>
__global__ void dequantize_nf4(const unsigned char* packed, const unsigned char* scale_codes, const float* scales_of_scales, const float* map,
                               float offset, T* out, u64 n) {
  const u32 AT_ONCE = 4;
  // Each of the 16 numbers lies in a bank of its own: no two threads ever wait for each other.
  __shared__ float values[16];
  __shared__ float numbers[256];
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) numbers[i] = map[i];
  if (threadIdx.x < 16) values[threadIdx.x] = NF4[threadIdx.x];
  __syncthreads();
  BlockScales scales{scale_codes, scales_of_scales, offset};
  u64 groups = n / 8, stride = u64(gridDim.x) * blockDim.x * AT_ONCE;
  for (u64 first = u64(blockIdx.x) * blockDim.x * AT_ONCE + threadIdx.x; first < groups; first += stride) {
    u32 bits[AT_ONCE];
    float scale[AT_ONCE];
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++) {
      u64 g = first + k * blockDim.x;
      if (g >= groups) break;
      bits[k] = ((const u32*)packed)[g];
      scale[k] = scales.at(g / 8, numbers);
    }
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++) {
      u64 g = first + k * blockDim.x;
      if (g >= groups) break;
      Eight<T> y;
#pragma unroll
      for (int i = 0; i < 8; i++) store(y.v[i], __fmul_rn(values[bits[k] >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15], scale[k]));
      ((Eight<T>*)out)[g] = y;
    }
  }
  u64 at = groups * 8 + threadIdx.x;
  if (blockIdx.x == 0 && at < n) {
    u32 code = at % 2 ? packed[at / 2] & 15 : packed[at / 2] >> 4;
    store(out[at], __fmul_rn(values[code], scales.at(at / 64, numbers)));
  }
}

// The product of few rows with a matrix of such numbers, which is never written wide: out[m][n] = x[m] . w[n] + bias[n]. A warp takes a row of
// the matrix, a lane 32 numbers of it at a time, rounded as `dequantize_nf4` rounds them. `columns` is a multiple of 64.
template <typename T, int ROWS>
__global__ void multiply_nf4(const unsigned char* packed, const unsigned char* scale_codes, const float* scales_of_scales, const float* map,
                             float offset, const T* x, const T* bias, T* out, u32 rows, u32 outputs, u32 columns) {
  __shared__ float values[16];
  __shared__ float numbers[256];
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) numbers[i] = map[i];
  if (threadIdx.x < 16) values[threadIdx.x] = NF4[threadIdx.x];
  __syncthreads();
  u32 n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  // Whole warps leave.
  if (n >= outputs) return;
  BlockScales scales{scale_codes, scales_of_scales, offset};
  u64 row = u64(n) * columns;
  float sums[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; m++) sums[m] = 0;
  for (u32 k = lane * 32; k < columns; k += 32 * 32) {
    FourWords bits = *(const FourWords*)(packed + (row + k) / 2);
    float scale = scales.at((row + k) / 64, numbers);
#pragma unroll
    for (int word = 0; word < 4; word++) {
      float w[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        T narrow;
        store(narrow, __fmul_rn(values[bits.v[word] >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15], scale));
        w[i] = wide(narrow);
      }
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        if (u32(m) >= rows) break;
        Eight<T> y = ((const Eight<T>*)(x + u64(m) * columns + k))[word];
#pragma unroll
        for (int i = 0; i < 8; i++) sums[m] += w[i] * wide(y.v[i]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    if (u32(m) >= rows) break;
#pragma unroll
    for (int other = 16; other > 0; other >>= 1) sums[m] += __shfl_xor_sync(0xFFFFFFFFu, sums[m], other);
    if (lane == 0) store(out[u64(m) * outputs + n], sums[m] + (bias ? wide(bias[n]) : 0));
  }
}

// --- Numbers of 8 bits, scaled by row -------------------------------------------------------------------------------------------

struct alignas(8) EightBytes { signed char v[8]; };

// blockIdx.y takes a row.
template <typename T>
__global__ void dequantize_int8(const signed char* codes, const float* scales, T* out, u32 rows, u32 columns) {
  for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
    float scale = scales[row];
    const signed char* from = codes + u64(row) * columns;
    T* to = out + u64(row) * columns;
    u32 start = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    // Only then every row begins where eight can be read at once.
    u32 groups = columns % 8 ? 0 : columns / 8;
    for (u32 g = start; g < groups; g += stride) {
      EightBytes x = ((const EightBytes*)from)[g];
      Eight<T> y;
#pragma unroll
      for (int i = 0; i < 8; i++) store(y.v[i], __fmul_rn(__fmul_rn(float(x.v[i]), scale), ONE_BY_127));
      ((Eight<T>*)to)[g] = y;
    }
    for (u32 i = groups * 8 + start; i < columns; i += stride) store(to[i], __fmul_rn(__fmul_rn(float(from[i]), scale), ONE_BY_127));
  }
}

// --- AdamW with moments of 8 bits (Dettmers et al., 2022) -----------------------------------------------------------------------
// A warp takes a block of 256 numbers, which share a scale; a lane every 32nd of them. `maps` are the 256 numbers that a code of the average may
// stand for, then those of the square. `update_8bit` in quantized.hpp is the same on the CPU.

// As `NarrowParameter` in quantized.hpp.
struct NarrowParameter {
  void *p, *g;
  unsigned char *m, *v;
  float *m_scales, *v_scales;
  u64 n;
  u64 first;  // the first block of threads that works on it
};

__device__ inline float warp_maximum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) {
    float other = __shfl_xor_sync(0xFFFFFFFFu, x, lane);
    x = other > x ? other : x;
  }
  return x;
}

// The code of the nearest number: how many of the 255 middles between numbers are below x.
__device__ inline u32 nearest(const float* middles, float x) {
  u32 low = 0, high = 255;
#pragma unroll
  for (int halving = 0; halving < 8; halving++) {
    u32 middle = (low + high) / 2;
    if (low < high) {
      if (middles[middle] < x) low = middle + 1; else high = middle;
    }
  }
  return low;
}

__device__ inline float inverse_of(float scale) { return 1.0f / (scale > 1e-38f ? scale : 1e-38f); }

__device__ inline void store_weight(float& to, float x, u32) { to = x; }
__device__ inline void store_weight(BF16& to, float x, u32 noise) { rounded(to, x, noise); }

template <typename T>
__global__ void adamw_8bit(const NarrowParameter* parameters, u32 count, const float* maps, const float* gradient_scale, AdamW s) {
  __shared__ float numbers[2][256];
  __shared__ float middles[2][256];
  for (u32 i = threadIdx.x; i < 512; i += blockDim.x) {
    numbers[i / 256][i % 256] = maps[i];
    if (i % 256 < 255) middles[i / 256][i % 256] = (maps[i] + maps[i + 1]) * 0.5f;
  }
  __syncthreads();
  u32 low = 0, high = count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (parameters[middle].first <= blockIdx.x) low = middle; else high = middle;
  }
  NarrowParameter of = parameters[low];
  u64 block = (blockIdx.x - of.first) * (blockDim.x / 32) + threadIdx.x / 32, at = block * 256 + threadIdx.x % 32;
  // Whole warps leave.
  if (block * 256 >= of.n) return;
  float scale = *gradient_scale, m_scale = of.m_scales[block], v_scale = of.v_scales[block], m[8], v[8], most_m = 0, most_v = 0;
  T *p = (T*)of.p, *g = (T*)of.g;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    m[i] = v[i] = 0;
    if (at + i * 32 >= of.n) continue;
    float grad = wide(g[at + i * 32]) * scale;
    m[i] = numbers[0][of.m[at + i * 32]] * m_scale * s.beta1 + grad * s.new1;
    v[i] = numbers[1][of.v[at + i * 32]] * v_scale * s.beta2 + grad * grad * s.new2;
    float w = wide(p[at + i * 32]) * s.fade - s.size * m[i] / (sqrtf(v[i]) / s.root2 + s.eps);
    u32 h = __float_as_uint(grad) * 0x9E3779B1u ^ __float_as_uint(m[i]) * 0x85EBCA77u ^ __float_as_uint(w) * 0xC2B2AE3Du ^
            (s.seed + u32(at + i * 32)) * 0x27D4EB2Fu;
    h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
    store_weight(p[at + i * 32], w, h);
    most_m = fabsf(m[i]) > most_m ? fabsf(m[i]) : most_m;
    most_v = v[i] > most_v ? v[i] : most_v;
  }
  most_m = warp_maximum(most_m);
  most_v = warp_maximum(most_v);
  float to_m = inverse_of(most_m), to_v = inverse_of(most_v);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (at + i * 32 >= of.n) continue;
    of.m[at + i * 32] = (unsigned char)nearest(middles[0], m[i] * to_m);
    of.v[at + i * 32] = (unsigned char)nearest(middles[1], v[i] * to_v);
  }
  if (threadIdx.x % 32 == 0) {
    of.m_scales[block] = most_m;
    of.v_scales[block] = most_v;
  }
}
