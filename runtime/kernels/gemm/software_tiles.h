// SPDX-License-Identifier: Apache-2.0
// The tile registers of AMX in software, with the arithmetic that Intel's manual writes for them: what level amx
// computes with where no hardware has them, and what tests hold the hardware's instructions against.
//
//   tmm0..7  16 rows x 64 bytes each; a configuration says how many rows and how many bytes of each are in use
//   dot      C[m][n] = f32(C[m][n] + f32(even + odd)), both from +0 by ascending pairs k, per m and n:
//            even = fma(A[m][2k], B[k][2n], even), odd = fma(A[m][2k+1], B[k][2n+1], odd)
//
// Rounding is to nearest even; subnormal inputs count as 0 and subnormal results become 0. NaN's payload is
// unspecified.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp8::kernels {

inline constexpr int kTiles = 8, kTileRows = 16, kTileRowBytes = 64;
/// MXCSR for the same arithmetic by vectors: all exceptions masked, to nearest even, FTZ, DAZ.
inline constexpr unsigned kTileControl = 0x9FC0;

/// The 64 bytes that ldtilecfg reads.
struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];  ///< of tmm0.., a multiple of 4 up to 64; 0 with rows
  std::uint8_t rows[16];        ///< up to 16
};

/// One thread's tile registers. What would be #GP or #UD of the hardware is a std::logic_error "[tiles] found X,
/// allowed: Y": a wrong configuration, a tile that has none, operands whose shapes do not fit. Only start_row 0 is
/// taken.
class SoftwareTiles {
 public:
  SoftwareTiles();
  /// ldtilecfg; all tiles become 0. palette 1 only.
  void configure(const TileConfig& config);
  /// tilerelease: no tile is configured any more.
  void release();
  /// tilezero.
  void zero(int tile);
  /// tileloadd, tilestored: rows of row_bytes, stride bytes apart in memory. A load zeroes the rest of its tile.
  void load(int tile, const void* base, std::int64_t stride);
  void store(int tile, void* base, std::int64_t stride) const;
  /// tdpbf16ps: C [m rows x n f32] += A [m x k pairs of bf16] . B [k rows x n pairs].
  void dot(int c, int a, int b);

 private:
  void check(int tile) const;

  TileConfig config_;
  alignas(64) std::uint8_t tile_[kTiles][kTileRows][kTileRowBytes];
};

/// dot's arithmetic for `rows` rows of A and C, `pairs` rows of B and `columns` of C.
void dot_tiles_avx512(int rows, int pairs, int columns, const std::uint8_t (*a)[kTileRowBytes],
                      const std::uint8_t (*b)[kTileRowBytes], std::uint8_t (*c)[kTileRowBytes]);

// The tile unit as a policy of gemm_amx.cpp: the hardware's instructions, or SoftwareTiles, of the same bits. For
// one unit with flags of its own.

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
