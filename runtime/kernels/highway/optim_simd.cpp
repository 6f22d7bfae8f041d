// SPDX-License-Identifier: Apache-2.0
// One copy of optim_simd-inl.h per Highway target, and the table for the level in force. Targets whose vectors have no
// fixed size are left out.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/optim_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/optim_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

#define FP8_OPTIM_KERNELS(of)                                                                                          \
  {of(Scale), of(ScaleAddTo),   of(ScaleAddSquare), {{of(AdamF32), of(AdamF32Bf16)}, {of(AdamBf16F32), of(AdamBf16)}}, \
   of(Lamb),  of(SumOfSquares), of(Widen),          of(Narrow)}

constexpr OptimKernels kBaseline = FP8_OPTIM_KERNELS(HWY_STATIC_DISPATCH), kAvx2 = FP8_OPTIM_KERNELS(FP8_AT_AVX2),
                       kAvx512 = FP8_OPTIM_KERNELS(FP8_AT_AVX512);

}  // namespace

const OptimKernels& optim_kernels_in_force() { return of_level(kBaseline, kAvx2, kAvx512); }

}  // namespace fp8::kernels
#endif  // HWY_ONCE
