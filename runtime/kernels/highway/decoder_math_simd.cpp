// SPDX-License-Identifier: Apache-2.0
// One copy of decoder_math_simd-inl.h per Highway target, and the kernels of the level in force.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/decoder_math_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/decoder_math_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

#define FP8_DECODER_KERNELS(of)                                                 \
  {of(SumOfSquares<T>), of(ScaleTwice<T>),     of(ScaleWide<T>), of(Rotate<T>), \
   of(Sum<T>),          of(SumOfDistances<T>), of(Center<T>),    of(SiluMul<T>)}

template <class T>
constexpr DecoderKernels<T> kBaseline = FP8_DECODER_KERNELS(HWY_STATIC_DISPATCH);
template <class T>
constexpr DecoderKernels<T> kAvx2 = FP8_DECODER_KERNELS(FP8_AT_AVX2);
template <class T>
constexpr DecoderKernels<T> kAvx512 = FP8_DECODER_KERNELS(FP8_AT_AVX512);

}  // namespace

template <class T>
const DecoderKernels<T>& decoder_kernels_in_force() {
  return of_level(kBaseline<T>, kAvx2<T>, kAvx512<T>);
}

template const DecoderKernels<float>& decoder_kernels_in_force();
template const DecoderKernels<std::uint16_t>& decoder_kernels_in_force();

}  // namespace fp8::kernels
#endif  // HWY_ONCE
