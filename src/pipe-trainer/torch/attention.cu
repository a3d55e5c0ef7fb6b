// Attention in the manner of FlashAttention-2 (Dao, 2023), with a bias by distance (T5), key lengths, a causal mask and dropout.
// What the kernels share. NVRTC compiles this file behind kernels.cu, and behind it attention_forward.cu and attention_backward.cu;
// `attention.hpp` launches the kernels. tests/cuda_on_cpu runs them on a CPU.
//
// Every block has four warps. A warp computes 16 x 8 tiles of scores with mma.sync, which all cards since Ampere have. No score
// is stored: the backward pass computes them again, once for the gradients of keys and values and once for that of the queries.
// Every sum has a fixed order, so a result depends on nothing but the inputs.
//
// Layout of a 16 x 8 tile of mma.sync: a thread holds [row][column], [row][column + 1], [row + 8][column], [row + 8][column + 1]
// with row = lane / 4 and column = 2 * (lane % 4).

typedef long long i64;

const int WARPS = 4, THREADS = 32 * WARPS;
#define LN_2 0.6931471805599453f
#define INFINITE __uint_as_float(0x7F800000u)

// --- PTX ------------------------------------------------------------------------------------------------------------------
// tests/cuda_on_cpu/ptx.hpp has the same functions for a CPU.

#ifndef PIPE_ON_CPU
extern __shared__ __align__(16) unsigned char dynamic_shared[];

__device__ inline unsigned char* shared_memory() { return dynamic_shared; }
__device__ inline u32 shared_address() { return u32(__cvta_generic_to_shared(dynamic_shared)); }

__device__ inline void mma(BF16, float c[4], const u32 a[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma(F16, float c[4], const u32 a[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers in the low and the high half.
__device__ inline u32 pack(BF16, float low, float high) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ inline u32 pack(F16, float low, float high) {
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(u32 out[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address));
}
__device__ inline void load_transposed(u32 out[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address));
}

// Copies to shared memory in the background. Where `exists` is false nothing is read, and zeros are written.
__device__ inline void copy_16_bytes(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
template <int BYTES> __device__ inline void copy_piece(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(to), "l"(from), "n"(BYTES), "r"(exists ? BYTES : 0) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of the groups that this thread committed are under way.
template <int N> __device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

__device__ inline float fast_log2(float x) {
  float out;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
#endif

// --- Arguments, as in attention.hpp -----------------------------------------------------------------------------------------

// Which weights are dropped depends on key, sample, head, query position and key position alone (docs/dev/dropout.md). One call of Philox gives the
// eight 16-bit values that a thread holds of a 16 x 16 tile of scores.
struct AttentionDropout {
  u64 key;
  u32 threshold;  // below 65536
  float kept;
  u32 first_sample;
  const u64* place;  // as in Dropout
};

// Whether the low or the high 16 bits are below the threshold.
__device__ inline bool is_below(u32 two, bool high, u32 threshold) {
  return high ? two < threshold << 16 : (two & 0xFFFFu) < threshold;
}

// [batch, heads, length, width]; strides in elements, `width` is contiguous.
struct AttentionTensor {
  void* data;
  i64 batch, head, row;
};

// For the backward pass: the logarithm of the sum of exp2(score * log2 e), and the sum of d_o * o.
struct alignas(8) RowSums { float lse, delta; };

// Up to 128 rows of a sample where samples are packed: the sample, -1 where the tile is unused; its first row in the sample; and where its sums
// along the diagonals begin.
struct alignas(16) Tile { int sample, first, sums, unused; };

// Samples are either rows of a rectangle, or packed: then tensors have a batch of 1 and the rows of all samples one after the other. The last of
// the samples is spare: it takes the rows that nobody needs, and none of its keys is visible.
struct AttentionArguments {
  AttentionTensor q, k, v, o, d_o, d_q, d_k, d_v;
  const float* bias;     // [heads, distances], at key - query + origin
  const int* lengths;    // [batch], the number of visible keys; may be null
  float* lse;            // [batch, heads, queries]; infinite where no key is visible
  RowSums* rows;         // [batch, heads, queries]
  float* d_bias_blocks;  // [batch, heads, blocks of queries, BiasGradient::positions(keys)]; packed [heads, sums], as the tiles say
  float* d_bias;         // as bias
  const int *q_offsets, *k_offsets;  // packed: where each sample begins, and where the last ends; else null
  const Tile *q_tiles, *k_tiles;     // packed: the rows that each block takes
  u32 batch, heads, queries, keys, width;
  u32 distances, origin;  // of the bias
  u32 tiles, sums;        // packed: q_tiles, and all of their sums
  u32 is_causal;  // hides key j from query i where j > i + keys - queries
  float scale;
  u32 shared;     // heads of queries beside each other that have one head of keys and values
  AttentionDropout dropout;
};
static_assert(sizeof(AttentionArguments) == 416, "as in attention.hpp");

// One of the samples, and where its rows are.
struct Sample {
  u32 number;
  bool is_packed;
  int first_query, queries, first_key, keys, visible;
  int summed;  // keys, as far as there are sums along diagonals for them

  __device__ Sample(const AttentionArguments& a, u32 number) : number(number), is_packed(a.q_offsets != nullptr) {
    first_query = is_packed ? a.q_offsets[number] : 0;
    first_key = is_packed ? a.k_offsets[number] : 0;
    queries = is_packed ? a.q_offsets[number + 1] - first_query : int(a.queries);
    keys = is_packed ? a.k_offsets[number + 1] - first_key : int(a.keys);
    visible = is_packed ? (number + 1 == a.batch ? 0 : keys) : a.lengths ? min(max(a.lengths[number], 0), keys) : keys;
    summed = is_packed ? visible : keys;
  }

  template <typename T> __device__ T* rows_of(const AttentionTensor& t, u32 head, int first) const {
    return (T*)t.data + (is_packed ? first * t.row : i64(number) * t.batch) + i64(head) * t.head;
  }
  template <typename T> __device__ T* queries_of(const AttentionTensor& t, u32 head) const { return rows_of<T>(t, head, first_query); }
  template <typename T> __device__ T* keys_of(const AttentionTensor& t, u32 head) const { return rows_of<T>(t, head, first_key); }
  // Where its first query stands among the numbers that each row of each head has.
  __device__ u64 row(const AttentionArguments& a, u32 head) const {
    return (u64(is_packed ? 0 : number) * a.heads + head) * a.queries + first_query;
  }
};

// The rows that a block takes: ROWS of a sample from `first` on. Tiles have 128 rows.
struct BlockRows {
  int sample, first;
  const Tile* tile;  // where samples are packed

  template <int ROWS> __device__ static BlockRows of(const Tile* tiles, bool last_first) {
    if (!tiles) {
      int block = int(last_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
      return {int(blockIdx.z), block * ROWS, nullptr};
    }
    const int IN_TILE = 128 / ROWS;
    const Tile* tile = tiles + blockIdx.x / IN_TILE;
    return {tile->sample, tile->first + int(blockIdx.x % IN_TILE) * ROWS, tile};
  }
};

// What the sample's lengths and the causal mask leave visible.
struct Visible {
  int end;    // keys of the sample
  int shift;  // query i sees the keys up to i + shift

  __device__ Visible(const AttentionArguments& a, const Sample& sample)
      : end(sample.visible), shift(a.is_causal ? sample.keys - sample.queries : 1 << 29) {}
  __device__ int keys_of(int query) const { return min(end, query + shift + 1); }
};

// --- Tiles in shared memory -------------------------------------------------------------------------------------------------
// Rows of WIDTH + 8 elements: eight consecutive rows start in different banks, so that ldmatrix has no conflicts.

template <int WIDTH> struct Pitch { static const int ELEMENTS = WIDTH + 8, BYTES = 2 * ELEMENTS; };

// Copies the rows of a head, ROWS at a time. Rows from `end` on and columns from `width` on are zero. A thread takes the same
// column of every row that it takes, so that its address moves by a constant.
template <int ROWS, int WIDTH, typename T> struct RowCopies {
  static const int CHUNKS = WIDTH / 8, LANES = WIDTH == 96 ? 4 : CHUNKS, STRIDE = THREADS / LANES;
  const T* from;
  i64 step;
  int left;  // rows from this thread's on; none where its column does not exist
  u32 offset, width;

  __device__ RowCopies(const T* head, i64 stride, int first, int end, u32 width) : width(width) {
    int row = int(threadIdx.x) / LANES, column = int(threadIdx.x) % LANES * 8;
    from = head + i64(first + row) * stride + column;
    step = stride * STRIDE;
    left = LANES == CHUNKS && column >= int(width) ? 0 : end - first - row;
    offset = u32(row * Pitch<WIDTH>::BYTES + column * 2);
  }

  __device__ void next(u32 to) {
#pragma unroll
    for (int i = 0; i < ROWS / STRIDE; i++) {
#pragma unroll
      for (int j = 0; j < CHUNKS / LANES; j++) {
        bool exists = i * STRIDE < left && (LANES == CHUNKS || threadIdx.x % LANES * 8 + j * LANES * 8 < width);
        copy_16_bytes(to + offset + i * STRIDE * Pitch<WIDTH>::BYTES + j * LANES * 16, from + j * LANES * 8, exists);
      }
      from += step;
    }
    left -= ROWS;
  }
};

// `count` pieces of 4 or 8 bytes from `from + first` on; those outside of 0 ... end - 1 are zero.
template <int COUNT, typename P> __device__ inline void copy_pieces(u32 to, const P* from, int first, int end) {
#pragma unroll
  for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++) {
    int at = int(threadIdx.x) + i * THREADS;
    if (at < COUNT) copy_piece<sizeof(P)>(to + at * sizeof(P), from + first + at, u32(first + at) < u32(end));
  }
}

// The address that a lane gives for 16 x 16 elements: the first operand of mma, which is stored row by row, ...
template <int WIDTH> __device__ inline u32 first_operand(u32 tile, u32 lane) {
  return tile + (lane % 16) * Pitch<WIDTH>::BYTES + (lane / 16) * 16;
}
// ... two second operands, stored with their columns as rows, ...
template <int WIDTH> __device__ inline u32 second_operand(u32 tile, u32 lane) {
  return tile + (lane % 8 + lane / 16 * 8) * Pitch<WIDTH>::BYTES + (lane / 8 % 2) * 16;
}
// ... and two second operands, stored row by row (for load_transposed).
template <int WIDTH> __device__ inline u32 second_operand_by_rows(u32 tile, u32 lane) {
  return first_operand<WIDTH>(tile, lane);
}

// c[i][j] += a[i] b[j]^T for 16-row tiles i of `a` and 8-row tiles j of `b`, both stored row by row.
template <typename T, int WIDTH, int M, int N>
__device__ inline void multiply_rows(float c[M][N][4], u32 a_address, u32 b_address) {
#pragma unroll
  for (int k = 0; k < WIDTH / 16; k++) {
    u32 a[M][4];
#pragma unroll
    for (int i = 0; i < M; i++) load_matrices(a[i], a_address + i * 16 * Pitch<WIDTH>::BYTES + k * 32);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      u32 b[4];
      load_matrices(b, b_address + j * 8 * Pitch<WIDTH>::BYTES + k * 32);
#pragma unroll
      for (int i = 0; i < M; i++) {
        mma(T(), c[i][j], a[i], b[0], b[1]);
        mma(T(), c[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// c += a b, where `a` is a tile of weights that a thread holds and `b` is stored row by row.
template <typename T, int WIDTH, int M, int N>
__device__ inline void multiply_weights(float c[M][WIDTH / 8][4], const float weights[M][N][4], u32 b_address) {
#pragma unroll
  for (int k = 0; k < N / 2; k++) {
    u32 a[M][4];
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float* two = weights[i][2 * k + e / 2] + e % 2 * 2;
        a[i][e] = pack(T(), two[0], two[1]);
      }
    }
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j += 2) {
      u32 b[4];
      load_transposed(b, b_address + k * 16 * Pitch<WIDTH>::BYTES + j * 16);
#pragma unroll
      for (int i = 0; i < M; i++) {
        mma(T(), c[i][j], a[i], b[0], b[1]);
        mma(T(), c[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// Scales scores and adds the bias. `near` is that of this thread's first score; the bias of the next row or column of scores is
// STEP further on. 8 x 8 tiles on one diagonal have the same bias.
template <int M, int N, int STEP> __device__ inline void add_bias(float s[M][N][4], const float* near, float scale) {
#pragma unroll
  for (int d = 0; d < N + 2 * M - 1; d++) {
    const float* at = near + STEP * 8 * (d - 2 * M + 1);
    float low = at[0], high = at[STEP];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int j = d - 2 * M + 1 + 2 * i + half;
        if (j >= 0 && j < N) {
          s[i][j][half * 2] = s[i][j][half * 2] * scale + low;
          s[i][j][half * 2 + 1] = s[i][j][half * 2 + 1] * scale + high;
        }
      }
  }
}

// Hides scores, with queries as rows.
template <int M, int N>
__device__ inline void hide(float s[M][N][4], const Visible& visible, int first_query, int first_key) {
  int lane = int(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int end = visible.keys_of(first_query + i * 16 + half * 8 + lane / 4) - first_key - 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < N; j++) {
        if (j * 8 >= end) s[i][j][half * 2] = -INFINITE;
        if (j * 8 + 1 >= end) s[i][j][half * 2 + 1] = -INFINITE;
      }
    }
}

// Writes a warp's rows of results, in pieces of 16 bytes. `staging` is shared memory of this warp for M * 16 rows.
template <typename T, int WIDTH, int M>
__device__ inline void write_rows(const float c[M][WIDTH / 8][4], const float factor[M][2], unsigned char* staging, T* to,
                                  i64 stride, int first, int end, u32 width) {
  u32 lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < M; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      unsigned char* row = staging + (i * 16 + half * 8 + lane / 4) * Pitch<WIDTH>::BYTES + lane % 4 * 4;
#pragma unroll
      for (int j = 0; j < WIDTH / 8; j++) {
        const float* two = c[i][j] + half * 2;
        *(u32*)(row + j * 16) = pack(T(), two[0] * factor[i][half], two[1] * factor[i][half]);
      }
    }
  }
  __syncwarp();
  const int CHUNKS = WIDTH / 8;
#pragma unroll
  for (int i = 0; i < M * 16 * CHUNKS / 32; i++) {
    int chunk = int(lane) + i * 32, row = chunk / CHUNKS, column = chunk % CHUNKS * 8;
    if (first + row < end && column < int(width)) {
      *(Eight<T>*)(to + i64(first + row) * stride + column) =
          *(const Eight<T>*)(staging + row * Pitch<WIDTH>::BYTES + column * 2);
    }
  }
}
