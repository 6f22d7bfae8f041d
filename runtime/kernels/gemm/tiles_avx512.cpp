// SPDX-License-Identifier: Apache-2.0
// SoftwareTiles::dot in AVX-512, 16 columns at once. A pair of bf16 is one 32-bit lane: the even factor is its low half
// moved up, the odd one its high half. MXCSR has rounding to nearest, DAZ and FTZ meanwhile: tdpbf16ps neither reads
// nor writes it.
#include <immintrin.h>

#include "fp8/runtime/kernels/gemm/software_tiles.h"

namespace fp8::kernels {
namespace {

__m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
__m512 odd_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

// Not inlined: arithmetic could move across the writes of MXCSR, a call does not.
[[gnu::noinline]] void dot(int rows, int pairs, __mmask16 columns, const std::uint8_t (*a)[kTileRowBytes],
                           const std::uint8_t (*b)[kTileRowBytes], std::uint8_t (*c)[kTileRowBytes]) {
  for (int m = 0; m < rows; ++m) {
    const int* a_pair = reinterpret_cast<const int*>(a[m]);
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < pairs; ++k) {
      const __m512i x = _mm512_set1_epi32(a_pair[k]), w = _mm512_load_si512(b[k]);
      even = _mm512_fmadd_ps(even_of(x), even_of(w), even);
      odd = _mm512_fmadd_ps(odd_of(x), odd_of(w), odd);
    }
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(c[m]), _mm512_add_ps(even, odd));
    _mm512_mask_store_ps(c[m], columns, sum);
  }
}

}  // namespace

void dot_tiles_avx512(int rows, int pairs, int columns, const std::uint8_t (*a)[kTileRowBytes],
                      const std::uint8_t (*b)[kTileRowBytes], std::uint8_t (*c)[kTileRowBytes]) {
  const unsigned control = _mm_getcsr();
  _mm_setcsr(kTileControl);
  dot(rows, pairs, static_cast<__mmask16>((1u << columns) - 1), a, b, c);
  _mm_setcsr(control);
}

}  // namespace fp8::kernels
