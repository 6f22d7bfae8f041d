// SPDX-License-Identifier: Apache-2.0
// One copy of pointwise_simd-inl.h per Highway target, and the kernels of the level in force.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/highway/pointwise_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include "fp8/runtime/kernels/highway/pointwise_simd-inl.h"

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

template <class T>
constexpr PointwiseKernels<T> kBaseline = HWY_STATIC_DISPATCH(PointwiseRows<T>)();
template <class T>
constexpr PointwiseKernels<T> kAvx2 = FP8_AT_AVX2(PointwiseRows<T>)();
template <class T>
constexpr PointwiseKernels<T> kAvx512 = FP8_AT_AVX512(PointwiseRows<T>)();

constexpr ConvertKernels kConvertBaseline = {HWY_STATIC_DISPATCH(WidenArray), HWY_STATIC_DISPATCH(NarrowArray)},
                         kConvertAvx2 = {FP8_AT_AVX2(WidenArray), FP8_AT_AVX2(NarrowArray)},
                         kConvertAvx512 = {FP8_AT_AVX512(WidenArray), FP8_AT_AVX512(NarrowArray)};

}  // namespace

const ConvertKernels& convert_kernels_in_force() { return of_level(kConvertBaseline, kConvertAvx2, kConvertAvx512); }

template <class T>
const PointwiseKernels<T>& pointwise_kernels_in_force() {
  return of_level(kBaseline<T>, kAvx2<T>, kAvx512<T>);
}

template const PointwiseKernels<float>& pointwise_kernels_in_force();
template const PointwiseKernels<std::uint16_t>& pointwise_kernels_in_force();

}  // namespace fp8::kernels
#endif  // HWY_ONCE
