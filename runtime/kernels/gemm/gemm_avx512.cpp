// SPDX-License-Identifier: Apache-2.0
// gemm on AVX-512 F, BW, DQ, VL without VBMI and BF16: decode by byte shuffles of nibbles, f32 products.
//
// bf16 of a code c without its sign, as a high and a low byte:
//   E4M3   ((c & 0x7F) << 4) + 0x3C00   high = 0x3C + ((c & 0x7F) >> 4), low = c << 4    exponent < 2: both from
//                                                                                        tables of the low nibble
//   E5M2   ((c & 0x7F) << 5) + 0x3800   high = 0x38 + ((c & 0x7F) >> 3), low = c << 5    exponent 0 and 31:
//                                                                                        tables of c & 3
// NaN (and E5M2's infinity) get the exponent 255, so every code is exact.
#include "fp8/runtime/kernels/gemm/gemm_avx512.h"

namespace fp8::kernels {
namespace {

[[gnu::always_inline]] inline __m512i bytes16(std::uint64_t low, std::uint64_t high) {
  return _mm512_broadcast_i32x4(_mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
}

[[gnu::always_inline]] inline void join(__m512i codes, __m512i high, __m512i low, __m512i& lo, __m512i& hi) {
  high =
      _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);  // high | (codes & 0x80)
  lo = _mm512_unpacklo_epi8(low, high);
  hi = _mm512_unpackhi_epi8(low, high);
}

struct NibbleE4M3 {
  // codes 0..15 (c * 2^-9 and the first normals): bf16 0000 3B00 3B80 3BC0 3C00 3C20 3C40 3C60 3C80 3C90 ... 3CF0
  __m512i small_high = bytes16(0x3C3C3C3C3B3B3B00ull, 0x3C3C3C3C3C3C3C3Cull);
  __m512i small_low = bytes16(0x60402000C0800000ull, 0xF0E0D0C0B0A09080ull);

  [[gnu::always_inline]] inline void line(__m512i codes, __m512i& lo, __m512i& hi) const {
    const __mmask64 small = _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x70));
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7F));
    const __mmask64 nan = _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7F));
    const __m512i nibble = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), _mm512_set1_epi8(0x07));
    __m512i h = _mm512_add_epi8(nibble, _mm512_set1_epi8(0x3C));
    __m512i l = _mm512_and_si512(_mm512_slli_epi16(codes, 4), _mm512_set1_epi8(static_cast<char>(0xF0)));
    h = _mm512_mask_shuffle_epi8(h, small, small_high, magnitude);
    l = _mm512_mask_shuffle_epi8(l, small, small_low, magnitude);
    h = _mm512_mask_mov_epi8(h, nan, magnitude);  // 0x7F over a low byte of 0xF0
    join(codes, h, l, lo, hi);
  }
};

struct NibbleE5M2 {
  // codes 0..3 (c * 2^-16): bf16 0000 3780 3800 3840; codes 0x7C..0x7F: 7F80 (infinity), 7FA0, 7FC0, 7FE0
  __m512i small_high = bytes16(0x0000000038383700ull, 0);
  __m512i small_low = bytes16(0x0000000040008000ull, 0);

  [[gnu::always_inline]] inline void line(__m512i codes, __m512i& lo, __m512i& hi) const {
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7F));
    const __mmask64 small = _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x7C));
    const __mmask64 special = _mm512_cmpge_epi8_mask(magnitude, _mm512_set1_epi8(0x7C));
    const __m512i exponent = _mm512_and_si512(_mm512_srli_epi16(magnitude, 3), _mm512_set1_epi8(0x0F));
    __m512i h = _mm512_add_epi8(exponent, _mm512_set1_epi8(0x38));
    __m512i l = _mm512_and_si512(_mm512_slli_epi16(codes, 5), _mm512_set1_epi8(static_cast<char>(0xE0)));
    h = _mm512_mask_shuffle_epi8(h, small, small_high, magnitude);
    l = _mm512_mask_shuffle_epi8(l, small, small_low, magnitude);
    h = _mm512_mask_mov_epi8(h, special, _mm512_set1_epi8(0x7F));
    join(codes, h, l, lo, hi);
  }
};

// Every CPU whose best level this is has datapaths of 512 bits.
using Product = Shared<SumF32>;

void multiply(const MultiplyArgs& args) {
  if (args.format == Format::E4M3)
    Kernel<Uniform<NibbleE4M3>, Product>::multiply({}, args);
  else
    Kernel<Uniform<NibbleE5M2>, Product>::multiply({}, args);
}

void multiply_row_major(const MultiplyArgs& args) {
  if (args.format == Format::E4M3)
    Kernel<Uniform<NibbleE4M3>, Product>::multiply_row_major({}, args);
  else
    Kernel<Uniform<NibbleE5M2>, Product>::multiply_row_major({}, args);
}

GemmPlan plan(std::int64_t m) { return plan_rows(m, 2, kPanelBytes / (2 * SumF32::kSteps * 64), true); }

}  // namespace

const GemmKernels* gemm_kernels_avx512() {
  static constexpr GemmKernels kKernels{XLayout::F32, kBlockChannels,     plan,     kPanelBytes, pack_lines,
                                        multiply,     multiply_row_major, kFewRows, finish,      kPackedPrefetch};
  return &kKernels;
}

}  // namespace fp8::kernels
