// SPDX-License-Identifier: Apache-2.0
// The cast with AVX-512 F, BW, DQ and VL, 64 elements per step, and the decode, 32 codes per step. Included by
// cast_avx512.cpp (packs by saturating packs) and cast_avx512vbmi.cpp (packs by byte permutation, which needs neither
// clean upper bits nor a second permutation).
#pragma once
#include "fp8/runtime/kernels/cast/cast_loop.h"

namespace fp8::kernels {
namespace {

/// Indices into two vectors of 16 dwords: byte kByte of the 32 elements in memory order, twice. BF16 lanes are in
/// unpack order: of every 8 elements, 4 are in the first vector and 4 in the second.
template <FloatType T, int kByte>
struct ByteIndex {
  std::uint8_t byte[64];
  constexpr ByteIndex() : byte{} {
    for (int i = 0; i < 64; ++i) {
      const int e = i % 32;
      const int lane = T == FloatType::BF16 ? e / 8 * 4 + e % 4 + (e % 8 < 4 ? 0 : 16) : e;
      byte[i] = static_cast<std::uint8_t>(lane * 4 + kByte);
    }
  }
};

/// The upper bytes of 64 u16 in two vectors.
struct OddBytes {
  std::uint8_t byte[64];
  constexpr OddBytes() : byte{} {
    for (int i = 0; i < 64; ++i) byte[i] = static_cast<std::uint8_t>(2 * i + 1);
  }
};

template <bool kVbmi>
struct Avx512 {
  using V = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr bool kCasts16 = true;

  static FP8_INLINE V set(float x) { return _mm512_set1_ps(x); }
  static FP8_INLINE I set(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static FP8_INLINE I set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
  static FP8_INLINE V absolute(V a) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), set(0x7FFFFFFFu)));
  }
  static FP8_INLINE V multiply(V a, V b) { return _mm512_mul_ps(a, b); }
  static FP8_INLINE I multiply(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static FP8_INLINE I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
  static FP8_INLINE I bit_xor(I a, I b, I c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
  template <int kBits>
  static FP8_INLINE I shift_right(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  static FP8_INLINE void store(std::uint8_t* p, I x) { _mm512_storeu_si512(p, x); }
  static FP8_INLINE void stream(std::uint8_t* p, I x) { _mm512_stream_si512(reinterpret_cast<I*>(p), x); }

  /// VBMI: byte kByte of the 64 lanes of four vectors, in memory order.
  template <FloatType T, int kByte>
  static FP8_INLINE I gather_bytes(I a, I b, I c, I d) {
    alignas(64) static constexpr ByteIndex<T, kByte> kIndex{};
    const I index = _mm512_load_si512(kIndex.byte);
    const I low = _mm512_permutex2var_epi8(a, index, b), high = _mm512_permutex2var_epi8(c, index, d);
    return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
  }

  /// Bytes whose top bit is that of each lane; VBMI in memory order, else in the order of the packs.
  template <FloatType T>
  static FP8_INLINE I signs(const V* v) {
    const I a = _mm512_castps_si512(v[0]), b = _mm512_castps_si512(v[1]);
    const I c = _mm512_castps_si512(v[2]), d = _mm512_castps_si512(v[3]);
    if constexpr (kVbmi) return gather_bytes<T, 3>(a, b, c, d);
    return _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
  }

  static FP8_INLINE I load(const char* x) { return _mm512_loadu_si512(x); }
  static FP8_INLINE I magnitude16(I u) { return _mm512_and_si512(u, set16(0x7FFF)); }
  static FP8_INLINE V unpack_low(I a) { return _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_setzero_si512(), a)); }
  static FP8_INLINE V unpack_high(I a) { return _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_setzero_si512(), a)); }
  static FP8_INLINE I signs16(I u0, I u1) {
    if constexpr (!kVbmi) return _mm512_packs_epi16(u0, u1);
    alignas(64) static constexpr OddBytes kOdd{};
    return _mm512_permutex2var_epi8(u0, _mm512_load_si512(kOdd.byte), u1);
  }
  static FP8_INLINE I max16(I a, I b) { return _mm512_max_epu16(a, b); }
  static FP8_INLINE I max32(I a, V b) { return _mm512_max_epu32(a, _mm512_castps_si512(b)); }

  template <FloatType T>
  static FP8_INLINE V load_f32(const char* x, int j) {
    if constexpr (T == FloatType::F32) return _mm512_loadu_ps(x + 64 * j);
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + j));
  }
  /// Elements {0-3, 8-11, 16-19, 24-27} and {4-7, 12-15, 20-23, 28-31}: those of unpack_low and unpack_high.
  static FP8_INLINE void to_unpack_order(V& a, V& b) {
    const V low = _mm512_shuffle_f32x4(a, b, 0x88);
    b = _mm512_shuffle_f32x4(a, b, 0xDD);
    a = low;
  }

  /// 64 bf16 numbers, 32 lanes a vector; see cast_run_of_power().
  template <Format F>
  static FP8_INLINE I nearest16(const char* x, I shift, I max, I sign_flip, I& amax) {
    const I u0 = _mm512_loadu_si512(x), u1 = _mm512_loadu_si512(x + 64);
    const I f0 = rounded16<F>(u0, shift, max, amax), f1 = rounded16<F>(u1, shift, max, amax);
    const I low7 = set(0x7F7F7F7Fu);
    if constexpr (kVbmi) {
      alignas(64) static constexpr OddBytes kOdd{};
      const I odd = _mm512_load_si512(kOdd.byte);
      const I sign = _mm512_xor_si512(_mm512_permutex2var_epi8(u0, odd, u1), sign_flip);
      return _mm512_ternarylogic_epi32(low7, _mm512_permutex2var_epi8(f0, odd, f1), sign, 0xCA);
    }
    const I sign = _mm512_xor_si512(_mm512_packs_epi16(u0, u1), sign_flip);
    const I codes = _mm512_packus_epi16(_mm512_srli_epi16(f0, 8), _mm512_srli_epi16(f1, 8));
    const I all = _mm512_ternarylogic_epi32(low7, codes, sign, 0xCA);
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), all);
  }

  /// Codes in the upper bytes.
  template <Format F>
  static FP8_INLINE I rounded16(I u, I shift, I max, I& amax) {
    constexpr int kFirst = Magic<F>::kMinExponent - 1 - Magic<F>::kMantissa;  // the exponent of half the smallest
    const I magnitude = _mm512_and_si512(u, set16(0x7FFF));
    amax = _mm512_max_epu16(amax, magnitude);
    const I a = _mm512_min_epi16(_mm512_adds_epi16(magnitude, shift), max);
    const I normal =
        _mm512_slli_epi16(_mm512_sub_epi16(a, set16((Magic<F>::kMinExponent - 1) << 7)), 1 + Magic<F>::kMantissa);
    const I one = _mm512_ternarylogic_epi32(a, set16(0x7F), set16(0x80), 0xEA);  // a & 0x7F | 0x80
    const I count = _mm512_sub_epi16(_mm512_srli_epi16(a, 7), set16(kFirst));    // 16 or more give 0
    const I f =
        _mm512_mask_sllv_epi16(normal, _mm512_cmplt_epi16_mask(a, set16(Magic<F>::kMinExponent << 7)), one, count);
    const I half = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(f, set16(0x100)), set16(0x7F), set16(0x80));
    return _mm512_add_epi16(f, half);
  }

  /// Indices of the lanes of vector j, where `first` is the block's in all lanes.
  template <FloatType T>
  static FP8_INLINE I lane_index(I first, int j) {
    const I lanes = T == FloatType::BF16 ? _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
                                         : _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int of_vector = T == FloatType::BF16 ? 32 * (j / 2) + 4 * (j % 2) : 16 * j;
    return _mm512_add_epi32(first, _mm512_add_epi32(lanes, _mm512_set1_epi32(of_vector)));
  }

  template <FloatType T>
  static FP8_INLINE V round_to(V y) {
    if constexpr (T == FloatType::F16) return _mm512_cvtph_ps(_mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
    const I bits = _mm512_castps_si512(y);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const I rounded = _mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
    return _mm512_mask_mov_ps(_mm512_castsi512_ps(rounded), _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), y);
  }

  static FP8_INLINE I keep_nan(I code, V y) {
    return _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), _mm512_set1_epi32(0x7F));
  }

  /// y >= 0 or NaN (which min turns into max) -> codes in the low 7 bits, anything above.
  template <Format F>
  static FP8_INLINE I nearest(V y, V max) {
    const V a = _mm512_min_ps(y, max);
    const I exponent = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7F800000));
    const I t = _mm512_max_epu32(exponent, _mm512_set1_epi32(Magic<F>::kMinExponent << 23));
    const V s = _mm512_fmadd_ps(_mm512_castsi512_ps(t), set(Magic<F>::kRound), a);
    return _mm512_add_epi32(_mm512_castps_si512(s), _mm512_srli_epi32(t, 23 - Magic<F>::kMantissa));
  }

  /// y below the limit becomes 0; NaN stays.
  static FP8_INLINE V flush(V y, V below) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, below, _CMP_NLT_UQ), y); }

  /// As nearest, but truncated after a random part of the last kept bit was added; h: of hash().
  template <Format F>
  static FP8_INLINE I stochastic(V y, V max, I h) {
    constexpr int kShift = 32 - (23 - Magic<F>::kMantissa);
    constexpr int kToZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    const V a = _mm512_min_ps(y, max);
    const I exponent = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7F800000));
    const I t = _mm512_max_epu32(exponent, _mm512_set1_epi32(Magic<F>::kMinExponent << 23));
    const I random = _mm512_ternarylogic_epi32(t, _mm512_srli_epi32(h, kShift), _mm512_srli_epi32(h, kShift + 16),
                                               0xF6);  // t | (h ^ h >> 16) >> kShift
    const V sum = _mm512_add_round_ps(a, _mm512_castsi512_ps(random), kToZero);
    const V s = _mm512_fmadd_round_ps(_mm512_castsi512_ps(t), set(Magic<F>::kRound - 1.0f), sum, kToZero);
    return _mm512_add_epi32(_mm512_castps_si512(s), _mm512_srli_epi32(t, 23 - Magic<F>::kMantissa));
  }

  template <FloatType T>
  static FP8_INLINE I finish(const I* code, I sign) {
    const I low7 = set(0x7F7F7F7Fu);
    if constexpr (kVbmi) {
      return _mm512_ternarylogic_epi32(low7, (gather_bytes<T, 0>(code[0], code[1], code[2], code[3])), sign, 0xCA);
    }
    const I mask = set(0x7Fu);
    const I ab = _mm512_packus_epi32(_mm512_and_si512(code[0], mask), _mm512_and_si512(code[1], mask));
    const I cd = _mm512_packus_epi32(_mm512_and_si512(code[2], mask), _mm512_and_si512(code[3], mask));
    const I all = _mm512_ternarylogic_epi32(low7, _mm512_packus_epi16(ab, cd), sign, 0xCA);  // low7 ? code : sign
    if constexpr (T == FloatType::BF16) {
      return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), all);
    }
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all);
  }

  template <FloatType T>
  static std::uint32_t reduce_amax(I amax) {
    if constexpr (T != FloatType::BF16) return _mm512_reduce_max_epu32(amax);
    const std::uint32_t low = _mm512_reduce_max_epu32(_mm512_slli_epi32(amax, 16));
    const std::uint32_t high = _mm512_reduce_max_epu32(amax) & 0xFFFF0000u;
    return low > high ? low : high;
  }

  // The decode:
  static FP8_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
  static FP8_INLINE I bits(V x) { return _mm512_castps_si512(x); }

  template <Format F>
  static FP8_INLINE I to_f16(__m256i codes) {
    const I wide = _mm512_cvtepi8_epi16(codes);
    if constexpr (F == Format::E5M2) return _mm512_slli_epi16(wide, 8);
    const I h = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
    const I all_ones = _mm512_set1_epi16(0x3F80), sign = _mm512_set1_epi16(static_cast<short>(0x8000));
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(h, all_ones), all_ones);
    return _mm512_mask_mov_epi16(h, is_nan, _mm512_or_si512(_mm512_and_si512(h, sign), _mm512_set1_epi16(0x7E00)));
  }

  template <Format F>
  static FP8_INLINE void values(const std::uint8_t* codes, V (&v)[2]) {
    const I h = to_f16<F>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
    v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
  }

  /// f32 -> bf16, nearest even; NaN quiet. Integers, because vcvtneps2bf16 flushes subnormals.
  static FP8_INLINE __m256i round_bf16(V y) {
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits(y), 16), _mm512_set1_epi32(1));
    const I sum = _mm512_add_epi32(_mm512_add_epi32(bits(y), _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
    const I kept = _mm512_mask_or_epi32(sum, is_nan, bits(y), _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }

  template <FloatType T>
  static FP8_INLINE I narrow(V low, V high) {
    const auto half = [](V y) {
      if constexpr (T == FloatType::BF16) return round_bf16(y);
      return _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(low)), half(high), 1);
  }
};

}  // namespace
}  // namespace fp8::kernels
