
// Attention, forward. Stands behind attention.cu.

// --- Forward ------------------------------------------------------------------------------------------------------------------
// A block takes 128 queries of a head, a warp 32 of them, and goes through the keys a tile at a time; the next tile is copied
// meanwhile. Grid: blocks of queries, heads, batch; or tiles of queries, heads.

template <int WIDTH> struct ForwardShape {
  static const int M = 2, QUERIES = WARPS * M * 16, KEYS = WIDTH <= 64 ? 64 : 32;
  // Narrow queries are kept in registers, and the second stage of keys and values takes their shared memory.
  static const bool IN_REGISTERS = WIDTH <= 64;
  static const int STAGE = 2 * KEYS * Pitch<WIDTH>::BYTES;
  static const int Q = IN_REGISTERS ? STAGE : 2 * STAGE;
  static const int BIAS = IN_REGISTERS ? 2 * STAGE : 2 * STAGE + QUERIES * Pitch<WIDTH>::BYTES;
  static const int BYTES = BIAS + 2 * (QUERIES + KEYS) * 4;
};

template <typename T, int WIDTH, bool HAS_BIAS, bool DROPS>
__global__ void __launch_bounds__(THREADS) attention_forward(AttentionArguments a) {
  typedef ForwardShape<WIDTH> Shape;
  const int M = Shape::M, N = Shape::KEYS / 8, KEYS = Shape::KEYS, QUERIES = Shape::QUERIES;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  // The blocks with the most keys first.
  BlockRows own = BlockRows::of<QUERIES>(a.q_tiles, a.is_causal);
  if (own.sample < 0) return;
  Sample sample(a, u32(own.sample));
  int queries = sample.queries, first_query = own.first, first_row = first_query + int(warp) * M * 16;
  const T *q = sample.queries_of<const T>(a.q, head), *k = sample.keys_of<const T>(a.k, head / a.shared);
  const T* v = sample.keys_of<const T>(a.v, head / a.shared);
  Visible visible(a, sample);
  AttentionDropout dropout = DROPS ? drawn_now(a.dropout) : a.dropout;
  int last_query = min(first_query + QUERIES, queries) - 1;
  int tiles = (max(visible.keys_of(last_query), 0) + KEYS - 1) / KEYS;
  const float* bias = HAS_BIAS ? a.bias + u64(head) * a.distances : nullptr;

  unsigned char* memory = shared_memory();
  u32 address = shared_address();
  RowCopies<KEYS, WIDTH, T> k_copies(k, a.k.row, 0, visible.end, a.width), v_copies(v, a.v.row, 0, visible.end, a.width);
  auto copy_tile = [&](int tile) {
    u32 stage = address + (tile % 2) * Shape::STAGE;
    k_copies.next(stage);
    v_copies.next(stage + Shape::STAGE / 2);
    if (HAS_BIAS) {
      copy_pieces<QUERIES + KEYS>(address + Shape::BIAS + (tile % 2) * (QUERIES + KEYS) * 4, bias,
                                  tile * KEYS - first_query - (QUERIES - 1) + int(a.origin), int(a.distances));
    }
    commit_copies();
  };

  RowCopies<QUERIES, WIDTH, T>(q, a.q.row, first_query, queries, a.width).next(address + Shape::Q);
  commit_copies();
  if (tiles > 0) copy_tile(0);

  u32 q_address = first_operand<WIDTH>(address + Shape::Q + warp * M * 16 * Pitch<WIDTH>::BYTES, lane);
  u32 q_fragments[M][WIDTH / 16][4];
  if (Shape::IN_REGISTERS) {
    if (tiles > 0) wait_for_copies<1>(); else wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int kk = 0; kk < WIDTH / 16; kk++) {
        load_matrices(q_fragments[i][kk], q_address + i * 16 * Pitch<WIDTH>::BYTES + kk * 32);
      }
  }

  // To base 2. With a bias the scores are scaled when it is added.
  const float factor = HAS_BIAS ? LOG2_E : a.scale * LOG2_E;
  float out[M][WIDTH / 8][4], highest[M][2], total[M][2];
#pragma unroll
  for (int i = 0; i < M; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) highest[i][half] = -INFINITE, total[i][half] = 0;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) out[i][j][e] = 0;
  }

  // The keys that some row of this warp sees, and those that all of them see.
  int warp_end = first_row < queries ? visible.keys_of(min(first_row + M * 16, queries) - 1) : 0;
  int whole_end = visible.keys_of(first_row);
  for (int tile = 0; tile < tiles; tile++) {
    wait_for_copies<0>();
    __syncthreads();
    if (tile + 1 < tiles) copy_tile(tile + 1);
    int first_key = tile * KEYS;
    if (first_key >= warp_end) continue;

    u32 stage = address + (tile % 2) * Shape::STAGE;
    float s[M][N][4];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][j][e] = 0;
    u32 k_address = second_operand<WIDTH>(stage, lane);
    if (Shape::IN_REGISTERS) {
#pragma unroll
      for (int kk = 0; kk < WIDTH / 16; kk++) {
#pragma unroll
        for (int j = 0; j < N; j += 2) {
          u32 b[4];
          load_matrices(b, k_address + j * 8 * Pitch<WIDTH>::BYTES + kk * 32);
#pragma unroll
          for (int i = 0; i < M; i++) {
            mma(T(), s[i][j], q_fragments[i][kk], b[0], b[1]);
            mma(T(), s[i][j + 1], q_fragments[i][kk], b[2], b[3]);
          }
        }
      }
    } else {
      multiply_rows<T, WIDTH, M, N>(s, q_address, k_address);
    }

    if (HAS_BIAS) {
      const float* near = (const float*)(memory + Shape::BIAS) + (tile % 2) * (QUERIES + KEYS) +
                          (QUERIES - 1 - int(warp) * M * 16) + int(2 * (lane % 4)) - int(lane / 4);
      add_bias<M, N, 1>(s, near, a.scale);
    }
    if (first_key + KEYS > whole_end) hide<M, N>(s, visible, first_row, first_key);

    // The softmax so far.
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float most = highest[i][half];
#pragma unroll
        for (int j = 0; j < N; j++) most = fmaxf(most, fmaxf(s[i][j][half * 2], s[i][j][half * 2 + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        float base = most == -INFINITE ? 0.0f : most * factor;
        float shrink = fast_exp2(highest[i][half] * factor - base);
        highest[i][half] = most;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float& x = s[i][j][half * 2 + e];
            x = fast_exp2(x * factor - base);
            sum += x;
          }
        total[i][half] = total[i][half] * shrink + sum;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
          out[i][j][half * 2] *= shrink;
          out[i][j][half * 2 + 1] *= shrink;
        }
      }

    if (DROPS) {
#pragma unroll
      for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j += 2) {
          u32 r[4];
          philox(dropout.key, u32(first_key / 16 + j / 2) * 32 + lane, u32(first_row / 16 + i),
                  dropout.first_sample + sample.number, head + 1, r);
#pragma unroll
          for (int e = 0; e < 8; e++) {
            if (is_below(r[e / 2], e % 2, a.dropout.threshold)) s[i][j + e / 4][e % 4] = 0;
          }
        }
    }
    multiply_weights<T, WIDTH, M, N>(out, s, second_operand_by_rows<WIDTH>(stage + Shape::STAGE / 2, lane));
  }

  float inverse[M][2];
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = total[i][half];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      inverse[i][half] = sum > 0 ? (DROPS ? a.dropout.kept : 1.0f) / sum : 0.0f;
      int row = first_row + i * 16 + half * 8 + int(lane / 4);
      if (lane % 4 == 0 && row < queries) {
        float highest_scaled = highest[i][half] * factor;
        a.lse[sample.row(a, head) + row] =
            sum > 0 ? (highest_scaled + fast_log2(sum)) * LN_2 : INFINITE;
      }
    }
  // The staging takes the memory of keys and values, which other warps may still read.
  wait_for_copies<0>();
  __syncthreads();
  write_rows<T, WIDTH, M>(out, inverse, memory + warp * M * 16 * Pitch<WIDTH>::BYTES, sample.queries_of<T>(a.o, head), a.o.row,
                          first_row, queries, a.width);
}
