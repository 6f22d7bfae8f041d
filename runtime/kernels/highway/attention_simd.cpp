// SPDX-License-Identifier: Apache-2.0
// One copy of attention_simd-inl.h per Highway target, and the kernels of the level in force.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/attention_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/attention_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

#define FP8_ATTENTION_KERNELS(of) {of(Scores<T>), of(Round<T>), of(Values<T>), of(WidenF16)}

template <class T>
constexpr AttentionKernels<T> kBaseline = FP8_ATTENTION_KERNELS(HWY_STATIC_DISPATCH);
template <class T>
constexpr AttentionKernels<T> kAvx2 = FP8_ATTENTION_KERNELS(FP8_AT_AVX2);
template <class T>
constexpr AttentionKernels<T> kAvx512 = FP8_ATTENTION_KERNELS(FP8_AT_AVX512);

}  // namespace

template <class T>
const AttentionKernels<T>& attention_kernels_in_force() {
  return of_level(kBaseline<T>, kAvx2<T>, kAvx512<T>);
}

template const AttentionKernels<float>& attention_kernels_in_force();
template const AttentionKernels<std::uint16_t>& attention_kernels_in_force();

}  // namespace fp8::kernels
#endif  // HWY_ONCE
