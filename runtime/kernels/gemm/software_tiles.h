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

}  // namespace fp8::kernels
