// The functions of attention.cu that are PTX on a card. Included between kernels.cu and attention.cu.

#pragma once

inline float wide(F16 x) { return _cvtsh_ss(x.bits); }
inline void store(F16& to, float x) { to.bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

inline unsigned char* shared_memory() { return cpu::block().shared; }
// Shared memory starts at an address other than 0, as it may on a card.
const u32 SHARED_BEGIN = 1024;
inline u32 shared_address() { return SHARED_BEGIN; }

inline unsigned char* at_shared(u32 address, u32 bytes) {
  if (address % bytes) cpu::fail("an address in shared memory that is not aligned");
  if (address < SHARED_BEGIN || address - SHARED_BEGIN + bytes > cpu::block().shared_bytes) {
    cpu::fail("an address outside of shared memory");
  }
  return cpu::block().shared + (address - SHARED_BEGIN);
}

template <typename T> void mma(T, float c[4], const u32 a[4], u32 b0, u32 b1) {
  struct Lane { float* c; const u32* a; u32 b[2]; } mine{c, a, {b0, b1}};
  cpu::collective(mine, [](Lane** lanes) {
    auto number = [](u32 two, int which) { T x; x.bits = u16(two >> (16 * which)); return wide(x); };
    float a[16][16], b[16][8], c[16][8];
    for (int l = 0; l < 32; l++) {
      int row = l / 4, column = 2 * (l % 4);
      for (int e = 0; e < 2; e++) {
        a[row][column + e] = number(lanes[l]->a[0], e);
        a[row + 8][column + e] = number(lanes[l]->a[1], e);
        a[row][column + 8 + e] = number(lanes[l]->a[2], e);
        a[row + 8][column + 8 + e] = number(lanes[l]->a[3], e);
        b[column + e][row] = number(lanes[l]->b[0], e);
        b[column + 8 + e][row] = number(lanes[l]->b[1], e);
        c[row][column + e] = lanes[l]->c[e];
        c[row + 8][column + e] = lanes[l]->c[2 + e];
      }
    }
    for (int i = 0; i < 16; i++)
      for (int k = 0; k < 16; k++)
        for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++) {
      int row = l / 4, column = 2 * (l % 4);
      for (int e = 0; e < 2; e++) {
        lanes[l]->c[e] = c[row][column + e];
        lanes[l]->c[2 + e] = c[row + 8][column + e];
      }
    }
  });
}

template <typename T> u32 pack(T, float low, float high) {
  T a, b;
  store(a, low);
  store(b, high);
  return u32(a.bits) | u32(b.bits) << 16;
}

template <bool TRANSPOSED> void load_four(u32 out[4], u32 address) {
  struct Lane { u32* out; const unsigned char* row; } mine{out, at_shared(address, 16)};
  cpu::collective(mine, [](Lane** lanes) {
    for (int matrix = 0; matrix < 4; matrix++)
      for (int l = 0; l < 32; l++) {
        u16 two[2];
        for (int e = 0; e < 2; e++) {
          int row = TRANSPOSED ? 2 * (l % 4) + e : l / 4, column = TRANSPOSED ? l / 4 : 2 * (l % 4) + e;
          memcpy(&two[e], lanes[matrix * 8 + row]->row + column * 2, 2);
        }
        lanes[l]->out[matrix] = u32(two[0]) | u32(two[1]) << 16;
      }
  });
}
inline void load_matrices(u32 out[4], u32 address) { load_four<false>(out, address); }
inline void load_transposed(u32 out[4], u32 address) { load_four<true>(out, address); }

// What a copy brings is there after the wait for it and not before: until then its target holds NaN patterns.
template <u32 BYTES> void copy_async(u32 to, const void* from, bool exists) {
  if (uintptr_t(from) % BYTES) cpu::fail("a copy from an address that is not aligned");
  unsigned char* target = at_shared(to, BYTES);
  memset(target, 0xFF, BYTES);
  auto& block = cpu::block();
  block.fibers[block.current].open.push_back({target, static_cast<const unsigned char*>(from), BYTES, exists ? BYTES : 0});
}
inline void copy_16_bytes(u32 to, const void* from, bool exists) { copy_async<16>(to, from, exists); }
template <int BYTES> void copy_piece(u32 to, const void* from, bool exists) { copy_async<BYTES>(to, from, exists); }

inline void commit_copies() {
  auto& fiber = cpu::block().fibers[cpu::block().current];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
template <int N> void wait_for_copies() {
  auto& groups = cpu::block().fibers[cpu::block().current].groups;
  while (groups.size() > N) {
    cpu::finish_group(groups.front());
    groups.erase(groups.begin());
  }
}

inline float fast_log2(float x) { return std::log2(x); }
