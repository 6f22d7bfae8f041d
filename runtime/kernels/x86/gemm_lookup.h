// SPDX-License-Identifier: Apache-2.0
// 64 codes -> 64 bf16 by two lookups in 128-byte tables (VBMI), exact for every code of either format, NaN included.
// Included by units with flags of their own; everything is in an anonymous namespace so that no copy is shared.
#pragma once
#include <immintrin.h>

#include "fp8/runtime/kernels/gemm_kernels.h"

namespace fp8::kernels {
namespace {

struct Lookup {
  __m512i low0, low1, high0, high1;
  explicit Lookup(const CodeTables& tables) : Lookup(tables, tables.bf16_low) {}
  Lookup(const CodeTables& tables, const std::uint8_t* low)
      : low0(_mm512_load_si512(low)),
        low1(_mm512_load_si512(low + 64)),
        high0(_mm512_load_si512(tables.bf16_high)),
        high1(_mm512_load_si512(tables.bf16_high + 64)) {}

  // The lookup uses 7 bits of each code: the sign is left out for free.
  [[gnu::always_inline]] inline void line(__m512i codes, __m512i& lo, __m512i& hi) const {
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)),
                                     0xF8);  // high | (codes & 0x80)
    lo = _mm512_unpacklo_epi8(low, high);
    hi = _mm512_unpackhi_epi8(low, high);
  }
};

}  // namespace
}  // namespace fp8::kernels
