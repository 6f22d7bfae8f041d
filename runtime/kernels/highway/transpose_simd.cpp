// SPDX-License-Identifier: Apache-2.0
// One copy of transpose_simd-inl.h per Highway target, and that of the level in force.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/transpose_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/transpose_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"
#include "fp8/runtime/kernels/transpose_kernels.h"

namespace fp8::kernels {
namespace {

constexpr TransposeKernel kScalar = HWY_STATIC_DISPATCH(Transpose), kAvx2 = FP8_AT_AVX2(Transpose),
                          kAvx512 = FP8_AT_AVX512(Transpose);

}  // namespace

TransposeKernel transpose_kernel_in_force() { return of_level(kScalar, kAvx2, kAvx512); }

}  // namespace fp8::kernels
#endif  // HWY_ONCE
