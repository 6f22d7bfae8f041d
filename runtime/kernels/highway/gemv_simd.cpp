// SPDX-License-Identifier: Apache-2.0
// One copy of gemv_simd-inl.h per Highway target, and that of the level in force.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/gemv_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/gemv_simd-inl.h"

#if HWY_ONCE
#include <cmath>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemv_kernels.h"
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

/// x86-64's baseline has no fused multiply-add.
void gemv_scalar(const GemvRange& range) {
  for (int i = 0; i < range.m; ++i) {
    for (std::int64_t row = 0; row < range.rows; ++row) {
      float sum[2][16] = {};
      for (std::int64_t k = 0; k < range.k; ++k) {
        const std::int64_t j = k % kGemvBlock;
        float& of = sum[j % 2][j / 2];
        of = std::fma(bf16_to_f32(range.w[row * range.w_stride + k]), bf16_to_f32(range.a[i * range.a_stride + k]), of);
      }
      for (int j = 0; j < 16; ++j) sum[0][j] += sum[1][j];
      for (int half = 8; half != 0; half /= 2)
        for (int j = 0; j < half; ++j) sum[0][j] += sum[0][j + half];
      range.sums[i * range.sums_stride + row] = sum[0][0];
    }
  }
}

constexpr GemvKernel kScalar = gemv_scalar, kAvx2 = FP8_AT_AVX2(Gemv), kAvx512 = FP8_AT_AVX512(Gemv);

}  // namespace

GemvKernel gemv_kernel_in_force() { return of_level(kScalar, kAvx2, kAvx512); }

}  // namespace fp8::kernels
#endif  // HWY_ONCE
