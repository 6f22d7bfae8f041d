// SPDX-License-Identifier: Apache-2.0
// The decode with AVX2 and F16C, 16 codes per step, through f16 (decode_scalar.cpp), which vcvtph2ps widens exactly,
// subnormals included:
//
//   E4M3   h = (sign-extended code << 7) & 0xBFFF, a NaN code gets f16's quiet NaN; value = f32(h) * 2^8
//   E5M2   h = code << 8
#include <immintrin.h>

#include "fp8/runtime/kernels/decode_kernels.h"

namespace fp8::kernels {
namespace {

constexpr int kBlock = 16;

template <Format F>
inline __m256i to_f16(__m128i codes) {
  const __m256i wide = _mm256_cvtepi8_epi16(codes);
  if constexpr (F == Format::E5M2) return _mm256_slli_epi16(wide, 8);
  const __m256i h = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xBFFF)));
  const __m256i all_ones = _mm256_set1_epi16(0x3F80);
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, all_ones), all_ones);
  const __m256i nan =
      _mm256_or_si256(_mm256_and_si256(h, _mm256_set1_epi16(static_cast<short>(0x8000))), _mm256_set1_epi16(0x7E00));
  return _mm256_blendv_epi8(h, nan, is_nan);
}

template <Format F>
inline __m256 to_f32(__m128i h) {
  const __m256 value = _mm256_cvtph_ps(h);
  return F == Format::E4M3 ? _mm256_mul_ps(value, _mm256_set1_ps(256.0f)) : value;
}

/// f32 -> bf16 in the upper halves of the lanes, nearest even; NaN quiet.
inline __m256i round_bf16(__m256 y) {
  const __m256i bits = _mm256_castps_si256(y);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(y, y, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(sum, nan, is_nan), 16);
}

inline void put(void* p, __m256i x, bool stream) {
  if (stream) {
    _mm256_stream_si256(static_cast<__m256i*>(p), x);
  } else {
    _mm256_storeu_si256(static_cast<__m256i*>(p), x);
  }
}

template <FloatType T, Format F>
inline void decode_block(const std::uint8_t* codes, __m256 scale0, __m256 scale1, char* y, bool stream) {
  const __m256i h = to_f16<F>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256 y0 = _mm256_mul_ps(to_f32<F>(_mm256_castsi256_si128(h)), scale0);
  const __m256 y1 = _mm256_mul_ps(to_f32<F>(_mm256_extracti128_si256(h, 1)), scale1);
  if constexpr (T == FloatType::F32) {
    put(y, _mm256_castps_si256(y0), stream);
    put(y + 32, _mm256_castps_si256(y1), stream);
  } else if constexpr (T == FloatType::BF16) {
    put(y, _mm256_permute4x64_epi64(_mm256_packus_epi32(round_bf16(y0), round_bf16(y1)), 0xD8), stream);
  } else {
    put(y,
        _mm256_set_m128i(_mm256_cvtps_ph(y1, _MM_FROUND_TO_NEAREST_INT),
                         _mm256_cvtps_ph(y0, _MM_FROUND_TO_NEAREST_INT)),
        stream);
  }
}

template <FloatType T, Format F>
void decode_span(const DecodeSpan& span) {
  constexpr int kSize = T == FloatType::F32 ? 4 : 2;
  char* y = static_cast<char*>(span.y);
  const bool stream = span.stream && (reinterpret_cast<std::uintptr_t>(y) & 31) == 0;
  __m256 scale0 = _mm256_set1_ps(span.scales[0]), scale1 = scale0;
  std::int64_t i = 0;
  for (; i + kBlock <= span.n; i += kBlock) {
    if ((i & 63) == 0) _mm_prefetch(reinterpret_cast<const char*>(span.codes + i) + 4096, _MM_HINT_T0);
    if (span.per_element) {
      scale0 = _mm256_loadu_ps(span.scales + i);
      scale1 = _mm256_loadu_ps(span.scales + i + 8);
    }
    decode_block<T, F>(span.codes + i, scale0, scale1, y + i * kSize, stream);
  }
  if (i < span.n) {  // through buffers, so that nothing outside the run is touched
    const std::size_t rest = static_cast<std::size_t>(span.n - i);
    alignas(32) std::uint8_t codes[kBlock] = {};
    alignas(32) float scales[kBlock] = {};
    alignas(32) char out[kBlock * 4];
    __builtin_memcpy(codes, span.codes + i, rest);
    if (span.per_element) {
      __builtin_memcpy(scales, span.scales + i, rest * sizeof(float));
      scale0 = _mm256_load_ps(scales);
      scale1 = _mm256_load_ps(scales + 8);
    }
    decode_block<T, F>(codes, scale0, scale1, out, false);
    __builtin_memcpy(y + i * kSize, out, rest * kSize);
  }
  if (stream) _mm_sfence();
}

}  // namespace

extern const DecodeKernels kDecodeAvx2 = {{
    {decode_span<FloatType::F32, Format::E4M3>, decode_span<FloatType::F32, Format::E5M2>},
    {decode_span<FloatType::BF16, Format::E4M3>, decode_span<FloatType::BF16, Format::E5M2>},
    {decode_span<FloatType::F16, Format::E4M3>, decode_span<FloatType::F16, Format::E5M2>},
}};

}  // namespace fp8::kernels
