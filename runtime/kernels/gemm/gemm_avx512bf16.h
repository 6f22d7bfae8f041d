// SPDX-License-Identifier: Apache-2.0
// gemm on AVX-512 with VBMI and BF16: decode by lookup (gemm_lookup.h), products by vdpbf16ps (both factors exact in
// bf16, f32 sums) or, for f32 activations, in f32. Included by three units, which take about as long to compile: the
// products of bf16 for datapaths of 256 bits and of 512, and those of f32.
// vdpbf16ps takes subnormal bf16 inputs and f32 results for zero: fp8 values and their products never get that small
// unless scales are folded into them (gemm_operands.h).
#pragma once
#include "fp8/runtime/kernels/gemm/gemm_avx512.h"
#include "fp8/runtime/kernels/gemm/gemm_lookup.h"

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
constexpr bool kDots = Product::kSteps == SumBf16::kSteps;

// Values that have the scales of their group in them. Ranges are whole tiles of k (kTileLines), or end with it.
class Folded : public Lookup {
 public:
  explicit Folded(const CodeTables& tables) : Lookup(tables, tables.bf16_low_marked) {}
  Folded of_block(const MultiplyArgs& args, int block) const {
    Folded decode = *this;
    decode.reader_ = FoldReader(args, block);
    return decode;
  }
  [[gnu::always_inline]] inline std::int64_t alike(std::int64_t lines) {
    folds_ = reader_.next();
    return lines < kTileLines ? lines : kTileLines;
  }
  [[gnu::always_inline]] inline void line(__m512i codes, int b, __m512i& lo, __m512i& hi) const {
    Lookup::line(codes, lo, hi);
    const __m512i folds = _mm512_loadu_si512(folds_ + b * kBlockChannels);
    lo = fold(lo, folds), hi = fold(hi, folds);
  }

 private:
  FoldReader reader_;
  const std::uint32_t* folds_ = nullptr;
};

template <class Product>
void multiply(const MultiplyArgs& args) {
  if constexpr (kDots<Product>)
    if (args.folds != nullptr) return Kernel<Folded, Product>::multiply(Folded(*args.tables), args);
  Kernel<Uniform<Lookup>, Product>::multiply(Uniform<Lookup>(*args.tables), args);
}

template <class Product>
void multiply_row_major(const MultiplyArgs& args) {
  if constexpr (kDots<Product>)
    if (args.folds != nullptr) return Kernel<Folded, Product>::multiply_row_major(Folded(*args.tables), args);
  Kernel<Uniform<Lookup>, Product>::multiply_row_major(Uniform<Lookup>(*args.tables), args);
}

// Of more rows x streams from the caches, which a panel's tiles of 14 rows read less often.
constexpr std::int64_t kDecodedRows = 256;

template <class Product>
GemmPlan plan(std::int64_t m) {
  const bool decoded = kDots<Product> && m <= kDecodedRows;
  return plan_rows(m, kDots<Product> ? 4 : 2, decoded ? 0 : kPanelBytes / (2 * Product::kSteps * 64), Product::kShare);
}

template <class Product>
constexpr GemmKernels kernels_of(XLayout layout) {
  GemmKernels kernels{
      layout,   kBlockChannels, plan<Product>,  kPanelBytes, pack_lines, multiply<Product>, multiply_row_major<Product>,
      kFewRows, finish,         kPackedPrefetch};
  if (kDots<Product>) kernels.fold_scales = fold_scales;
  return kernels;
}

}  // namespace

extern const GemmKernels kDotWide, kF32Kernels[2];

}  // namespace fp8::kernels
