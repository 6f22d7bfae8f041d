// SPDX-License-Identifier: Apache-2.0
// Loops over f32 and bf16 arrays in f32 vectors, for the kernels that Highway compiles once per target.
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_F32_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_F32_VECTORS_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_F32_VECTORS_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_F32_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls body(d, i) for whole vectors, then for single elements.
template <class Body>
HWY_INLINE void ForVectors(std::int64_t count, const Body& body) {
  const hn::ScalableTag<float> d;
  const auto n = static_cast<std::size_t>(count), lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(hn::CappedTag<float, 1>(), i);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const std::uint16_t* p) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint16_t, D>(), p))));
}

/// bf16 to nearest even, NaN stays NaN, in the lower half of each lane.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundToBf16(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x), upper = hn::ShiftRight<16>(bits);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::And(upper, hn::Set(du, 1)), hn::Set(du, 0x7FFF))));
  const auto nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFF)), hn::Set(du, 0x7F800000));
  return hn::IfThenElse(nan, hn::Or(upper, hn::Set(du, 0x40)), rounded);
}

/// x rounded to T, in f32.
template <class T, class D>
HWY_INLINE hn::Vec<D> RoundTo(D d, hn::Vec<D> x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return hn::BitCast(d, hn::ShiftLeft<16>(RoundToBf16(d, x)));
}

template <class D>
HWY_INLINE void StoreAs(D d, hn::Vec<D> x, float* p) {
  hn::StoreU(x, d, p);
}
template <class D>
HWY_INLINE void StoreAs(D d, hn::Vec<D> x, std::uint16_t* p) {
  const hn::Rebind<std::uint16_t, D> half;
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<D>(), RoundToBf16(d, x))), half, p);
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
