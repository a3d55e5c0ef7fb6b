
// Attention, backward. Stands behind attention.cu.

// --- What the backward pass needs of each row -----------------------------------------------------------------------------
// Sixteen threads take a row, whichever sample it is of. Grid: rows, heads, batch.

template <typename T> __global__ void __launch_bounds__(THREADS) attention_backward_rows(AttentionArguments a) {
  u32 row = blockIdx.x * (THREADS / 16) + threadIdx.x / 16, column = threadIdx.x % 16 * 8;
  float sum = 0;
  if (row < a.queries && column < a.width) {
    auto eight = [&](const AttentionTensor& t) {
      return *(const Eight<T>*)((const T*)t.data + i64(blockIdx.z) * t.batch + i64(blockIdx.y) * t.head + i64(row) * t.row + column);
    };
    Eight<T> o = eight(a.o), d = eight(a.d_o);
#pragma unroll
    for (int i = 0; i < 8; i++) sum += wide(o.v[i]) * wide(d.v[i]);
  }
#pragma unroll
  for (int lane = 8; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  u64 at = (u64(blockIdx.z) * a.heads + blockIdx.y) * a.queries + row;
  if (row < a.queries && threadIdx.x % 16 == 0) a.rows[at] = {a.lse[at] * LOG2_E, sum};
}

// --- The gradients of keys and values ---------------------------------------------------------------------------------------
// A block takes some keys of a head and goes through the queries a tile at a time. Scores are computed with keys as rows, so that
// the weights are in the registers where the next product needs them. Heads of queries that share keys have gradients of their own, which the caller
// adds up. Grid: blocks of keys, heads, batch; or blocks of tiles of keys, heads.

template <int WIDTH> struct KeysShape {
  static const int M = WIDTH <= 64 ? 2 : 1, KEYS = WARPS * M * 16, QUERIES = 32;
  static const int K = 0, V = KEYS * Pitch<WIDTH>::BYTES, STAGES = 2 * V;
  // A stage: queries, gradients of the output, RowSums.
  static const int STAGE = 2 * QUERIES * Pitch<WIDTH>::BYTES + 2 * QUERIES * 4;
  static const int BIAS = STAGES + 2 * STAGE;
  static const int BYTES = BIAS + 2 * (QUERIES + KEYS) * 4;
};

template <typename T, int WIDTH, bool HAS_BIAS, bool DROPS>
__global__ void __launch_bounds__(THREADS) attention_backward_keys(AttentionArguments a) {
  typedef KeysShape<WIDTH> Shape;
  const int M = Shape::M, N = Shape::QUERIES / 8, KEYS = Shape::KEYS, QUERIES = Shape::QUERIES;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  BlockRows own = BlockRows::of<KEYS>(a.k_tiles, false);
  if (own.sample < 0) return;
  Sample sample(a, u32(own.sample));
  int queries = sample.queries, keys = sample.keys;
  int first_key = own.first, first_row = first_key + int(warp) * M * 16;
  if (first_key >= keys) return;
  const T *q = sample.queries_of<const T>(a.q, head), *k = sample.keys_of<const T>(a.k, head / a.shared);
  const T *v = sample.keys_of<const T>(a.v, head / a.shared), *d_o = sample.queries_of<const T>(a.d_o, head);
  const RowSums* rows = a.rows + sample.row(a, head);
  Visible visible(a, sample);
  // The first query that sees a key of this block; none does where all keys are hidden.
  int begin = max(first_key - visible.shift, 0) / QUERIES;
  int tiles = first_key < visible.end ? (queries + QUERIES - 1) / QUERIES : 0;
  const float* bias = HAS_BIAS ? a.bias + u64(head) * a.distances : nullptr;

  unsigned char* memory = shared_memory();
  u32 address = shared_address();
  RowCopies<QUERIES, WIDTH, T> q_copies(q, a.q.row, begin * QUERIES, queries, a.width);
  RowCopies<QUERIES, WIDTH, T> d_o_copies(d_o, a.d_o.row, begin * QUERIES, queries, a.width);
  auto copy_tile = [&](int tile) {
    u32 stage = address + Shape::STAGES + (tile % 2) * Shape::STAGE;
    q_copies.next(stage);
    d_o_copies.next(stage + QUERIES * Pitch<WIDTH>::BYTES);
    copy_pieces<QUERIES>(stage + 2 * QUERIES * Pitch<WIDTH>::BYTES, rows, tile * QUERIES, queries);
    if (HAS_BIAS) {
      copy_pieces<QUERIES + KEYS>(address + Shape::BIAS + (tile % 2) * (QUERIES + KEYS) * 4, bias,
                                  first_key - tile * QUERIES - (QUERIES - 1) + int(a.origin), int(a.distances));
    }
    commit_copies();
  };
  if (begin < tiles) {
    RowCopies<KEYS, WIDTH, T>(k, a.k.row, first_key, visible.end, a.width).next(address + Shape::K);
    RowCopies<KEYS, WIDTH, T>(v, a.v.row, first_key, visible.end, a.width).next(address + Shape::V);
    copy_tile(begin);
  }

  u32 k_address = first_operand<WIDTH>(address + Shape::K + warp * M * 16 * Pitch<WIDTH>::BYTES, lane);
  u32 v_address = first_operand<WIDTH>(address + Shape::V + warp * M * 16 * Pitch<WIDTH>::BYTES, lane);
  // To base 2. With a bias the scores are scaled when it is added.
  const float factor = HAS_BIAS ? LOG2_E : a.scale * LOG2_E;
  float d_k[M][WIDTH / 8][4], d_v[M][WIDTH / 8][4];
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) d_k[i][j][e] = d_v[i][j][e] = 0;

  for (int tile = begin; tile < tiles; tile++) {
    wait_for_copies<0>();
    __syncthreads();
    if (tile + 1 < tiles) copy_tile(tile + 1);
    int first_query = tile * QUERIES;
    // All keys of this warp are hidden from these queries.
    if (first_row >= visible.keys_of(first_query + QUERIES - 1)) continue;

    u32 stage = address + Shape::STAGES + (tile % 2) * Shape::STAGE, stage_d_o = stage + QUERIES * Pitch<WIDTH>::BYTES;
    float p[M][N][4], ds[M][N][4];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[i][j][e] = ds[i][j][e] = 0;
    multiply_rows<T, WIDTH, M, N>(p, k_address, second_operand<WIDTH>(stage, lane));
    multiply_rows<T, WIDTH, M, N>(ds, v_address, second_operand<WIDTH>(stage_d_o, lane));

    if (HAS_BIAS) {
      const float* near = (const float*)(memory + Shape::BIAS) + (tile % 2) * (QUERIES + KEYS) + (QUERIES - 1) +
                          int(warp) * M * 16 + int(lane / 4) - int(2 * (lane % 4));
      add_bias<M, N, -1>(p, near, a.scale);
    }
    if (first_row + M * 16 > visible.keys_of(first_query) || first_query + QUERIES > queries) {
#pragma unroll
      for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          int query = first_query + j * 8 + int(2 * (lane % 4)) + e;
          int end = query < queries ? visible.keys_of(query) - first_row - int(lane / 4) : 0;
#pragma unroll
          for (int i = 0; i < M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
              if (i * 16 + half * 8 >= end) p[i][j][half * 2 + e] = -INFINITE;
            }
        }
    }

    struct alignas(16) Two { RowSums of[2]; };
    const Two* sums = (const Two*)(memory + (stage - address) + 2 * QUERIES * Pitch<WIDTH>::BYTES) + lane % 4;
#pragma unroll
    for (int j = 0; j < N; j++) {
      Two two = sums[j * 4];
#pragma unroll
      for (int e = 0; e < 2; e++)
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            float& x = p[i][j][half * 2 + e];
            x = fast_exp2(x * factor - two.of[e].lse);
            if (!DROPS) ds[i][j][half * 2 + e] = x * (ds[i][j][half * 2 + e] - two.of[e].delta);
          }
    }
    if (DROPS) {
      // The order of the random values of a 16 x 16 tile is that of scores with queries as rows. Here lanes l and l ^ 4 need
      // halves of the same two calls of Philox: each makes one of them and sends the other its half.
      u32 parity = lane / 4 % 2, mine = parity ? 0x7632u : 0x5410u, other = parity ? 0x5410u : 0x7632u;
      u32 place = (2 * (lane % 4) + parity) * 4 + lane / 8;
      // Read for each tile: there are no registers left to keep it in.
      AttentionDropout dropout = drawn_now(a.dropout);
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        Two two[2] = {sums[j * 4], sums[j * 4 + 4]};
#pragma unroll
        for (int i = 0; i < M; i++) {
          u32 r[4];
          philox(dropout.key, u32(first_row / 16 + i) * 32 + place, u32(first_query / 16 + j / 2),
                  dropout.first_sample + sample.number, head + 1, r);
          u32 values[2][2];  // [query % 2][key half], the query's half in the low and high bits
#pragma unroll
          for (int half = 0; half < 2; half++) {
            u32 own = __byte_perm(r[2 * half], r[2 * half + 1], mine);
            u32 got = __shfl_xor_sync(0xFFFFFFFFu, __byte_perm(r[2 * half], r[2 * half + 1], other), 4);
            values[0][half] = parity ? got : own;
            values[1][half] = parity ? own : got;
          }
#pragma unroll
          for (int across = 0; across < 2; across++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
              for (int e = 0; e < 2; e++) {
                bool stays = !is_below(values[e][half], across, a.dropout.threshold);
                float &x = p[i][j + across][half * 2 + e], &y = ds[i][j + across][half * 2 + e];
                y = x * ((stays ? y * a.dropout.kept : 0.0f) - two[across].of[e].delta);
                x = stays ? x : 0.0f;
              }
        }
      }
    }
    multiply_weights<T, WIDTH, M, N>(d_v, p, second_operand_by_rows<WIDTH>(stage_d_o, lane));
    multiply_weights<T, WIDTH, M, N>(d_k, ds, second_operand_by_rows<WIDTH>(stage, lane));
  }

  // The staging takes the memory of this warp's own keys and values.
  float k_factor[M][2], v_factor[M][2];
#pragma unroll
  for (int i = 0; i < M; i++) {
    k_factor[i][0] = k_factor[i][1] = a.scale;
    v_factor[i][0] = v_factor[i][1] = DROPS ? a.dropout.kept : 1.0f;
  }
  __syncwarp();
  unsigned char* staging = memory + warp * M * 16 * Pitch<WIDTH>::BYTES;
  write_rows<T, WIDTH, M>(d_k, k_factor, staging + Shape::K, sample.keys_of<T>(a.d_k, head), a.d_k.row, first_row, keys, a.width);
  write_rows<T, WIDTH, M>(d_v, v_factor, staging + Shape::V, sample.keys_of<T>(a.d_v, head), a.d_v.row, first_row, keys, a.width);
}

// --- The gradient of the queries, and of the bias ---------------------------------------------------------------------------
// A block takes 128 queries of a head and goes through the keys, 32 at a time. Grid: as that of the forward pass.

// The gradient of the bias is the sum along the diagonals of the gradients of scores. A warp has 32 x 32 of them at a time. Each
// thread first adds up what it holds of 8 x 8 tiles on one diagonal. The result, [8 rows][columns], goes through shared memory, and
// each lane adds up two diagonals of it. Of the 63 diagonals of a tile the lower 32 are then complete; the others are carried to
// the next tile. Warp w + 1 adds its 32 sums to those that warp w had in the tile before, and the last warp writes them.
struct BiasGradient {
  static const int ROWS = 32, KEYS = 32, QUERIES = WARPS * ROWS;
  // Eight columns of zeros on either side of 7 * 8 columns; eight rows start in different banks.
  static const int COLUMNS = 72, PARTIAL = 8 * COLUMNS;
  static const int FLOATS = WARPS * PARTIAL + WARPS * 2 * 32;

  // Of a block of queries. Position p is that of the distance p + 1 - 128 - first query.
  static __device__ int positions(int keys) { return (keys + KEYS - 1) / KEYS * KEYS + QUERIES; }

  static __device__ float* sums_of(const AttentionArguments& a, const BlockRows& own, u32 head) {
    if (own.tile) return a.d_bias_blocks + u64(head) * a.sums + own.tile->sums;
    u64 blocks = (a.queries + QUERIES - 1) / QUERIES;
    return a.d_bias_blocks + ((u64(own.sample) * a.heads + head) * blocks + own.first / QUERIES) * positions(int(a.keys));
  }

  float *partial, *chain, *to;
  float carry;
  u32 lane, warp;

  __device__ BiasGradient(float* shared, float* to, bool used) : to(to), carry(0), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {
    partial = shared + warp * PARTIAL;
    chain = shared + WARPS * PARTIAL;
    for (int i = int(threadIdx.x); used && i < FLOATS; i += THREADS) shared[i] = 0;
  }

  // The sums along the diagonals of a tile: returns those that are complete and keeps the others in `carry`.
  __device__ float of_tile(const float ds[2][4][4]) {
    float* row = partial + lane / 4 * COLUMNS + 8 + 2 * (lane % 4);
    __syncwarp();
#pragma unroll
    for (int d = 0; d < 7; d++) {
      float low = 0, high = 0;
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int j = d - 3 + 2 * i + half;
          if (j >= 0 && j < 4) low += ds[i][j][half * 2], high += ds[i][j][half * 2 + 1];
        }
      struct alignas(8) Two { float low, high; };
      *(Two*)(row + d * 8) = {low, high};
    }
    __syncwarp();
    float now = carry, later = 0;
#pragma unroll
    for (int r = 0; r < 8; r++) {
      now += partial[r * COLUMNS + lane + 1 + r];
      later += partial[r * COLUMNS + lane + 33 + r];
    }
    carry = later;
    return now;
  }

  // Adds the complete sums of every warp. A barrier is between two steps.
  __device__ void step(int tile, float now) {
    if (warp > 0) now += chain[((warp - 1) * 2 + (tile + 1) % 2) * 32 + lane];
    if (warp == WARPS - 1) to[tile * 32 + lane] = now;
    else chain[(warp * 2 + tile % 2) * 32 + lane] = now;
  }

  __device__ void finish(int tiles, int keys) {
    for (int tile = tiles; tile < tiles + WARPS; tile++) {
      __syncthreads();
      step(tile, carry);
      carry = 0;
    }
    for (int i = (tiles + WARPS) * 32 + int(threadIdx.x); i < positions(keys); i += THREADS) to[i] = 0;
  }
};

template <int WIDTH, bool HAS_BIAS> struct QueriesShape {
  static const int M = 2, QUERIES = WARPS * M * 16, KEYS = 32;
  // Two stages of the widest keys and values would take more shared memory than a GeForce card gives to a block (99 KiB).
  static const int BUFFERS = WIDTH <= 96 ? 2 : 1;
  static const int Q = 0, D_O = QUERIES * Pitch<WIDTH>::BYTES, STAGES = 2 * D_O;
  static const int STAGE = 2 * KEYS * Pitch<WIDTH>::BYTES;
  static const int BIAS = STAGES + BUFFERS * STAGE;
  static const int SUMS = BIAS + 2 * (QUERIES + KEYS) * 4;
  static const int BYTES = HAS_BIAS ? SUMS + BiasGradient::FLOATS * 4 : BIAS;
};

template <typename T, int WIDTH, bool HAS_BIAS, bool DROPS>
__global__ void __launch_bounds__(THREADS) attention_backward_queries(AttentionArguments a) {
  typedef QueriesShape<WIDTH, HAS_BIAS> Shape;
  const int M = Shape::M, N = Shape::KEYS / 8, KEYS = Shape::KEYS, QUERIES = Shape::QUERIES;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  BlockRows own = BlockRows::of<QUERIES>(a.q_tiles, a.is_causal);
  if (own.sample < 0) return;
  Sample sample(a, u32(own.sample));
  int queries = sample.queries, first_query = own.first, first_row = first_query + int(warp) * M * 16;
  const T *q = sample.queries_of<const T>(a.q, head), *k = sample.keys_of<const T>(a.k, head / a.shared);
  const T *v = sample.keys_of<const T>(a.v, head / a.shared), *d_o = sample.queries_of<const T>(a.d_o, head);
  Visible visible(a, sample);
  AttentionDropout dropout = DROPS ? drawn_now(a.dropout) : a.dropout;
  int last_query = min(first_query + QUERIES, queries) - 1;
  int tiles = (max(visible.keys_of(last_query), 0) + KEYS - 1) / KEYS;
  const float* bias = HAS_BIAS ? a.bias + u64(head) * a.distances : nullptr;

  unsigned char* memory = shared_memory();
  u32 address = shared_address();
  RowCopies<KEYS, WIDTH, T> k_copies(k, a.k.row, 0, visible.end, a.width), v_copies(v, a.v.row, 0, visible.end, a.width);
  auto copy_tile = [&](int tile) {
    u32 stage = address + Shape::STAGES + (tile % Shape::BUFFERS) * Shape::STAGE;
    k_copies.next(stage);
    v_copies.next(stage + Shape::STAGE / 2);
    if (HAS_BIAS) {
      copy_pieces<QUERIES + KEYS>(address + Shape::BIAS + (tile % Shape::BUFFERS) * (QUERIES + KEYS) * 4, bias,
                                  tile * KEYS - first_query - (QUERIES - 1) + int(a.origin), int(a.distances));
    }
    commit_copies();
  };
  RowCopies<QUERIES, WIDTH, T>(q, a.q.row, first_query, queries, a.width).next(address + Shape::Q);
  RowCopies<QUERIES, WIDTH, T>(d_o, a.d_o.row, first_query, queries, a.width).next(address + Shape::D_O);
  commit_copies();
  if (tiles > 0) copy_tile(0);

  BiasGradient d_bias((float*)(memory + (HAS_BIAS ? Shape::SUMS : 0)), HAS_BIAS ? BiasGradient::sums_of(a, own, head) : nullptr,
                      HAS_BIAS);
  float base[M][2], minus[M][2];
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = first_row + i * 16 + half * 8 + int(lane / 4);
      RowSums of_row = {INFINITE, 0};
      if (row < queries) of_row = a.rows[sample.row(a, head) + row];
      base[i][half] = of_row.lse;
      minus[i][half] = of_row.delta;
    }

  u32 q_address = first_operand<WIDTH>(address + Shape::Q + warp * M * 16 * Pitch<WIDTH>::BYTES, lane);
  u32 d_o_address = first_operand<WIDTH>(address + Shape::D_O + warp * M * 16 * Pitch<WIDTH>::BYTES, lane);
  // To base 2. With a bias the scores are scaled when it is added.
  const float factor = HAS_BIAS ? LOG2_E : a.scale * LOG2_E;
  float d_q[M][WIDTH / 8][4];
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) d_q[i][j][e] = 0;

  int warp_end = first_row < queries ? visible.keys_of(min(first_row + M * 16, queries) - 1) : 0;
  int whole_end = visible.keys_of(first_row);
  for (int tile = 0; tile < tiles; tile++) {
    if (Shape::BUFFERS == 1 && tile > 0) {
      __syncthreads();
      copy_tile(tile);
    }
    wait_for_copies<0>();
    __syncthreads();
    if (Shape::BUFFERS == 2 && tile + 1 < tiles) copy_tile(tile + 1);
    int first_key = tile * KEYS;
    if (first_key >= warp_end) {
      if (HAS_BIAS) {
        d_bias.step(tile, d_bias.carry);
        d_bias.carry = 0;
      }
      continue;
    }

    u32 stage = address + Shape::STAGES + (tile % Shape::BUFFERS) * Shape::STAGE, stage_v = stage + Shape::STAGE / 2;
    float p[M][N][4], ds[M][N][4];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[i][j][e] = ds[i][j][e] = 0;
    multiply_rows<T, WIDTH, M, N>(p, q_address, second_operand<WIDTH>(stage, lane));
    multiply_rows<T, WIDTH, M, N>(ds, d_o_address, second_operand<WIDTH>(stage_v, lane));

    if (HAS_BIAS) {
      const float* near = (const float*)(memory + Shape::BIAS) + (tile % Shape::BUFFERS) * (QUERIES + KEYS) +
                          (QUERIES - 1 - int(warp) * M * 16) + int(2 * (lane % 4)) - int(lane / 4);
      add_bias<M, N, 1>(p, near, a.scale);
    }
    if (first_key + KEYS > whole_end) hide<M, N>(p, visible, first_row, first_key);
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        u32 r[4];
        if (DROPS) {
          philox(dropout.key, u32(first_key / 16 + j / 2) * 32 + lane, u32(first_row / 16 + i),
                  dropout.first_sample + sample.number, head + 1, r);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
          int half = e / 2 % 2;
          float x = fast_exp2(p[i][j + e / 4][e % 4] * factor - base[i][half]), &y = ds[i][j + e / 4][e % 4];
          if (DROPS) {
            y = is_below(r[e / 2], e % 2, a.dropout.threshold) ? 0.0f : y * a.dropout.kept;
          }
          y = x * (y - minus[i][half]);
        }
      }
    if (HAS_BIAS) d_bias.step(tile, d_bias.of_tile(ds));
    multiply_weights<T, WIDTH, M, N>(d_q, ds, second_operand_by_rows<WIDTH>(stage, lane));
  }
  if (HAS_BIAS) d_bias.finish(tiles, sample.summed);

  float factors[M][2];
#pragma unroll
  for (int i = 0; i < M; i++) factors[i][0] = factors[i][1] = a.scale;
  // The staging takes the memory of this warp's own queries.
  wait_for_copies<0>();
  __syncthreads();
  write_rows<T, WIDTH, M>(d_q, factors, memory + Shape::Q + warp * M * 16 * Pitch<WIDTH>::BYTES, sample.queries_of<T>(a.d_q, head),
                          a.d_q.row, first_row, queries, a.width);
}

// The sum over samples and blocks of queries, in this order. Grid: distances, heads.
__global__ void __launch_bounds__(THREADS) attention_bias_sum(AttentionArguments a) {
  int at = int(blockIdx.x) * THREADS + int(threadIdx.x), head = int(blockIdx.y);
  if (at >= int(a.distances)) return;
  int distance = at - int(a.origin);
  float sum = 0;
  auto add = [&](const BlockRows& own, int keys) {
    int position = distance + BiasGradient::QUERIES - 1 + own.first;
    if (position >= 0 && position < BiasGradient::positions(keys)) sum += BiasGradient::sums_of(a, own, u32(head))[position];
  };
  if (a.q_tiles) {
    for (u32 tile = 0; tile < a.tiles; tile++) {
      BlockRows own = {a.q_tiles[tile].sample, a.q_tiles[tile].first, a.q_tiles + tile};
      if (own.sample >= 0) add(own, Sample(a, u32(own.sample)).summed);
    }
  } else {
    for (u32 sample = 0; sample < a.batch; sample++) {
      for (int first = 0; first < int(a.queries); first += BiasGradient::QUERIES) add({int(sample), first, nullptr}, int(a.keys));
    }
  }
  a.d_bias[u64(head) * a.distances + at] = sum;
}
