// SPDX-License-Identifier: Apache-2.0
// Which of the copies that Highway compiles, one per target, is that of a level of simd.h. For the part of a source
// that HWY_ONCE guards:
//
//   constexpr Kernels kScalar = {...}, kAvx2 = {FP8_AT_AVX2(F)}, kAvx512 = {FP8_AT_AVX512(F)};
//   const Kernels& kernels_in_force() { return of_level(kScalar, kAvx2, kAvx512); }
//
// A compiler without a target takes the copy below it. The scalar level is either Highway's baseline for x86-64,
// HWY_STATIC_DISPATCH(F), or loops, where that lacks an instruction (a fused multiply-add) or the loops are as good.
#pragma once
#include <hwy/highway.h>

#include "fp8/runtime/kernels/simd.h"

#if HWY_TARGETS & HWY_AVX2
#define FP8_AT_AVX2(f) N_AVX2::f
#else
#define FP8_AT_AVX2(f) HWY_STATIC_DISPATCH(f)
#endif
#if HWY_TARGETS & HWY_AVX3
#define FP8_AT_AVX512(f) N_AVX3::f
#else
#define FP8_AT_AVX512(f) FP8_AT_AVX2(f)
#endif

namespace fp8::kernels {

/// The argument of the level in force. On a CPU that is not x86, of which simd.h knows no level, FP8_AT_AVX2's: the
/// vectors that every CPU of its kind has.
template <class T>
const T& of_level([[maybe_unused]] const T& scalar, const T& avx2, [[maybe_unused]] const T& avx512) {
#if defined(__x86_64__)
  const SimdLevel level = simd_level();
  return level >= SimdLevel::avx512 ? avx512 : level == SimdLevel::avx2 ? avx2 : scalar;
#else
  return avx2;
#endif
}

}  // namespace fp8::kernels
