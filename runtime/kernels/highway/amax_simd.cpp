// SPDX-License-Identifier: Apache-2.0
// One copy of amax_simd-inl.h per Highway target, and the table for the level in force.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/amax_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/amax_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/amax_kernels.h"
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

#define FP8_AMAX_KERNELS(of)                                                 \
  {of(MagnitudeMax32),     of(MagnitudeMax16),       of(MagnitudeMaxInto32), \
   of(MagnitudeMaxInto16), of(MagnitudeMaxGroups32), of(MagnitudeMaxGroups16)}

template <class T>
T magnitude_max(const T* x, std::int64_t n) {
  T best = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const T bits = static_cast<T>(x[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1));
    best = best < bits ? bits : best;
  }
  return best;
}

template <class T>
void magnitude_max_into(const T* x, std::int64_t n, T* best) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T bits = static_cast<T>(x[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1));
    best[i] = best[i] < bits ? bits : best[i];
  }
}

template <class T>
void magnitude_max_groups(const T* x, std::int64_t n, std::int64_t width, T* best) {
  for (std::int64_t i = 0; i < n; i += width) *best++ = magnitude_max(x + i, n - i < width ? n - i : width);
}

constexpr AmaxKernels kScalar = {magnitude_max<std::uint32_t>,        magnitude_max<std::uint16_t>,
                                 magnitude_max_into<std::uint32_t>,   magnitude_max_into<std::uint16_t>,
                                 magnitude_max_groups<std::uint32_t>, magnitude_max_groups<std::uint16_t>};
constexpr AmaxKernels kAvx2 = FP8_AMAX_KERNELS(FP8_AT_AVX2), kAvx512 = FP8_AMAX_KERNELS(FP8_AT_AVX512);

}  // namespace

const AmaxKernels& amax_kernels_in_force() { return of_level(kScalar, kAvx2, kAvx512); }

}  // namespace fp8::kernels
#endif  // HWY_ONCE
