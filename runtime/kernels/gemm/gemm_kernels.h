// SPDX-License-Identifier: Apache-2.0
// The interface between gemm.cpp and one instruction-set level: a table of functions over plain structs and raw
// pointers, because the units behind it are compiled with that level's flags and must not emit code that another unit
// could end up calling.
//
//   weights      lines of 64 codes, 16 channels x 4 k, in the packed order of gemm.h; "block" = 16 channels = k/4 lines
//   activations  packed by gemm_operands.h in tiles of tile_rows rows, zero padded to whole tiles and whole lines
//   acc          f32 [tiles * tile_rows][blocks][acc_floats], running sums of one group of blocks
//
// Every output is one chain of sums in ascending k (per accumulator lane), carried through acc between ranges of k. So
// its bits depend on neither m, tile_rows, blocks, the ranges of k, the layout nor the threads.
#pragma once

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

inline constexpr int kBlockChannels = 16;
inline constexpr int kLineBytes = 64;
inline constexpr int kLineK = 4;

/// How a level wants its activations: element (row r of a tile, k) with R = tile_rows
///   F32       float  at [k][R][1]      index k * R + r
///   F32Pair   float  at [k/2][R][2]    index (k/2) * 2R + 2r + k%2
///   BF16Pair  bf16   at [k/2][R][2]
///   BF16Tile  bf16   at [k/32][R][32]  index (k/32) * 32R + 32r + k%32; k zero padded to whole tiles
enum class XLayout : std::uint8_t { F32, F32Pair, BF16Pair, BF16Tile };
inline constexpr int kTileK = 32;
inline constexpr int kMostFoldSteps = 96;  ///< gemm_operands.h

/// Bytes of one activation element in a layout, and the k that a layout's rows are padded to a multiple of.
constexpr int element_bytes(XLayout layout) {
  return layout == XLayout::BF16Pair || layout == XLayout::BF16Tile ? 2 : 4;
}
constexpr int k_unit(XLayout layout) { return layout == XLayout::BF16Tile ? kTileK : kLineK; }

/// Bytes from a tile of tile_rows rows to the next: k rounded up to k_unit. Long tiles lie an odd number of 16 KiB
/// apart: a power of two apart, the same range of k of all of them would share a few sets of a cache.
constexpr std::int64_t tile_stride(int tile_rows, std::int64_t k, XLayout layout) {
  constexpr std::int64_t kUnit = 16384;
  const std::int64_t unit = k_unit(layout), bytes = tile_rows * ((k + unit - 1) / unit * unit) * element_bytes(layout);
  return bytes < 2 * kUnit ? bytes : ((bytes + kUnit - 1) / kUnit | 1) * kUnit;
}

/// How a level cuts m rows, and k (with BF16Tile, ranges of whole 32 k).
struct GemmPlan {
  int tile_rows = 1;      ///< rows per tile, 1..16
  int blocks = 1;         ///< blocks of 16 channels worked on together
  int range_lines = 128;  ///< lines per range of k (row-major weights: as many lines per block are packed to scratch)
  int packed_range_lines = 128;  ///< the same where the weight is packed already
  bool panel = false;            ///< decode a range once to scratch, then use it for every tile
};

/// 256 values of a format, and (for 128-byte table lookups) the low and high bytes of bf16(code) for the codes without
/// sign.
struct CodeTables {
  float value[256];
  std::uint16_t bf16[256];
  alignas(64) std::uint8_t bf16_low[128];
  alignas(64) std::uint8_t bf16_high[128];
  alignas(64) std::uint8_t bf16_low_marked[128];  ///< bit 0 set where the value is finite and not 0
};

/// Part of a tile, of BF16 or fp8 activations.
struct PartOfTile {
  const void* a = nullptr;              ///< the first row
  bool codes = false;                   ///< else BF16
  const CodeTables* tables = nullptr;   ///< of the codes' format; of any with BF16
  std::int64_t stride = 0, rows = 0;    ///< elements; valid rows
  std::int64_t k_begin = 0, k_end = 0;  ///< k_begin a multiple of kTileK; behind k_end 0
  std::int64_t k_padded_end = 0;        ///< k_end rounded up to k_unit
  int tile_rows = 0;
  /// [rows][groups], from that of k_begin on, of values in groups of k_group columns, whole 32; nullptr: none.
  const std::uint16_t* folds = nullptr;
  std::int64_t groups = 0, k_group = 0;
  std::uint16_t* out = nullptr;  ///< of k_begin
};
/// In BF16Tile and in BF16Pair, at the levels that take them.
void pack_tile_amx(const PartOfTile& part);
void pack_pairs_avx512bf16(const PartOfTile& part);

/// Groups of k with scales of their own: where one ends, total += sums * (a_scale * lane_scale), or = in group 0, and
/// the sums begin anew.
struct GroupScales {
  std::int64_t lines = 0, all_lines = 0;  ///< of a group; of k, where the last group ends
  std::int64_t groups = 0;
  const float* lane_scale = nullptr;  ///< [groups][width], width = blocks * acc_floats
  const float* a_scale = nullptr;     ///< [rows][groups]; nullptr means 1
  std::int64_t rows = 0;              ///< valid ones of all tiles
  float* total = nullptr;             ///< [tiles * tile_rows][width]
};

/// Groups of k whose scales weights are multiplied with as they are decoded (gemm_operands.h).
struct WeightFolds {
  std::int64_t lines = 0;                ///< of a group
  const std::uint32_t* folds = nullptr;  ///< [groups][blocks * 16], each twice
};

/// acc += x . w over one range of k, for one group of blocks and every tile.
struct MultiplyArgs {
  const std::uint8_t* lines = nullptr;  ///< first line of the range in the first block
  std::int64_t block_stride = 0;        ///< bytes between blocks
  int blocks = 0;
  std::int64_t range_lines = 0;
  std::int64_t row_stride = 0,
               k = 0;  ///< multiply_row_major only: `lines` are then whole blocks of rows, k codes of each used
  std::int64_t prefetch =
      0;  ///< bytes ahead of the read position that memory should already fetch, all blocks together
  const std::uint8_t* next = nullptr;  ///< `lines` of what will be multiplied next, with the same block_stride
  Format format = Format::E4M3;
  const CodeTables* tables = nullptr;
  const void* x = nullptr;         ///< first tile, at the range's first k
  std::int64_t x_tile_stride = 0;  ///< bytes between tiles
  std::int64_t tiles = 0;
  float* acc = nullptr;
  bool first = false;     ///< acc holds nothing yet: start from zero
  void* panel = nullptr;  ///< panel_bytes, 64-byte aligned
  GemmPlan plan;
  const GroupScales* group = nullptr;  ///< acc then carries what a range leaves of a group
  const WeightFolds* folds = nullptr;  ///< or nullptr; not with `group`
  std::int64_t begin_line = 0;         ///< of the range, with `group` or `folds`
};

/// y = round(acc * (a_scale_inv * w_scale_inv) + bias + y_old) for `rows` rows and `channels` valid channels of one
/// group.
struct FinishArgs {
  const float* acc = nullptr;
  int blocks = 0;
  std::int64_t rows = 0;
  int channels = 0;
  Format format = Format::E4M3;
  const float* a_scale_inv = nullptr;  ///< never null here; strides 0 or 1
  std::int64_t a_scale_stride = 0;
  const float* w_scale_inv = nullptr;
  std::int64_t w_scale_stride = 0;
  const void* bias = nullptr;  ///< may be null
  FloatType bias_type = FloatType::F32;
  void* y = nullptr;
  FloatType y_type = FloatType::F32;
  std::int64_t y_stride = 0;  ///< elements
  bool accumulate = false;
};

struct GemmKernels {
  XLayout x_layout;
  int acc_floats;  ///< floats of acc per row and block; lane l is channel l * 16 / acc_floats
  GemmPlan (*plan)(std::int64_t m);
  /// Bytes of MultiplyArgs::panel that a plan of this level needs.
  std::int64_t panel_bytes;
  /// Row-major codes -> lines: `rows` (1..16) rows of `k` codes, row_stride bytes apart, to ceil(k/4) lines; what is
  /// missing is 0. Reads nothing outside the rows; fetches `prefetch` bytes ahead in each row (a hint only).
  void (*pack_lines)(const std::uint8_t* w, std::int64_t row_stride, int rows, std::int64_t k, std::int64_t prefetch,
                     std::uint8_t* lines);
  void (*multiply)(const MultiplyArgs& args);
  /// multiply's sums straight from row-major weights for one tile of at most row_major_tile rows and whole blocks; may
  /// be null (0).
  void (*multiply_row_major)(const MultiplyArgs& args);
  int row_major_tile;
  void (*finish)(const FinishArgs& args);
  /// MultiplyArgs::prefetch of packed weights: what a core has on its way from memory.
  std::int64_t packed_prefetch = 8192;
  /// Packed activations that all weights are multiplied with at once, in rows of at least so many.
  std::int64_t chunk_bytes = std::int64_t{8} << 20, least_chunk_rows = 16;
  /// Null where MultiplyArgs::folds is not taken. scales: of `blocks` * 16 channels, [groups] each; largest: of each
  /// channel; folds: WeightFolds::folds.
  void (*fold_scales)(const float* const* scales, int blocks, std::int64_t groups, std::uint32_t* folds,
                      float* largest) = nullptr;
};

/// The tables of a level; `dot` asks for products in bf16 where the level has them (nullptr where it has not),
/// `wide` for those of wide_datapath() (simd.h), of the same bits.
const GemmKernels* gemm_kernels_scalar();
const GemmKernels* gemm_kernels_avx2();
const GemmKernels* gemm_kernels_avx512();
const GemmKernels* gemm_kernels_avx512bf16(bool dot, bool wide);
/// For m rows of BF16 or fp8, groups of a multiple of kTileK columns or of all. `hardware`: tile instructions, else the
/// same arithmetic without (software_tiles.h).
const GemmKernels* gemm_kernels_amx(bool hardware, std::int64_t m);

/// Built once from the formats' definition.
const CodeTables& code_tables(Format format);

}  // namespace fp8::kernels
