// SPDX-License-Identifier: Apache-2.0
// The decode with AVX2 and F16C, 16 codes per step; see decode_loop.h.
#include "fp8/runtime/kernels/x86/decode_loop.h"

namespace fp8::kernels {
namespace {

struct Avx2 {
  using V = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;

  static inline V set(float x) { return _mm256_set1_ps(x); }
  static inline V load(const float* p) { return _mm256_loadu_ps(p); }
  static inline V multiply(V a, V b) { return _mm256_mul_ps(a, b); }
  static inline I bits(V x) { return _mm256_castps_si256(x); }
  static inline void store(char* p, I x) { _mm256_storeu_si256(reinterpret_cast<I*>(p), x); }
  static inline void stream(char* p, I x) { _mm256_stream_si256(reinterpret_cast<I*>(p), x); }

  template <Format F>
  static inline I to_f16(__m128i codes) {
    const I wide = _mm256_cvtepi8_epi16(codes);
    if constexpr (F == Format::E5M2) return _mm256_slli_epi16(wide, 8);
    const I h = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    const I all_ones = _mm256_set1_epi16(0x3F80), sign = _mm256_set1_epi16(static_cast<short>(0x8000));
    const I is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, all_ones), all_ones);
    return _mm256_blendv_epi8(h, _mm256_or_si256(_mm256_and_si256(h, sign), _mm256_set1_epi16(0x7E00)), is_nan);
  }

  template <Format F>
  static inline void values(const std::uint8_t* codes, V (&v)[2]) {
    const I h = to_f16<F>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
    v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
  }

  /// f32 -> bf16 in the upper halves of the lanes, nearest even; NaN quiet.
  static inline I round_bf16(V y) {
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits(y), 16), _mm256_set1_epi32(1));
    const I sum = _mm256_add_epi32(_mm256_add_epi32(bits(y), _mm256_set1_epi32(0x7FFF)), odd);
    const I nan = _mm256_or_si256(bits(y), _mm256_set1_epi32(0x00400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(sum, nan, bits(_mm256_cmp_ps(y, y, _CMP_UNORD_Q))), 16);
  }

  template <FloatType T>
  static inline I narrow(V low, V high) {
    if constexpr (T == FloatType::BF16)
      return _mm256_permute4x64_epi64(_mm256_packus_epi32(round_bf16(low), round_bf16(high)), 0xD8);
    return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

extern const DecodeKernels kDecodeAvx2 = decode_kernels_of<Avx2>();

}  // namespace fp8::kernels
