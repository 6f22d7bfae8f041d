// SPDX-License-Identifier: Apache-2.0
// One copy of f32_math-inl.h per Highway target, and the choice for the level in force. Targets whose vectors cannot be
// array elements are left out.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/f32_math.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/f32_math-inl.h"

#if HWY_ONCE
#include <limits>

#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

using MultiplyKernel = void (*)(const F32View&, const F32View&, std::int64_t, std::int64_t, std::int64_t, float*,
                                std::int64_t, bool);
using ExpKernel = void (*)(float*, std::int64_t, float);
struct F32Kernels {
  MultiplyKernel multiply;
  ExpKernel exp;
};

constexpr F32Kernels kBaseline = {HWY_STATIC_DISPATCH(Multiply), HWY_STATIC_DISPATCH(ExpShifted)},
                     kAvx2 = {FP8_AT_AVX2(Multiply), FP8_AT_AVX2(ExpShifted)},
                     kAvx512 = {FP8_AT_AVX512(Multiply), FP8_AT_AVX512(ExpShifted)};

const F32Kernels& kernels_in_force() { return of_level(kBaseline, kAvx2, kAvx512); }

}  // namespace

void multiply(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
              std::int64_t c_stride, bool accumulate) {
  if (m > 0 && n > 0) kernels_in_force().multiply(a, b, m, n, k, c, c_stride, accumulate);
}

void exp_shifted(float* x, std::int64_t n, float shift) {
  if (n > 0) kernels_in_force().exp(x, n, shift);
}

float max_of(const float* x, std::int64_t n) {
  float lane[16];
  for (float& v : lane) v = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  }
  float best = lane[0];
  for (float v : lane) best = v > best ? v : best;
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float sum_of(const float* x, std::int64_t n) {
  float lane[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) lane[j] += x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lane[j] += x[i];
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
