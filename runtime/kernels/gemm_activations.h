// SPDX-License-Identifier: Apache-2.0
// Activations of a gemm in the order its kernel reads them (XLayout in gemm_kernels.h), converted exactly.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/gemm_kernels.h"

namespace fp8::kernels {

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

/// Packs rows [row0, row0 + rows) of args.a into ceil(rows / tile_rows) tiles, tile_stride() bytes apart; rows and k
/// beyond the matrix become 0. Those of bf16 take BF16, E4M3 and E5M2 only (F32 and F16 would round). Uses the threads
/// of the pool when there is enough to do. largest [rows]: args.a_scale_inv, of groups, is folded in (gemm_special.h).
void pack_activations(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
                      void* out, const float* largest = nullptr);

}  // namespace fp8::kernels
