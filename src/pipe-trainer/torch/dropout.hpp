// What dropout drops: a function of key, sample, position and feature alone, as docs/dev/dropout.md has it. So no mask is kept, and the same
// is dropped however a step is cut, on the CPU as on a card (kernels.cu).

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

// As `Dropped` in dropout.rs.
struct Dropped {
  double share;
  uint64_t key;
  uint32_t first_sample;
  uint64_t place;
  uint64_t tokens;
};

// Where a token stands, as in kernels.cu.
struct alignas(8) TokenPlace {
  uint32_t sample, position;
};

// The same for one tensor, as in kernels.cu.
struct Dropout {
  uint64_t key;
  uint32_t threshold;
  float kept;
  uint32_t first_sample;
  // Of [samples, positions, features]. Of attention's weights, [samples, heads, queries, keys], positions are heads times queries.
  uint32_t positions, features;
  // The address on the card of the key and of what is added to the first sample, where a CUDA graph reads them; else 0.
  uint64_t place;
  // The address of a `TokenPlace` for each row, where samples are packed; else 0.
  uint64_t tokens;

  static Dropout of(const Dropped& dropped, at::IntArrayRef sizes) {
    auto threshold = uint32_t(std::lround(dropped.share * 65536));
    auto kept = threshold ? float(65536.0 / (65536.0 - threshold)) : 1.0f;
    int64_t positions = 1;
    for (size_t i = 1; i + 1 < sizes.size(); i++) positions *= sizes[i];
    return {dropped.key, threshold, kept, dropped.first_sample, uint32_t(positions), uint32_t(sizes.back()), dropped.place, dropped.tokens};
  }
};

namespace dropout {

// Philox4x32-7 (Salmon et al., 2011) of LANES counters that differ in their first word alone. Each gives eight factors: 0 for
// a share of threshold/65536, `kept` for the others.
constexpr int LANES = 16;

__attribute__((target_clones("avx512f", "avx2", "default"))) inline void draw(const Dropout& dropout, uint32_t c0, uint32_t c1, uint32_t c2,
                                                                              uint32_t c3, float* out) {
  uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
  for (int i = 0; i < LANES; i++) {
    a[i] = c0 + uint32_t(i);
    b[i] = c1;
    c[i] = c2;
    d[i] = c3;
  }
  auto k0 = uint32_t(dropout.key), k1 = uint32_t(dropout.key >> 32);
  for (int round = 0; round < 7; round++) {
    for (int i = 0; i < LANES; i++) {
      uint64_t p0 = uint64_t(0xD2511F53u) * a[i], p1 = uint64_t(0xCD9E8D57u) * c[i];
      a[i] = uint32_t(p1 >> 32) ^ b[i] ^ k0;
      b[i] = uint32_t(p1);
      c[i] = uint32_t(p0 >> 32) ^ d[i] ^ k1;
      d[i] = uint32_t(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < LANES; i++) {
    uint32_t r[4] = {a[i], b[i], c[i], d[i]};
    for (int e = 0; e < 8; e++) {
      out[i * 8 + e] = ((r[e / 2] >> (16 * (e & 1))) & 0xFFFFu) < dropout.threshold ? 0.0f : dropout.kept;
    }
  }
}

// `in` [samples, positions.., features] with some of it dropped.
inline at::Tensor rows_on_cpu(const at::Tensor& in, const Dropout& dropout) {
  auto x = in.contiguous(), out = at::empty_like(x);
  int64_t width = dropout.features;
  auto* tokens = reinterpret_cast<const TokenPlace*>(dropout.tokens);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    auto *from = x.data_ptr<scalar_t>(), *to = out.data_ptr<scalar_t>();
    at::parallel_for(0, width ? x.numel() / width : 0, std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(width, 1)), [&](int64_t begin, int64_t end) {
      float factors[LANES * 8];
      for (int64_t row = begin; row < end; row++) {
        auto at = tokens ? tokens[row] : TokenPlace{uint32_t(row / dropout.positions), uint32_t(row % dropout.positions)};
        for (int64_t first = 0; first < width; first += LANES * 8) {
          draw(dropout, uint32_t(first / 8), at.position, at.sample + dropout.first_sample, 0, factors);
          auto count = std::min<int64_t>(LANES * 8, width - first);
          auto *x = from + row * width + first, *y = to + row * width + first;
          for (int64_t i = 0; i < count; i++) y[i] = scalar_t(at::opmath_type<scalar_t>(x[i]) * factors[i]);
        }
      }
    });
  });
  return out;
}

// The factors of a tile of 16 by 16 weights. Each counter gives the eight that one thread of a tensor core holds: pairs of columns, 8 rows and
// 8 columns apart.
inline void draw_tile(const Dropout& dropout, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, float tile[16][16]) {
  float drawn[32][8];
  for (uint32_t lane = 0; lane < 32; lane += LANES) draw(dropout, c0 + lane, c1, c2, c3, drawn[lane]);
  for (int row = 0; row < 16; row++) {
    for (int half = 0; half < 2; half++) {
      for (int pair = 0; pair < 4; pair++) {
        memcpy(&tile[row][half * 8 + pair * 2], &drawn[row % 8 * 4 + pair][4 * half + 2 * (row / 8)], 2 * sizeof(float));
      }
    }
  }
}

// `in` [samples, heads, queries, keys], the weights of attention.
inline at::Tensor weights_on_cpu(const at::Tensor& in, const Dropout& dropout) {
  auto x = in.contiguous(), out = at::empty_like(x);
  int64_t heads = x.size(1), queries = x.size(2), keys = x.size(3), tiles = (queries + 15) / 16;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    auto *from = x.data_ptr<scalar_t>(), *to = out.data_ptr<scalar_t>();
    at::parallel_for(0, x.size(0) * heads * tiles, 1, [&](int64_t begin, int64_t end) {
      float tile_factors[16][16];
      for (int64_t work = begin; work < end; work++) {
        int64_t plane = work / tiles, tile = work % tiles;
        auto sample = uint32_t(plane / heads) + dropout.first_sample, head = uint32_t(plane % heads);
        for (int64_t first = 0; first < keys; first += 16) {
          draw_tile(dropout, uint32_t(first * 2), uint32_t(tile), sample, head + 1, tile_factors);
          auto rows = std::min<int64_t>(16, queries - tile * 16), columns = std::min<int64_t>(16, keys - first);
          for (int64_t i = 0; i < rows; i++) {
            auto start = (plane * queries + tile * 16 + i) * keys + first;
            for (int64_t j = 0; j < columns; j++) {
              to[start + j] = scalar_t(at::opmath_type<scalar_t>(from[start + j]) * tile_factors[i][j]);
            }
          }
        }
      }
    });
  });
  return out;
}

}  // namespace dropout
