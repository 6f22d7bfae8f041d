// SPDX-License-Identifier: Apache-2.0
// One copy of gemv_simd-inl.h per Highway target, and that of the level in force. On a CPU that has no level of ours
// (anything but x86) it is the best that Highway has for it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/gemv_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/gemv_simd-inl.h"

#if HWY_ONCE
#include <cmath>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemv_kernels.h"
#include "fp8/runtime/kernels/simd.h"

namespace fp8::kernels {
namespace {

#if defined(__x86_64__)

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

#else

HWY_EXPORT(Gemv);

#endif  // __x86_64__

}  // namespace

GemvKernel gemv_kernel_in_force() {
#if defined(__x86_64__)
#if HWY_TARGETS & HWY_AVX3
  if (simd_level() >= SimdLevel::avx512) return N_AVX3::Gemv;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (simd_level() >= SimdLevel::avx2) return N_AVX2::Gemv;
#endif
  return gemv_scalar;
#else
  return HWY_DYNAMIC_POINTER(Gemv);
#endif
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
