// SPDX-License-Identifier: Apache-2.0
// The tile unit as a policy of gemm_amx.cpp: the hardware's instructions, or SoftwareTiles, of the same bits. Included
// by one unit with flags of its own.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp8/runtime/kernels/gemm/software_tiles.h"

namespace fp8::kernels {
namespace {

// GCC's intrinsics paste the number of a tile as text, which no template parameter is, and their load does not say that
// it reads memory. Here it may read all that lies behind its base (an array without a size would say so too, but Clang
// takes none). A store must not say the same: what it is said to write, it would have to write.
struct HardwareTiles {
  struct Behind {
    std::uint8_t bytes[std::size_t{1} << 30];
  };

  explicit HardwareTiles(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  ~HardwareTiles() { asm volatile("tilerelease" : : : "memory"); }
  HardwareTiles& operator=(HardwareTiles&&) = delete;

  template <int T>
  [[gnu::always_inline]] inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  [[gnu::always_inline]] inline void load(const void* base, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(base), "r"(stride), "i"(T), "m"(*static_cast<const Behind*>(base)));
  }
  template <int T>
  [[gnu::always_inline]] inline void store(void* base, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  [[gnu::always_inline]] inline void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

struct EmulatedTiles {
  SoftwareTiles tiles;
  explicit EmulatedTiles(const TileConfig& config) { tiles.configure(config); }

  template <int T>
  void zero() {
    tiles.zero(T);
  }
  template <int T>
  void load(const void* base, std::int64_t stride) {
    tiles.load(T, base, stride);
  }
  template <int T>
  void store(void* base, std::int64_t stride) {
    tiles.store(T, base, stride);
  }
  template <int C, int A, int B>
  void dot() {
    tiles.dot(C, A, B);
  }
};

// A and C with `rows` rows, B with all; all bytes of each.
inline TileConfig config_of(int rows) {
  TileConfig config{};
  config.palette = 1;
  for (int t = 0; t < kTiles; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(t < 6 ? rows : kTileRows);
    config.row_bytes[t] = kTileRowBytes;
  }
  return config;
}

}  // namespace
}  // namespace fp8::kernels
