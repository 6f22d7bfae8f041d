// SPDX-License-Identifier: Apache-2.0
// The decode with AVX-512 F, BW, DQ and VL, 32 codes per step; see decode_loop.h.
#include "fp8/runtime/kernels/x86/decode_loop.h"

namespace fp8::kernels {
namespace {

struct Avx512 {
  using V = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;

  static inline V set(float x) { return _mm512_set1_ps(x); }
  static inline V load(const float* p) { return _mm512_loadu_ps(p); }
  static inline V multiply(V a, V b) { return _mm512_mul_ps(a, b); }
  static inline I bits(V x) { return _mm512_castps_si512(x); }
  static inline void store(char* p, I x) { _mm512_storeu_si512(p, x); }
  static inline void stream(char* p, I x) { _mm512_stream_si512(reinterpret_cast<I*>(p), x); }

  template <Format F>
  static inline I to_f16(__m256i codes) {
    const I wide = _mm512_cvtepi8_epi16(codes);
    if constexpr (F == Format::E5M2) return _mm512_slli_epi16(wide, 8);
    const I h = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
    const I all_ones = _mm512_set1_epi16(0x3F80), sign = _mm512_set1_epi16(static_cast<short>(0x8000));
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(h, all_ones), all_ones);
    return _mm512_mask_mov_epi16(h, is_nan, _mm512_or_si512(_mm512_and_si512(h, sign), _mm512_set1_epi16(0x7E00)));
  }

  template <Format F>
  static inline void values(const std::uint8_t* codes, V (&v)[2]) {
    const I h = to_f16<F>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
    v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
  }

  /// f32 -> bf16, nearest even; NaN quiet. Integers, because vcvtneps2bf16 flushes subnormals.
  static inline __m256i round_bf16(V y) {
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits(y), 16), _mm512_set1_epi32(1));
    const I sum = _mm512_add_epi32(_mm512_add_epi32(bits(y), _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
    const I kept = _mm512_mask_or_epi32(sum, is_nan, bits(y), _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }

  template <FloatType T>
  static inline I narrow(V low, V high) {
    const auto half = [](V y) {
      if constexpr (T == FloatType::BF16) return round_bf16(y);
      return _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(low)), half(high), 1);
  }
};

}  // namespace

extern const DecodeKernels kDecodeAvx512 = decode_kernels_of<Avx512>();

}  // namespace fp8::kernels
