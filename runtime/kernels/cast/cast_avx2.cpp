// SPDX-License-Identifier: Apache-2.0
// The cast with AVX2, FMA and F16C, 32 elements per step, and the decode, 16 codes per step.
//
//   signs  packs_epi32 / packs_epi16 of the raw bits: signed saturation keeps the sign bit, 3 ops for 32 elements
#include "fp8/runtime/kernels/cast/cast_loop.h"

namespace fp8::kernels {
namespace {

struct Avx2 {
  using V = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr bool kCasts16 = false;  // no shift by 16-bit counts: as many instructions as in f32

  static FP8_INLINE V set(float x) { return _mm256_set1_ps(x); }
  static FP8_INLINE I set(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static FP8_INLINE V absolute(V a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF))); }
  static FP8_INLINE V multiply(V a, V b) { return _mm256_mul_ps(a, b); }
  static FP8_INLINE I multiply(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static FP8_INLINE I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static FP8_INLINE I bit_xor(I a, I b, I c) { return bit_xor(bit_xor(a, b), c); }
  template <int kBits>
  static FP8_INLINE I shift_right(I a) {
    return _mm256_srli_epi32(a, kBits);
  }
  static FP8_INLINE void store(std::uint8_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<I*>(p), x); }
  static FP8_INLINE void stream(std::uint8_t* p, I x) { _mm256_stream_si256(reinterpret_cast<I*>(p), x); }

  template <FloatType>
  static FP8_INLINE I signs(const V* v) {
    return _mm256_packs_epi16(_mm256_packs_epi32(_mm256_castps_si256(v[0]), _mm256_castps_si256(v[1])),
                              _mm256_packs_epi32(_mm256_castps_si256(v[2]), _mm256_castps_si256(v[3])));
  }

  static FP8_INLINE I load(const char* x) { return _mm256_loadu_si256(reinterpret_cast<const I*>(x)); }
  static FP8_INLINE I magnitude16(I u) { return _mm256_and_si256(u, _mm256_set1_epi16(0x7FFF)); }
  static FP8_INLINE V unpack_low(I a) { return _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), a)); }
  static FP8_INLINE V unpack_high(I a) { return _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), a)); }
  static FP8_INLINE I signs16(I u0, I u1) { return _mm256_packs_epi16(u0, u1); }
  static FP8_INLINE I max16(I a, I b) { return _mm256_max_epu16(a, b); }
  static FP8_INLINE I max32(I a, V b) { return _mm256_max_epu32(a, _mm256_castps_si256(b)); }

  template <FloatType T>
  static FP8_INLINE V load_f32(const char* x, int j) {
    if constexpr (T == FloatType::F32) return _mm256_loadu_ps(reinterpret_cast<const float*>(x) + 8 * j);
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x) + j));
  }
  static FP8_INLINE void to_unpack_order(V& a, V& b) {
    const V low = _mm256_permute2f128_ps(a, b, 0x20);
    b = _mm256_permute2f128_ps(a, b, 0x31);
    a = low;
  }

  /// Indices of the lanes of vector j, where `first` is the block's in all lanes.
  template <FloatType T>
  static FP8_INLINE I lane_index(I first, int j) {
    const I lanes =
        T == FloatType::BF16 ? _mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11) : _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int of_vector = T == FloatType::BF16 ? 16 * (j / 2) + 4 * (j % 2) : 8 * j;
    return _mm256_add_epi32(first, _mm256_add_epi32(lanes, _mm256_set1_epi32(of_vector)));
  }

  template <FloatType T>
  static FP8_INLINE V round_to(V y) {
    if constexpr (T == FloatType::F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
    const I bits = _mm256_castps_si256(y);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const I rounded = _mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
    return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), y, _mm256_cmp_ps(y, y, _CMP_UNORD_Q));
  }

  /// 0x7F where y is NaN; expects clean codes.
  static FP8_INLINE I keep_nan(I code, V y) {
    return _mm256_or_si256(code, _mm256_srli_epi32(_mm256_castps_si256(_mm256_cmp_ps(y, y, _CMP_UNORD_Q)), 25));
  }

  /// y >= 0 or NaN (which min turns into max) -> clean magnitude codes.
  template <Format F>
  static FP8_INLINE I nearest(V y, V max) {
    const V a = _mm256_min_ps(y, max);
    const I exponent = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7F800000));
    const I t = _mm256_max_epu32(exponent, _mm256_set1_epi32(Magic<F>::kMinExponent << 23));
    const V s = _mm256_fmadd_ps(_mm256_castsi256_ps(t), set(Magic<F>::kRound), a);
    const I code = _mm256_add_epi32(_mm256_castps_si256(s), _mm256_srli_epi32(t, 23 - Magic<F>::kMantissa));
    return _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
  }

  /// y below the limit becomes 0; NaN stays.
  static FP8_INLINE V flush(V y, V below) { return _mm256_and_ps(y, _mm256_cmp_ps(y, below, _CMP_NLT_UQ)); }

  /// As nearest(), with fixed point (cast_scalar.cpp); h: of hash().
  template <Format F>
  static FP8_INLINE I stochastic(V y, V max, I h) {
    constexpr int kShift = 23 - Magic<F>::kMantissa;
    const V a = _mm256_min_ps(y, max);
    const I bits = _mm256_castps_si256(a);
    const I normal = _mm256_sub_epi32(bits, _mm256_set1_epi32((Magic<F>::kMinExponent - 1) << 23));
    const I subnormal = _mm256_cvttps_epi32(_mm256_mul_ps(a, set(Magic<F>::kSubnormalToFixed)));
    const I is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(Magic<F>::kMinExponent << 23), bits);
    const I fixed = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
    const I random = bit_xor(_mm256_srli_epi32(h, 32 - kShift), _mm256_srli_epi32(h, 48 - kShift));
    return _mm256_srli_epi32(_mm256_add_epi32(fixed, random), kShift);
  }

  template <FloatType T>
  static FP8_INLINE I finish(const I* code, I sign) {
    const I packed = _mm256_packus_epi16(_mm256_packus_epi32(code[0], code[1]), _mm256_packus_epi32(code[2], code[3]));
    const I all = _mm256_or_si256(packed, _mm256_and_si256(sign, set(0x80808080u)));
    if constexpr (T == FloatType::BF16) return _mm256_permute4x64_epi64(all, 0xD8);
    return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }

  template <FloatType T>
  static std::uint32_t reduce_amax(I amax) {
    alignas(32) std::uint32_t lane[8];
    _mm256_store_si256(reinterpret_cast<I*>(lane), amax);
    std::uint32_t best = 0;
    for (std::uint32_t bits : lane) {
      if (T == FloatType::BF16) {
        const std::uint32_t low = bits << 16, high = bits & 0xFFFF0000u;
        bits = low > high ? low : high;
      }
      best = best > bits ? best : bits;
    }
    return best;
  }

  // The decode:
  static FP8_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
  static FP8_INLINE I bits(V x) { return _mm256_castps_si256(x); }

  template <Format F>
  static FP8_INLINE I to_f16(__m128i codes) {
    const I wide = _mm256_cvtepi8_epi16(codes);
    if constexpr (F == Format::E5M2) return _mm256_slli_epi16(wide, 8);
    const I h = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    const I all_ones = _mm256_set1_epi16(0x3F80), sign = _mm256_set1_epi16(static_cast<short>(0x8000));
    const I is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, all_ones), all_ones);
    return _mm256_blendv_epi8(h, _mm256_or_si256(_mm256_and_si256(h, sign), _mm256_set1_epi16(0x7E00)), is_nan);
  }

  template <Format F>
  static FP8_INLINE void values(const std::uint8_t* codes, V (&v)[2]) {
    const I h = to_f16<F>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
    v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
  }

  /// f32 -> bf16 in the upper halves of the lanes, nearest even; NaN quiet.
  static FP8_INLINE I round_bf16(V y) {
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits(y), 16), _mm256_set1_epi32(1));
    const I sum = _mm256_add_epi32(_mm256_add_epi32(bits(y), _mm256_set1_epi32(0x7FFF)), odd);
    const I nan = _mm256_or_si256(bits(y), _mm256_set1_epi32(0x00400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(sum, nan, bits(_mm256_cmp_ps(y, y, _CMP_UNORD_Q))), 16);
  }

  template <FloatType T>
  static FP8_INLINE I narrow(V low, V high) {
    if constexpr (T == FloatType::BF16)
      return _mm256_permute4x64_epi64(_mm256_packus_epi32(round_bf16(low), round_bf16(high)), 0xD8);
    return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

extern const CastKernels kCastAvx2 = cast_kernels_of<Avx2>();
extern const DecodeKernels kDecodeAvx2 = decode_kernels_of<Avx2>();

}  // namespace fp8::kernels
