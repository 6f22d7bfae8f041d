// SPDX-License-Identifier: Apache-2.0
// pointwise.h in Highway's portable vectors, compiled once per target, and the checks around them.
#include "fp8/runtime/kernels/optim/pointwise.h"

#include "fp8/runtime/kernels/highway/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/optim/pointwise.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

#include "fp8/runtime/kernels/highway/f32_vectors-inl.h"

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

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

constexpr ConvertKernels kConvertBaseline = {HWY_STATIC_DISPATCH(WidenArray), HWY_STATIC_DISPATCH(NarrowArray)},
                         kConvertAvx2 = {FP8_AT_AVX2(WidenArray), FP8_AT_AVX2(NarrowArray)},
                         kConvertAvx512 = {FP8_AT_AVX512(WidenArray), FP8_AT_AVX512(NarrowArray)};

const ConvertKernels& convert_kernels_in_force() { return of_level(kConvertBaseline, kConvertAvx2, kConvertAvx512); }

template <class T>
const PointwiseKernels<T>& pointwise_kernels_in_force() {
  static constexpr PointwiseKernels<T> kBaseline = HWY_STATIC_DISPATCH(PointwiseRows<T>)(),
                                       kAvx2 = FP8_AT_AVX2(PointwiseRows<T>)(),
                                       kAvx512 = FP8_AT_AVX512(PointwiseRows<T>)();
  return of_level(kBaseline, kAvx2, kAvx512);
}

template <class T>
bool run(const PointwiseArgs& args) {
  const auto& kernel = pointwise_kernels_in_force<T>().of[static_cast<int>(args.op)];
  const auto *a = static_cast<const T*>(args.a), *b = static_cast<const T*>(args.b);
  auto* y = static_cast<T*>(args.y);
  const bool in_place = args.y == args.a || args.y == args.b;
  if (b == nullptr) {
    if (in_place && !kernel.check_number(a, args.number, y, args.n)) return false;
    return kernel.number(a, args.number, y, args.n);
  }
  if (in_place && !kernel.check_arrays(a, b, y, args.n)) return false;
  return kernel.arrays(a, b, y, args.n);
}

}  // namespace

bool pointwise(const PointwiseArgs& args) {
  if (args.type != FloatType::BF16 && args.type != FloatType::F32)
    throw std::invalid_argument("pointwise: type must be BF16 or F32");
  if (args.n < 0) throw std::invalid_argument("pointwise: n must not be negative");
  if (args.n == 0) return true;
  if (args.a == nullptr || args.y == nullptr) throw std::invalid_argument("pointwise: a and y must not be null");
  return args.type == FloatType::BF16 ? run<std::uint16_t>(args) : run<float>(args);
}

void widen(const std::uint16_t* x, float* y, std::int64_t n) { convert_kernels_in_force().widen(x, y, n); }
bool narrow(const float* x, std::uint16_t* y, std::int64_t n) { return convert_kernels_in_force().narrow(x, y, n); }

}  // namespace fp8::kernels
#endif  // HWY_ONCE
