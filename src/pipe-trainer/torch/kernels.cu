// The CUDA kernels, each compiled by NVRTC when the trainer first needs it, for the types it needs it for: no header, no
// toolkit. `cuda.hpp` launches them.
//
// What is stored is BF16, F16 or float; all arithmetic is float. A thread takes eight elements at a time, which are 16 or 32
// bytes. Where less is left they go one by one.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct BF16 { u16 bits; };
struct F16 { u16 bits; };

__device__ inline float wide(BF16 x) { return __uint_as_float(u32(x.bits) << 16); }
#ifndef PIPE_ON_CPU  // tests/cuda_on_cpu has these without PTX
__device__ inline float wide(F16 x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
  return out;
}
__device__ inline void store(F16& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }

__device__ inline float fast_exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
__device__ inline float fast_reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
__device__ inline float fast_root(float x) {
  float out;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
#endif
__device__ inline float wide(float x) { return x; }

__device__ inline void store(BF16& to, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  u32 b = __float_as_uint(x);
  to.bits = x != x ? u16(0x7FFF) : u16((b + 0x7FFFu + ((b >> 16) & 1u)) >> 16);
#endif
}
__device__ inline void store(float& to, float x) { to = x; }

template <typename T> struct alignas(16) Eight { T v[8]; };

// --- What dropout drops: a function of key, sample, position and feature alone (docs/dev/dropout.md). dropout.hpp is the same on the CPU --------

// Philox4x32-7 (Salmon et al., 2011).
__device__ inline void philox(u64 key, u32 c0, u32 c1, u32 c2, u32 c3, u32 out[4]) {
  u32 k0 = u32(key), k1 = u32(key >> 32);
#pragma unroll
  for (int round = 0; round < 7; round++) {
    u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
    u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

// Where a token stands.
struct alignas(8) TokenPlace { u32 sample, position; };

// 0 for a share of threshold/65536, `kept` for the others. Of a tensor [samples, positions, features], or [1, tokens, features] where samples are
// packed.
struct Dropout {
  u64 key;
  u32 threshold;
  float kept;
  u32 first_sample, positions, features;
  const u64* place;  // key, and what is added to the first sample; null where they stand above
  const TokenPlace* tokens;  // of each row, where samples are packed; else null
};

// Where a kernel is part of a CUDA graph its arguments are those of the capture, and what changes is read from the card's memory.
template <typename D> __device__ inline D drawn_now(D d) {
  if (d.place) {
    d.key = d.place[0];
    d.first_sample += u32(d.place[1]);
  }
  return d;
}

// Number `i` of the eight factors that a draw gives.
__device__ inline float factor(const Dropout& d, const u32 drawn[4], int i) {
  u32 half = (i & 1) ? drawn[i >> 1] >> 16 : drawn[i >> 1] & 0xFFFFu;
  return half < d.threshold ? 0.0f : d.kept;
}

__device__ inline void draw(const Dropout& d, u32 row, u32 group, u32 drawn[4]) {
  TokenPlace at = d.tokens ? d.tokens[row] : TokenPlace{row / d.positions, row % d.positions};
  philox(d.key, group, at.position, at.sample + d.first_sample, 0, drawn);
}

// What eight elements of a row are multiplied by, whose width is a multiple of eight.
__device__ inline void factors_in_row(const Dropout& d, u32 row, u32 group, float out[8]) {
  u32 drawn[4];
  if (d.threshold) draw(d, row, group, drawn);
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = d.threshold ? factor(d, drawn, i) : 1.0f;
}

// The same for the eight elements from `group` * 8 on, in rows of any width. Tensors have less than 2^35 elements.
__device__ inline void factors(const Dropout& d, u64 group, float out[8]) {
  if (d.threshold == 0 || d.features % 8 == 0) {
    u32 in_row = d.features / 8;
    return factors_in_row(d, d.threshold ? u32(group) / in_row : 0, d.threshold ? u32(group) % in_row : 0, out);
  }
  // They may lie in two rows or more. A bit for each that is kept: an array would not stay in registers here.
  u32 kept = 0;
#pragma unroll 1
  for (int i = 0; i < 8; i++) {
    u64 at = group * 8 + i;
    u32 feature = u32(at % d.features), number = feature % 8, drawn[4];
    draw(d, u32(at / d.features), feature / 8, drawn);
    u32 word = number < 4 ? (number < 2 ? drawn[0] : drawn[1]) : (number < 6 ? drawn[2] : drawn[3]);
    kept |= u32((number & 1 ? word >> 16 : word & 0xFFFFu) >= d.threshold) << i;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = kept >> i & 1 ? d.kept : 0.0f;
}

// Runs F on groups of eight; `F::eight` has whole ones, `F::one` what is left.
template <typename F> __device__ inline void in_eights(u64 n, F f) {
  u64 groups = n / 8, stride = u64(gridDim.x) * blockDim.x;
  for (u64 g = u64(blockIdx.x) * blockDim.x + threadIdx.x; g < groups; g += stride) f.eight(g);
  if (blockIdx.x == 0 && threadIdx.x < n % 8) f.one(groups, threadIdx.x);
}

// --- out = residual + dropped in ------------------------------------------------------------------------------------------

template <typename I, typename R, typename O> struct DropAdd {
  const I* in;
  const R* residual;  // may be null
  O* out;
  Dropout d;
  __device__ void eight(u64 g) {
    float factor[8];
    factors(d, g, factor);
    Eight<I> x = ((const Eight<I>*)in)[g];
    Eight<O> y;
    if (residual) {
      Eight<R> r = ((const Eight<R>*)residual)[g];
#pragma unroll
      for (int i = 0; i < 8; i++) store(y.v[i], wide(r.v[i]) + wide(x.v[i]) * factor[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; i++) store(y.v[i], wide(x.v[i]) * factor[i]);
    }
    ((Eight<O>*)out)[g] = y;
  }
  __device__ void one(u64 g, u32 i) {
    float factor[8];
    factors(d, g, factor);
    u64 at = g * 8 + i;
    store(out[at], (residual ? wide(residual[at]) : 0.0f) + wide(in[at]) * factor[i]);
  }
};

template <typename I, typename R, typename O>
__global__ void drop_add(const I* in, const R* residual, O* out, u64 n, Dropout d) {
  in_eights(n, DropAdd<I, R, O>{in, residual, out, drawn_now(d)});
}

// --- Some of the weights of attention, [samples, heads, queries, keys] ------------------------------------------------------------
// Drawn in tiles of 16 by 16, one for each warp: a draw gives the eight that one thread of a tensor core holds.

template <typename T>
__global__ void drop_weights(const T* in, T* out, u32 heads, u32 queries, u32 keys, u64 tiles, Dropout d) {
  d = drawn_now(d);
  u32 lane = threadIdx.x % 32, down = (queries + 15) / 16, across = (keys + 15) / 16;
  u64 stride = u64(gridDim.x) * blockDim.x / 32;
  for (u64 tile = (u64(blockIdx.x) * blockDim.x + threadIdx.x) / 32; tile < tiles; tile += stride) {
    u32 x = u32(tile % across), y = u32(tile / across % down), plane = u32(tile / across / down), drawn[4];
    philox(d.key, x * 32 + lane, y, plane / heads + d.first_sample, plane % heads + 1, drawn);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      u32 i = y * 16 + (e / 2 % 2) * 8 + lane / 4, j = x * 16 + (e / 4) * 8 + (lane % 4) * 2 + e % 2;
      u64 at = (u64(plane) * queries + i) * keys + j;
      if (i < queries && j < keys) store(out[at], wide(in[at]) * factor(d, drawn, e));
    }
  }
}

// --- Activations, with what is dropped behind them ------------------------------------------------------------------------

enum { RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH };

#define LOG2_E 1.4426950408889634f

// 1 / (1 + exp(-x)), to 1e-6 of it where `is_narrow`.
template <bool is_narrow> __device__ inline float sigmoid(float x) {
  return is_narrow ? fast_reciprocal(1 + fast_exp2(-LOG2_E * x)) : 1 / (1 + expf(-x));
}

// The share of a normal distribution below x, and its density there. Where `is_narrow` by formula 7.1.26 of Abramowitz and Stegun, with an
// error of 8e-8 at most: erff takes several times as long, longer than memory takes to bring a number of 16 bits.
template <bool is_narrow> __device__ inline void normal(float x, float& share, float& density) {
  if (!is_narrow) {
    share = 0.5f * (1 + erff(x * 0.70710678118654752f));
    density = 0.39894228040143268f * expf(-0.5f * x * x);
    return;
  }
  float e = fast_exp2(-0.5f * LOG2_E * x * x), t = fast_reciprocal(1 + 0.23164189f * fabsf(x));
  float above = t * (0.127414796f + t * (-0.142248368f + t * (0.710706870f + t * (-0.726576014f + t * 0.530702715f)))) * e;
  share = x < 0 ? above : 1 - above;
  density = 0.39894228040143268f * e;
}

// The value of an activation and its slope. Where `is_narrow`, both are exact to the 16 bits they are stored in.
template <int kind, bool is_narrow> __device__ inline void activation(float x, float& y, float& slope) {
  switch (kind) {
    case RELU: y = x > 0 ? x : 0; slope = x > 0; break;
    case GELU: {
      float share, density;
      normal<is_narrow>(x, share, density);
      y = x * share;
      slope = share + x * density;
      break;
    }
    case GELU_TANH: {
      // (1 + tanh(u)) / 2 is sigmoid(2 u).
      float s = sigmoid<is_narrow>(x * (1.59576912160573f + 0.0713548162726f * x * x));
      y = x * s;
      slope = s + y * (1 - s) * (1.59576912160573f + 0.2140644488178f * x * x);
      break;
    }
    case QUICK_GELU: {
      float s = sigmoid<is_narrow>(1.702f * x);
      y = x * s;
      slope = s + 1.702f * y * (1 - s);
      break;
    }
    case SILU: {
      float s = sigmoid<is_narrow>(x);
      y = x * s;
      slope = s + y * (1 - s);
      break;
    }
    default: y = tanhf(x); slope = 1 - y * y;
  }
}

// Rows of `width` numbers, a multiple of eight. A thread takes eight columns in every gridDim.y-th row; blockIdx.x says which columns.
struct Columns {
  u32 groups, group;
  __device__ explicit Columns(u32 width) : groups(width / 8), group(blockIdx.x * blockDim.x + threadIdx.x) {}
  __device__ bool exist() const { return group < groups; }
  __device__ u64 of(u32 row) const { return u64(row) * groups + group; }
};

// The bias of eight columns; none where it is null.
template <typename B> __device__ inline void load_bias(const B* bias, u32 group, float out[8]) {
  Eight<B> x;
  if (bias) x = ((const Eight<B>*)bias)[group];
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = bias ? wide(x.v[i]) : 0;
}

// act(a + bias) * b, some of it dropped; b and bias may be null.
template <typename T, typename B, int kind>
__global__ void activate(const T* a, const T* b, const B* bias, T* out, u32 rows, u32 width, Dropout d) {
  d = drawn_now(d);
  Columns columns(width);
  if (!columns.exist()) return;
  float added[8], factor[8];
  load_bias(bias, columns.group, added);
  for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
    u64 at = columns.of(row);
    Eight<T> x = ((const Eight<T>*)a)[at], gate, y;
    if (b) gate = ((const Eight<T>*)b)[at];
    factors_in_row(d, row, columns.group, factor);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float value, slope;
      activation<kind, sizeof(T) == 2>(wide(x.v[i]) + added[i], value, slope);
      store(y.v[i], value * (b ? wide(gate.v[i]) : 1) * factor[i]);
    }
    ((Eight<T>*)out)[at] = y;
  }
}

// All that the backward pass needs, in one: what `activate` gave is written over `a`, the gradient of `a` over that of what it gave, and that
// of `b` over `b`. d_bias, which may be null, gets sums of the gradient of `a`: [gridDim.y, width], each over the rows of one block.
template <typename T, typename B, int kind>
__global__ void activate_backward(T* a, T* b, const B* bias, T* d_out, float* d_bias, u32 rows, u32 width, Dropout d) {
  d = drawn_now(d);
  Columns columns(width);
  if (!columns.exist()) return;
  float added[8], factor[8], sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  load_bias(bias, columns.group, added);
  for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
    u64 at = columns.of(row);
    Eight<T> x = ((const Eight<T>*)a)[at], dy = ((const Eight<T>*)d_out)[at], gate;
    if (b) gate = ((const Eight<T>*)b)[at];
    factors_in_row(d, row, columns.group, factor);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float value, slope, by = b ? wide(gate.v[i]) : 1, grad = wide(dy.v[i]) * factor[i];
      activation<kind, sizeof(T) == 2>(wide(x.v[i]) + added[i], value, slope);
      store(x.v[i], value * by * factor[i]);
      store(dy.v[i], grad * by * slope);
      store(gate.v[i], grad * value);
      sums[i] += grad * by * slope;
    }
    ((Eight<T>*)a)[at] = x;
    ((Eight<T>*)d_out)[at] = dy;
    if (b) ((Eight<T>*)b)[at] = gate;
  }
  if (!d_bias) return;
  float* to = d_bias + u64(blockIdx.y) * width + columns.group * 8;
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = sums[i];
}

// --- norm(residual + dropped (in + in_bias)) -------------------------------------------------------------------------------
// A block of 128 threads takes a row at a time, each thread MOST groups of eight. `hat` is the norm before weight and bias, all
// that the backward pass needs. Without `in` the residual itself is normed; `sum` may be null.

__device__ inline float row_sum(float x, float* shared) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, lane);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return shared[0] + shared[1] + shared[2] + shared[3];
}

// Of two numbers at once.
__device__ inline void row_sums(float& x, float& y, float* shared) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, lane);
    y += __shfl_xor_sync(0xFFFFFFFFu, y, lane);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = x;
    shared[4 + threadIdx.x / 32] = y;
  }
  __syncthreads();
  x = shared[0] + shared[1] + shared[2] + shared[3];
  y = shared[4] + shared[5] + shared[6] + shared[7];
}

template <typename T, typename S, typename W, int MOST>
__global__ void add_norm(const T* in, const W* in_bias, const S* residual, const W* weight, const W* bias, S* sum, T* hat,
                         T* out, float* inverse, u64 rows, u32 width, float eps, Dropout d) {
  d = drawn_now(d);
  __shared__ float shared[4];
  u32 groups = width / 8;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    float kept[MOST][8], total = 0;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      u64 at = row * groups + g;
      Eight<S> s = ((const Eight<S>*)residual)[at];
      if (in) {
        float factor[8];
        factors_in_row(d, u32(row), g, factor);
        Eight<T> x = ((const Eight<T>*)in)[at];
        Eight<W> b;
        if (in_bias) b = ((const Eight<W>*)in_bias)[g];
#pragma unroll
        for (int i = 0; i < 8; i++) {
          store(s.v[i], wide(s.v[i]) + (wide(x.v[i]) + (in_bias ? wide(b.v[i]) : 0)) * factor[i]);
        }
        if (sum) ((Eight<S>*)sum)[at] = s;
      }
#pragma unroll
      for (int i = 0; i < 8; i++) total += kept[k][i] = wide(s.v[i]);
    }
    float m = row_sum(total, shared) / width, squares = 0;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      if (threadIdx.x + k * blockDim.x >= groups) break;
#pragma unroll
      for (int i = 0; i < 8; i++) squares += (kept[k][i] - m) * (kept[k][i] - m);
    }
    float inv = rsqrtf(row_sum(squares, shared) / width + eps);
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      Eight<W> w = ((const Eight<W>*)weight)[g], b = ((const Eight<W>*)bias)[g];
      Eight<T> h, y;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float normed = (kept[k][i] - m) * inv;
        store(h.v[i], normed);
        store(y.v[i], normed * wide(w.v[i]) + wide(b.v[i]));
      }
      ((Eight<T>*)hat)[row * groups + g] = h;
      ((Eight<T>*)out)[row * groups + g] = y;
    }
    if (threadIdx.x == 0) inverse[row] = inv;
  }
}

// The gradient of `sum` (which is that of the residual, and has `d_more` added to it) and of `in`. Of weight, bias and in_bias
// the sums over this block's rows, in d_columns [3, blocks, width]; a thread's columns are the same in every row.
template <typename T, typename S, typename W, int MOST>
__global__ void add_norm_backward(const T* d_out, const S* d_more, const T* hat, const float* inverse, const W* weight,
                                  S* d_sum, T* d_in, float* d_columns, u64 rows, u32 width, Dropout d) {
  d = drawn_now(d);
  __shared__ float shared[8];
  float dw[MOST][8], db[MOST][8], di[MOST][8];
#pragma unroll
  for (int k = 0; k < MOST; k++)
#pragma unroll
    for (int i = 0; i < 8; i++) dw[k][i] = db[k][i] = di[k][i] = 0;
  u32 groups = width / 8;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Eight<T> dy[MOST], h[MOST];
    float inv = inverse[row], a = 0, b = 0;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      dy[k] = ((const Eight<T>*)d_out)[row * groups + g];
      h[k] = ((const Eight<T>*)hat)[row * groups + g];
      Eight<W> w = ((const Eight<W>*)weight)[g];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float normed = wide(h[k].v[i]), grad = wide(dy[k].v[i]);
        dw[k][i] += grad * normed;
        db[k][i] += grad;
        a += grad * wide(w.v[i]);
        b += grad * wide(w.v[i]) * normed;
      }
    }
    row_sums(a, b, shared);
    a /= width;
    b /= width;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      u64 at = row * groups + g;
      float factor[8];
      factors_in_row(d, u32(row), g, factor);
      Eight<T> dx;
      Eight<S> ds, more;
      if (d_more) more = ((const Eight<S>*)d_more)[at];
      Eight<W> w = ((const Eight<W>*)weight)[g];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float value = (wide(dy[k].v[i]) * wide(w.v[i]) - a - wide(h[k].v[i]) * b) * inv + (d_more ? wide(more.v[i]) : 0);
        store(ds.v[i], value);
        store(dx.v[i], value * factor[i]);
        di[k][i] += value * factor[i];
      }
      ((Eight<S>*)d_sum)[at] = ds;
      if (d_in) ((Eight<T>*)d_in)[at] = dx;
    }
  }
  u64 plane = u64(gridDim.x) * width;
#pragma unroll
  for (int k = 0; k < MOST; k++) {
    u32 g = threadIdx.x + k * blockDim.x;
    if (g >= groups) break;
    float* to = d_columns + u64(blockIdx.x) * width + g * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      to[i] = dw[k][i];
      to[plane + i] = db[k][i];
      to[2 * plane + i] = di[k][i];
    }
  }
}

// --- The norm by the root mean square, without mean and bias ----------------------------------------------------------------------
// As above: a block of 128 threads takes a row at a time, each thread MOST groups of eight.

template <typename T, typename S, typename W, int MOST>
__global__ void rms_norm(const S* in, const W* weight, T* out, float* inverse, u64 rows, u32 width, float eps) {
  __shared__ float shared[4];
  u32 groups = width / 8;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Eight<S> x[MOST];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      x[k] = ((const Eight<S>*)in)[row * groups + g];
#pragma unroll
      for (int i = 0; i < 8; i++) squares += wide(x[k].v[i]) * wide(x[k].v[i]);
    }
    float inv = rsqrtf(row_sum(squares, shared) / width + eps);
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      Eight<W> w = ((const Eight<W>*)weight)[g];
      Eight<T> y;
#pragma unroll
      for (int i = 0; i < 8; i++) store(y.v[i], wide(x[k].v[i]) * inv * wide(w.v[i]));
      ((Eight<T>*)out)[row * groups + g] = y;
    }
    if (threadIdx.x == 0) inverse[row] = inv;
  }
}

// The gradient of `in`, with `d_past` added to it, which may be null or d_in itself. Of the weight the sums over this block's rows, in d_weight
// [blocks, width], which may be null.
template <typename T, typename S, typename W, int MOST>
__global__ void rms_norm_backward(const T* d_out, const S* d_past, const S* in, const float* inverse, const W* weight, S* d_in, float* d_weight,
                                  u64 rows, u32 width) {
  __shared__ float shared[4];
  float dw[MOST][8];
#pragma unroll
  for (int k = 0; k < MOST; k++)
#pragma unroll
    for (int i = 0; i < 8; i++) dw[k][i] = 0;
  u32 groups = width / 8;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Eight<T> dy[MOST];
    Eight<S> x[MOST];
    float inv = inverse[row], mean = 0;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      dy[k] = ((const Eight<T>*)d_out)[row * groups + g];
      x[k] = ((const Eight<S>*)in)[row * groups + g];
      Eight<W> w = ((const Eight<W>*)weight)[g];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float normed = wide(x[k].v[i]) * inv, grad = wide(dy[k].v[i]);
        dw[k][i] += grad * normed;
        mean += grad * wide(w.v[i]) * normed;
      }
    }
    mean = row_sum(mean, shared) / width;
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      u32 g = threadIdx.x + k * blockDim.x;
      if (g >= groups) break;
      Eight<S> past, dx;
      if (d_past) past = ((const Eight<S>*)d_past)[row * groups + g];
      Eight<W> w = ((const Eight<W>*)weight)[g];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float value = (wide(dy[k].v[i]) * wide(w.v[i]) - wide(x[k].v[i]) * inv * mean) * inv;
        store(dx.v[i], value + (d_past ? wide(past.v[i]) : 0));
      }
      ((Eight<S>*)d_in)[row * groups + g] = dx;
    }
  }
  if (!d_weight) return;
#pragma unroll
  for (int k = 0; k < MOST; k++) {
    u32 g = threadIdx.x + k * blockDim.x;
    if (g >= groups) break;
    float* to = d_weight + u64(blockIdx.x) * width + g * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = dw[k][i];
  }
}

// --- Rotary positions -------------------------------------------------------------------------------------------------------------
// Feature i of a head is turned with feature i + width / 2. `in` is [batch, heads, length, width] with these strides, `out` [batch, length, heads,
// width], cosines and sines are [length, width]. A thread takes eight pairs; `pairs` counts these eights. Where `is_back`, the gradient.

template <typename T>
__global__ void turn(const T* in, long long batch, long long head, long long row, const T* cosines, const T* sines, T* out, u64 pairs, u32 length,
                     u32 heads, u32 width, u32 is_back) {
  u32 groups = width / 16, half = width / 2;
  u64 stride = u64(gridDim.x) * blockDim.x;
  for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < pairs; at += stride) {
    u32 column = u32(at % groups) * 8, h = u32(at / groups % heads);
    u64 token = at / groups / heads;
    u32 position = u32(token % length);
    const T* from = in + (long long)(token / length) * batch + h * head + position * row + column;
    const T *c = cosines + u64(position) * width + column, *s = sines + u64(position) * width + column;
    T* to = out + (token * heads + h) * width + column;
    Eight<T> x = *(const Eight<T>*)from, y = *(const Eight<T>*)(from + half), u, v;
    Eight<T> cx = *(const Eight<T>*)c, cy = *(const Eight<T>*)(c + half), sx = *(const Eight<T>*)s, sy = *(const Eight<T>*)(s + half);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float from_y = is_back ? wide(sy.v[i]) : -wide(sx.v[i]), from_x = is_back ? -wide(sx.v[i]) : wide(sy.v[i]);
      store(u.v[i], wide(x.v[i]) * wide(cx.v[i]) + wide(y.v[i]) * from_y);
      store(v.v[i], wide(y.v[i]) * wide(cy.v[i]) + wide(x.v[i]) * from_x);
    }
    *(Eight<T>*)to = u;
    *(Eight<T>*)(to + half) = v;
  }
}

// --- The cross-entropy of rows of logits ------------------------------------------------------------------------------------------
// A block of 512 threads takes a row of `width` logits, a multiple of eight. `loss` gets minus the logarithm of the label's share, 0 where the
// label is `ignored`. Where `differentiates`, the gradient of that is written over the logits.

template <typename T> __device__ inline float exponential(float x) { return sizeof(T) == 2 ? fast_exp2(LOG2_E * x) : expf(x); }

// Over the 16 warps of a block; every thread gets it.
template <bool is_maximum> __device__ inline float over_block(float x, float* shared) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) {
    float other = __shfl_xor_sync(0xFFFFFFFFu, x, lane);
    x = is_maximum ? (other > x ? other : x) : x + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
#pragma unroll
  for (int warp = 1; warp < 16; warp++) x = is_maximum ? (shared[warp] > x ? shared[warp] : x) : x + shared[warp];
  return x;
}

template <typename T>
__global__ void cross_entropy(T* logits, const long long* labels, float* loss, u32 width, long long ignored, u32 differentiates) {
  __shared__ float shared[16];
  u64 row = blockIdx.x;
  Eight<T>* x = (Eight<T>*)(logits + row * width);
  long long label = labels[row];
  bool counts = label != ignored;
  u32 groups = width / 8;
  float at_label = counts ? wide(logits[row * width + u64(label)]) : 0;
  // The sum of exponentials is kept with the highest logit so far taken out.
  float highest = -3e38f, sum = 0;
  for (u32 g = threadIdx.x; g < groups && counts; g += blockDim.x) {
    Eight<T> y = x[g];
    float most = wide(y.v[0]);
#pragma unroll
    for (int i = 1; i < 8; i++) most = wide(y.v[i]) > most ? wide(y.v[i]) : most;
    if (most > highest) {
      sum *= exponential<T>(highest - most);
      highest = most;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sum += exponential<T>(wide(y.v[i]) - highest);
  }
  float top = over_block<true>(highest, shared);
  sum = over_block<false>(sum * exponential<T>(highest - top), shared);
  if (threadIdx.x == 0) loss[row] = counts ? logf(sum) + top - at_label : 0;
  if (!differentiates) return;
  float inverse = counts ? 1 / sum : 0;
  for (u32 g = threadIdx.x; g < groups; g += blockDim.x) {
    Eight<T> y;
    if (counts) y = x[g];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float share = counts ? exponential<T>(wide(y.v[i]) - top) * inverse : 0;
      store(y.v[i], counts && label == (long long)(g * 8 + i) ? share - 1 : share);
    }
    x[g] = y;
  }
}

// --- Sums -------------------------------------------------------------------------------------------------------------------

constexpr u32 SUM_ROWS = 32, SUM_COLUMNS = 32;

// The columns of each of some matrices [rows, width], added up: [matrices, width]. A block of 32 by 32 threads takes 32 columns. Grid: columns, matrices.
template <typename T> __global__ void sum_rows(const float* in, T* out, u32 rows, u32 width) {
  __shared__ float sums[SUM_ROWS][SUM_COLUMNS + 1];
  u32 x = threadIdx.x % SUM_COLUMNS, y = threadIdx.x / SUM_COLUMNS, column = blockIdx.x * SUM_COLUMNS + x;
  const float* from = in + u64(blockIdx.y) * rows * width + column;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (u32 row = y; row < rows; row += SUM_ROWS) sum += from[u64(row) * width];
  }
  sums[y][x] = sum;
  __syncthreads();
  // A warp adds up what all have of one column.
  sum = sums[x][y];
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  column = blockIdx.x * SUM_COLUMNS + y;
  if (x == 0 && column < width) store(out[u64(blockIdx.y) * width + column], sum);
}

// The columns of some of the rows of `in` [rows, width], whose width is a multiple of eight: [gridDim.y, width]. A warp takes 256 columns of a row at
// a time.
template <typename T> __global__ void sum_some_rows(const T* in, float* out, u32 rows, u32 width) {
  __shared__ float sums[8][256];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 256 + lane * 8;
  float sum[8] = {};
  if (column < width) {
#pragma unroll 4
    for (u32 row = blockIdx.y * 8 + warp; row < rows; row += gridDim.y * 8) {
      Eight<T> eight = *(const Eight<T>*)(in + u64(row) * width + column);
#pragma unroll
      for (int i = 0; i < 8; i++) sum[i] += wide(eight.v[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) sums[warp][i * 32 + lane] = sum[i];
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) total += sums[i][threadIdx.x];
  column = blockIdx.x * 256 + lane * 8 + warp;
  if (column < width) out[u64(blockIdx.y) * width + column] = total;
}

// Multiplies `n` numbers by one, rounded as they are.
template <typename T> __global__ void scale_all(T* data, const float* factor, u64 n) {
  T rounded;
  store(rounded, *factor);
  float by = wide(rounded);
  u64 stride = u64(gridDim.x) * blockDim.x, first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (u64 at = first; at < n / 8; at += stride) {
    Eight<T> eight = ((Eight<T>*)data)[at];
#pragma unroll
    for (int i = 0; i < 8; i++) store(eight.v[i], wide(eight.v[i]) * by);
    ((Eight<T>*)data)[at] = eight;
  }
  for (u64 at = n / 8 * 8 + first; at < n; at += stride) store(data[at], wide(data[at]) * by);
}

// One of many tensors for a kernel over all of them.
template <typename T> struct OneOfMany {
  const T* data;
  u64 n;
  u64 first;  // the first block that works on it
};

// The last one that begins with this block or before it.
template <typename P> __device__ inline P of_block(const P* all, u32 count) {
  u32 low = 0, high = count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (all[middle].first <= blockIdx.x) low = middle; else high = middle;
  }
  return all[low];
}

// The sum of the squares of each block's elements. Each block takes `chunk` elements of one tensor.
template <typename T> __global__ void sum_squares(const OneOfMany<T>* tensors, u32 count, u64 chunk, float* out) {
  __shared__ float shared[8];
  OneOfMany<T> of = of_block(tensors, count);
  u64 begin = (blockIdx.x - of.first) * chunk, end = begin + chunk < of.n ? begin + chunk : of.n, whole = end / 8 * 8;
  float sum = 0;
#pragma unroll 4
  for (u64 at = begin + threadIdx.x * 8; at < whole; at += blockDim.x * 8) {
    Eight<T> eight = *(const Eight<T>*)(of.data + at);
#pragma unroll
    for (int i = 0; i < 8; i++) sum += wide(eight.v[i]) * wide(eight.v[i]);
  }
  for (u64 at = whole + threadIdx.x; at < end; at += blockDim.x) sum += wide(of.data[at]) * wide(of.data[at]);
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
#pragma unroll
    for (int warp = 0; warp < 8; warp++) sum += shared[warp];
    out[blockIdx.x] = sum;
  }
}

// --- AdamW, in bf16 with stochastic rounding -------------------------------------------------------------------------------
// The noise is a hash of the values at hand, their place and the step, so that it needs no generator and a resumed run draws the same.
// Formula of torch.optim.AdamW; only what is stored is rounded. `adamw_bf16_cpu` in functions.hpp is the same on the CPU.

template <typename T> struct Parameter {
  T* p;
  const T* g;
  T *m, *v;
  u64 n;
  u64 first;  // the first block that works on it
};

// As in functions.hpp.
struct AdamW {
  float beta1, beta2, new1, new2, eps, fade, root2, size;
  u32 seed;
};

__device__ inline void rounded(BF16& to, float x, u32 noise) {
  to.bits = u16((__float_as_uint(x) + (noise & 0xFFFFu)) >> 16);
}

__device__ inline void update(BF16& p, BF16 g, BF16& m, BF16& v, u64 place, float scale, const AdamW& s) {
  float grad = wide(g) * scale;
  float average = wide(m) + (grad - wide(m)) * s.new1;
  float square = wide(v) * s.beta2 + grad * grad * s.new2;
  // What is rounded to eight bits needs no exact root: with one the card would compute longer than it moves memory.
  float w = wide(p) * s.fade - s.size * average * fast_reciprocal(fast_root(square) * (1 / s.root2) + s.eps);
  u32 h = __float_as_uint(grad) * 0x9E3779B1u ^ __float_as_uint(average) * 0x85EBCA77u ^
          __float_as_uint(w) * 0xC2B2AE3Du ^ (s.seed + u32(place)) * 0x27D4EB2Fu;
  h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
  rounded(p, w, h);
  h *= 0x9E3779B1u; h ^= h >> 16;
  rounded(m, average, h);
  h *= 0x85EBCA77u; h ^= h >> 16;
  rounded(v, square, h);
}

__device__ inline void update(float& p, float g, float& m, float& v, u64, float scale, const AdamW& s) {
  float grad = g * scale;
  m += (grad - m) * s.new1;
  v = v * s.beta2 + grad * grad * s.new2;
  p = p * s.fade - s.size * m / (sqrtf(v) / s.root2 + s.eps);
}

// Each block takes `chunk` elements of one parameter.
template <typename T> __global__ void adamw(const Parameter<T>* parameters, u32 count, u64 chunk, const float* scale, AdamW s) {
  Parameter<T> of = of_block(parameters, count);
  u64 begin = (blockIdx.x - of.first) * chunk, end = begin + chunk < of.n ? begin + chunk : of.n;
  float factor = *scale;
  u64 whole = end / 8 * 8;
  for (u64 at = begin + threadIdx.x * 8; at < whole; at += blockDim.x * 8) {
    Eight<T> p = *(Eight<T>*)(of.p + at), m = *(Eight<T>*)(of.m + at), v = *(Eight<T>*)(of.v + at);
    Eight<T> g = *(const Eight<T>*)(of.g + at);
#pragma unroll
    for (int i = 0; i < 8; i++) update(p.v[i], g.v[i], m.v[i], v.v[i], at + i, factor, s);
    *(Eight<T>*)(of.p + at) = p;
    *(Eight<T>*)(of.m + at) = m;
    *(Eight<T>*)(of.v + at) = v;
  }
  for (u64 at = whole + threadIdx.x; at < end; at += blockDim.x) {
    update(of.p[at], of.g[at], of.m[at], of.v[at], at, factor, s);
  }
}

// Stochastic rounding, with a hash of the value, its place and the seed. The caller draws a new seed for each step.
__global__ void round_to_bf16(const float* in, BF16* out, u64 n, u32 seed) {
  u64 stride = u64(gridDim.x) * blockDim.x;
  for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < n; at += stride) {
    u32 h = __float_as_uint(in[at]) * 0xC2B2AE3Du ^ (seed + u32(at)) * 0x27D4EB2Fu;
    h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
    rounded(out[at], in[at], h);
  }
}

// --- So many nanoseconds of nothing -------------------------------------------------------------------------------------
// For measurements: in place of sums over a link that is not there.

#ifndef PIPE_ON_CPU  // there is nothing to compare with fp64
__global__ void spin(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}
#endif
