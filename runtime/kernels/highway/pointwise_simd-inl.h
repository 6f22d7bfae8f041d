// SPDX-License-Identifier: Apache-2.0
// pointwise_kernels.h in Highway's portable vectors, compiled once per target by pointwise_simd.cpp.
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_POINTWISE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_POINTWISE_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_POINTWISE_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_POINTWISE_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include "fp8/runtime/kernels/highway/f32_vectors-inl.h"
#include "fp8/runtime/kernels/pointwise_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The operations, of two vectors of f32.
#define FP8_POINTWISE_OP(name, expression)                                            \
  struct name {                                                                       \
    template <class D>                                                                \
    static HWY_INLINE hn::Vec<D> Of(D, hn::Vec<D> a, [[maybe_unused]] hn::Vec<D> b) { \
      return expression;                                                              \
    }                                                                                 \
  };
FP8_POINTWISE_OP(AddOp, hn::Add(a, b))
FP8_POINTWISE_OP(SubOp, hn::Sub(a, b))
FP8_POINTWISE_OP(MulOp, hn::Mul(a, b))
FP8_POINTWISE_OP(DivOp, hn::Div(a, b))
FP8_POINTWISE_OP(NegOp, hn::Neg(a))
FP8_POINTWISE_OP(AbsOp, hn::Abs(a))
FP8_POINTWISE_OP(ReluOp, hn::IfThenZeroElse(hn::Lt(a, hn::Zero(D())), a))
#undef FP8_POINTWISE_OP

/// load_b(d, i): the second operand's elements from i on.
template <class Op, bool kStore, class T, class LoadB>
HWY_INLINE bool PointwiseLoop(const T* a, const LoadB& load_b, T* y, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto count = static_cast<std::size_t>(n), lanes = hn::Lanes(d);
  auto nan = hn::MaskFromVec(hn::Zero(d));
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto result = Op::Of(d, LoadAs(d, a + i), load_b(d, i));
    nan = hn::Or(nan, hn::IsNaN(result));
    if constexpr (kStore) StoreAs(d, result, y + i);
  }
  bool found = !hn::AllFalse(d, nan);
  for (; i < count; ++i) {
    const auto result = Op::Of(one, LoadAs(one, a + i), load_b(one, i));
    found = found || !hn::AllFalse(one, hn::IsNaN(result));
    if constexpr (kStore) StoreAs(one, result, y + i);
  }
  return !found;
}

template <class Op, bool kStore, class T>
bool PointwiseArrays(const T* a, const T* b, T* y, std::int64_t n) {
  return PointwiseLoop<Op, kStore>(a, [b](auto d, std::size_t i) HWY_ATTR { return LoadAs(d, b + i); }, y, n);
}
template <class Op, bool kStore, class T>
bool PointwiseNumber(const T* a, float b, T* y, std::int64_t n) {
  return PointwiseLoop<Op, kStore>(a, [b](auto d, std::size_t) HWY_ATTR { return hn::Set(d, b); }, y, n);
}

void WidenArray(const std::uint16_t* x, float* y, std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR { StoreAs(d, LoadAs(d, x + i), y + i); });
}
bool NarrowArray(const float* x, std::uint16_t* y, std::int64_t n) {
  bool nan = false;
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto value = LoadAs(d, x + i);
    nan = nan || !hn::AllFalse(d, hn::IsNaN(value));
    StoreAs(d, value, y + i);
  });
  return !nan;
}

template <class Op, class T>
constexpr PointwiseKernel<T> PointwiseRow() {
  return {PointwiseArrays<Op, true, T>, PointwiseNumber<Op, true, T>, PointwiseArrays<Op, false, T>,
          PointwiseNumber<Op, false, T>};
}

template <class T>
constexpr PointwiseKernels<T> PointwiseRows() {
  return {{PointwiseRow<AddOp, T>(), PointwiseRow<SubOp, T>(), PointwiseRow<MulOp, T>(), PointwiseRow<DivOp, T>(),
           PointwiseRow<NegOp, T>(), PointwiseRow<AbsOp, T>(), PointwiseRow<ReluOp, T>()}};
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
