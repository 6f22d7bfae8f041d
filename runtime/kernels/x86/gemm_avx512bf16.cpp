// SPDX-License-Identifier: Apache-2.0
// gemm on AVX-512 with VBMI and BF16: decode by lookup (gemm_lookup.h), products by vdpbf16ps (both factors exact in
// bf16, f32 sums) or, for f32 activations, in f32.
// vdpbf16ps takes subnormal bf16 inputs and f32 results for zero: fp8 values and their products never get that small.
#include "fp8/runtime/kernels/x86/gemm_avx512.h"
#include "fp8/runtime/kernels/x86/gemm_lookup.h"

namespace fp8::kernels {
namespace {

struct SumBf16 {
  static constexpr bool kShare = false;
  static constexpr int kSteps = 2;
  [[gnu::always_inline]] static inline void expand(__m512i lo, __m512i hi, __m512 (&w)[kSteps]) {
    w[0] = _mm512_castsi512_ps(lo);
    w[1] = _mm512_castsi512_ps(hi);
  }
  [[gnu::always_inline]] static inline __m512 add(__m512 acc, __m512 w, const float* item) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*item));
    return acc;
  }
  [[gnu::always_inline]] static inline __m512 add(__m512 acc, __m512 w, __m512 item) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(item));
    return acc;
  }
};

template <class Product>
void multiply(const MultiplyArgs& args) {
  Kernel<Lookup, Product>::multiply(Lookup(*args.tables), args);
}

template <class Product>
void multiply_row_major(const MultiplyArgs& args) {
  Kernel<Lookup, Product>::multiply_row_major(Lookup(*args.tables), args);
}

// Of more rows x streams from the caches, which a panel's tiles of 14 rows read less often.
constexpr std::int64_t kDecodedRows = 256;

template <class Product>
GemmPlan plan(std::int64_t m) {
  constexpr bool kBf16 = Product::kSteps == SumBf16::kSteps;
  const bool decoded = kBf16 && m <= kDecodedRows;
  return plan_rows(m, kBf16 ? 4 : 2, decoded ? 0 : kPanelBytes / (2 * Product::kSteps * 64), Product::kShare);
}

template <class Product>
constexpr GemmKernels kernels_of(XLayout layout) {
  return {
      layout,   kBlockChannels, plan<Product>,  kPanelBytes, pack_lines, multiply<Product>, multiply_row_major<Product>,
      kFewRows, finish,         kPackedPrefetch};
}

}  // namespace

const GemmKernels* gemm_kernels_avx512bf16(bool dot, bool wide) {
  static constexpr GemmKernels kDot[] = {kernels_of<SumBf16>(XLayout::BF16Pair),
                                         kernels_of<Shared<SumBf16>>(XLayout::BF16Pair)};
  static constexpr GemmKernels kF32[] = {kernels_of<SumF32>(XLayout::F32), kernels_of<Shared<SumF32>>(XLayout::F32)};
  return &(dot ? kDot : kF32)[wide ? 1 : 0];
}

}  // namespace fp8::kernels
