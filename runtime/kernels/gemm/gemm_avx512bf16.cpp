// SPDX-License-Identifier: Apache-2.0
// Products of bf16 for datapaths of 256 bits, the choice of all of this level, and its packing of activations.
#include "fp8/runtime/kernels/gemm/gemm_avx512bf16.h"

namespace fp8::kernels {

// 16 pairs of all rows at a time. Of one row they are its values in order.
void pack_pairs_avx512bf16(const PartOfTile& part) {
  const RowReader rows(part);
  const __mmask16 of_rows = first_lanes(part.tile_rows);
  std::uint16_t* out = part.out;
  for (std::int64_t k = part.k_begin; k < part.k_end; k += kTileK) {
    const std::int64_t left = (part.k_padded_end - k) / 2, pairs = left < 16 ? left : 16;
    if (part.tile_rows == 1) {
      _mm512_mask_storeu_epi32(out, first_lanes(pairs), rows.at(0, k));
      out += 2 * pairs;
      continue;
    }
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = i < part.tile_rows ? rows.at(i, k) : _mm512_setzero_si512();
    transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if (i < pairs) _mm512_mask_storeu_epi32(out + i * 2 * part.tile_rows, of_rows, r[i]);
    out += pairs * 2 * part.tile_rows;
  }
}

const GemmKernels* gemm_kernels_avx512bf16(bool dot, bool wide) {
  static constexpr GemmKernels kDot = kernels_of<SumBf16>(XLayout::BF16Pair);
  if (!dot) return &kF32Kernels[wide ? 1 : 0];
  return wide ? &kDotWide : &kDot;
}

}  // namespace fp8::kernels
