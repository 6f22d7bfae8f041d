// SPDX-License-Identifier: Apache-2.0
// The decode with AVX-512 F, BW, DQ and VL, 32 codes per step, through f16 as in decode_avx2.cpp.
#include <immintrin.h>

#include "fp8/runtime/kernels/decode_kernels.h"

namespace fp8::kernels {
namespace {

constexpr int kBlock = 32;

template <Format F>
inline __m512i to_f16(__m256i codes) {
  const __m512i wide = _mm512_cvtepi8_epi16(codes);
  if constexpr (F == Format::E5M2) return _mm512_slli_epi16(wide, 8);
  const __m512i h = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
  const __m512i all_ones = _mm512_set1_epi16(0x3F80), sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(h, all_ones), all_ones);
  return _mm512_mask_mov_epi16(h, is_nan, _mm512_or_si512(_mm512_and_si512(h, sign), _mm512_set1_epi16(0x7E00)));
}

template <Format F>
inline __m512 to_f32(__m256i h) {
  const __m512 value = _mm512_cvtph_ps(h);
  return F == Format::E4M3 ? _mm512_mul_ps(value, _mm512_set1_ps(256.0f)) : value;
}

/// f32 -> bf16, nearest even; NaN quiet. Integers, because vcvtneps2bf16 flushes subnormals.
inline __m256i round_bf16(__m512 y) {
  const __m512i bits = _mm512_castps_si512(y);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

inline void put(void* p, __m512i x, bool stream) {
  if (stream) {
    _mm512_stream_si512(static_cast<__m512i*>(p), x);
  } else {
    _mm512_storeu_si512(p, x);
  }
}

template <FloatType T, Format F>
inline void decode_block(const std::uint8_t* codes, __m512 scale0, __m512 scale1, char* y, bool stream) {
  const __m512i h = to_f16<F>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512 y0 = _mm512_mul_ps(to_f32<F>(_mm512_castsi512_si256(h)), scale0);
  const __m512 y1 = _mm512_mul_ps(to_f32<F>(_mm512_extracti64x4_epi64(h, 1)), scale1);
  if constexpr (T == FloatType::F32) {
    put(y, _mm512_castps_si512(y0), stream);
    put(y + 64, _mm512_castps_si512(y1), stream);
  } else {
    __m256i low, high;
    if constexpr (T == FloatType::BF16) {
      low = round_bf16(y0);
      high = round_bf16(y1);
    } else {
      low = _mm512_cvtps_ph(y0, _MM_FROUND_TO_NEAREST_INT);
      high = _mm512_cvtps_ph(y1, _MM_FROUND_TO_NEAREST_INT);
    }
    put(y, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), stream);
  }
}

template <FloatType T, Format F>
void decode_span(const DecodeSpan& span) {
  constexpr int kSize = T == FloatType::F32 ? 4 : 2;
  char* y = static_cast<char*>(span.y);
  const bool stream = span.stream && (reinterpret_cast<std::uintptr_t>(y) & 63) == 0;
  __m512 scale0 = _mm512_set1_ps(span.scales[0]), scale1 = scale0;
  std::int64_t i = 0;
  for (; i + kBlock <= span.n; i += kBlock) {
    if ((i & 63) == 0) _mm_prefetch(reinterpret_cast<const char*>(span.codes + i) + 4096, _MM_HINT_T0);
    if (span.per_element) {
      scale0 = _mm512_loadu_ps(span.scales + i);
      scale1 = _mm512_loadu_ps(span.scales + i + 16);
    }
    decode_block<T, F>(span.codes + i, scale0, scale1, y + i * kSize, stream);
  }
  if (i < span.n) {  // through buffers, so that nothing outside the run is touched
    const std::size_t rest = static_cast<std::size_t>(span.n - i);
    alignas(64) std::uint8_t codes[kBlock] = {};
    alignas(64) float scales[kBlock] = {};
    alignas(64) char out[kBlock * 4];
    __builtin_memcpy(codes, span.codes + i, rest);
    if (span.per_element) {
      __builtin_memcpy(scales, span.scales + i, rest * sizeof(float));
      scale0 = _mm512_load_ps(scales);
      scale1 = _mm512_load_ps(scales + 16);
    }
    decode_block<T, F>(codes, scale0, scale1, out, false);
    __builtin_memcpy(y + i * kSize, out, rest * kSize);
  }
  if (stream) _mm_sfence();
}

}  // namespace

extern const DecodeKernels kDecodeAvx512 = {{
    {decode_span<FloatType::F32, Format::E4M3>, decode_span<FloatType::F32, Format::E5M2>},
    {decode_span<FloatType::BF16, Format::E4M3>, decode_span<FloatType::BF16, Format::E5M2>},
    {decode_span<FloatType::F16, Format::E4M3>, decode_span<FloatType::F16, Format::E5M2>},
}};

}  // namespace fp8::kernels
