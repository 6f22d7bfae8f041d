// SPDX-License-Identifier: Apache-2.0
// One copy of optim_simd-inl.h per Highway target, and the table for the level in force. Targets whose vectors have no
// fixed size are left out; on x86 the scalar level is Highway's baseline, which runs on every x86-64 machine.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/optim_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/optim_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/simd.h"

namespace fp8::kernels {
namespace {

#define FP8_OPTIM_KERNELS(of)                                                                                          \
  {of(Scale), of(ScaleAddTo),   of(ScaleAddSquare), {{of(AdamF32), of(AdamF32Bf16)}, {of(AdamBf16F32), of(AdamBf16)}}, \
   of(Lamb),  of(SumOfSquares), of(Widen),          of(Narrow)}

#if defined(__x86_64__)
#define FP8_AVX2(f) N_AVX2::f
#define FP8_AVX3(f) N_AVX3::f
constexpr OptimKernels kBaseline = FP8_OPTIM_KERNELS(HWY_STATIC_DISPATCH);
#if HWY_TARGETS & HWY_AVX2
constexpr OptimKernels kAvx2 = FP8_OPTIM_KERNELS(FP8_AVX2);
#else
constexpr OptimKernels kAvx2 = kBaseline;
#endif
#if HWY_TARGETS & HWY_AVX3
constexpr OptimKernels kAvx512 = FP8_OPTIM_KERNELS(FP8_AVX3);
#else
constexpr OptimKernels kAvx512 = kAvx2;
#endif
#else
HWY_EXPORT(Scale);
HWY_EXPORT(ScaleAddTo);
HWY_EXPORT(ScaleAddSquare);
HWY_EXPORT(AdamF32);
HWY_EXPORT(AdamF32Bf16);
HWY_EXPORT(AdamBf16F32);
HWY_EXPORT(AdamBf16);
HWY_EXPORT(Lamb);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);
#endif

}  // namespace

const OptimKernels& optim_kernels_in_force() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx512) return kAvx512;
  return simd_level() == SimdLevel::avx2 ? kAvx2 : kBaseline;
#else
  static const OptimKernels best = FP8_OPTIM_KERNELS(HWY_DYNAMIC_DISPATCH);
  return best;
#endif
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
