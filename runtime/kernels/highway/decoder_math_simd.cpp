// SPDX-License-Identifier: Apache-2.0
// One copy of decoder_math_simd-inl.h per Highway target, and the kernels of the level in force. On x86 the scalar
// level is Highway's baseline, which runs on every x86-64 machine.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/decoder_math_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/decoder_math_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/simd.h"

namespace fp8::kernels {

#define FP8_DECODER_KERNELS(of, T) {of(SumOfSquares<T>), of(ScaleTwice<T>), of(Rotate<T>)}
#define FP8_AVX2(f) N_AVX2::f
#define FP8_AVX3(f) N_AVX3::f

template <class T>
DecoderKernels<T> decoder_kernels_in_force() {
#if defined(__x86_64__)
#if HWY_TARGETS & HWY_AVX3
  if (simd_level() >= SimdLevel::avx512) return FP8_DECODER_KERNELS(FP8_AVX3, T);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (simd_level() >= SimdLevel::avx2) return FP8_DECODER_KERNELS(FP8_AVX2, T);
#endif
#endif
  return FP8_DECODER_KERNELS(HWY_STATIC_DISPATCH, T);
}

template DecoderKernels<float> decoder_kernels_in_force();
template DecoderKernels<std::uint16_t> decoder_kernels_in_force();

}  // namespace fp8::kernels
#endif  // HWY_ONCE
