// SPDX-License-Identifier: Apache-2.0
// One copy of amax_simd-inl.h per Highway target, and the table for the level in force. On a CPU that has no level of
// ours (anything but x86) the level is scalar and the copy is the best that Highway has for it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/amax_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/amax_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/amax_kernels.h"
#include "fp8/runtime/kernels/simd.h"

namespace fp8::kernels {
namespace {

#if defined(__x86_64__)

#define FP8_AMAX_KERNELS(target)                                                         \
  {target::MagnitudeMax32,     target::MagnitudeMax16,       target::MagnitudeMaxInto32, \
   target::MagnitudeMaxInto16, target::MagnitudeMaxGroups32, target::MagnitudeMaxGroups16}

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
#if HWY_TARGETS & HWY_AVX2
constexpr AmaxKernels kAvx2 = FP8_AMAX_KERNELS(N_AVX2);
#else
constexpr AmaxKernels kAvx2 = kScalar;
#endif
#if HWY_TARGETS & HWY_AVX3
constexpr AmaxKernels kAvx512 = FP8_AMAX_KERNELS(N_AVX3);
#else
constexpr AmaxKernels kAvx512 = kAvx2;
#endif

#else

HWY_EXPORT(MagnitudeMax32);
HWY_EXPORT(MagnitudeMax16);
HWY_EXPORT(MagnitudeMaxInto32);
HWY_EXPORT(MagnitudeMaxInto16);
HWY_EXPORT(MagnitudeMaxGroups32);
HWY_EXPORT(MagnitudeMaxGroups16);

#endif  // __x86_64__

}  // namespace

const AmaxKernels& amax_kernels_in_force() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx512) return kAvx512;
  if (simd_level() == SimdLevel::avx2) return kAvx2;
  return kScalar;
#else
  static const AmaxKernels best = {
      HWY_DYNAMIC_DISPATCH(MagnitudeMax32),       HWY_DYNAMIC_DISPATCH(MagnitudeMax16),
      HWY_DYNAMIC_DISPATCH(MagnitudeMaxInto32),   HWY_DYNAMIC_DISPATCH(MagnitudeMaxInto16),
      HWY_DYNAMIC_DISPATCH(MagnitudeMaxGroups32), HWY_DYNAMIC_DISPATCH(MagnitudeMaxGroups16)};
  return best;
#endif
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
