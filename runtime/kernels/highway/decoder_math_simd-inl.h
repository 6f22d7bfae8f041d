// SPDX-License-Identifier: Apache-2.0
// decoder_math_kernels.h in Highway's portable vectors, compiled once per target by decoder_math_simd.cpp. Only
// operations that IEEE 754 defines to the bit, so all targets agree.
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_DECODER_MATH_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_DECODER_MATH_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_DECODER_MATH_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_DECODER_MATH_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include "fp8/runtime/kernels/decoder_math_kernels.h"
#include "fp8/runtime/kernels/highway/f32_math-inl.h"
#include "fp8/runtime/kernels/highway/f32_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Of term(x[i]), in decoder_math.h's order.
template <class T, class Term>
HWY_INLINE float SumOf(const T* HWY_RESTRICT x, std::int64_t n, const Term& term) {
  constexpr std::size_t kSums = 32;
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  constexpr std::size_t kLanes = hn::MaxLanes(d), kVectors = kSums / kLanes;
  const std::size_t count = static_cast<std::size_t>(n), whole = count / kSums * kSums;
  hn::Vec<decltype(d)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t v = 0; v < kVectors; ++v) sums[v] = hn::Add(sums[v], term(d, LoadAs(d, x + i + v * kLanes)));
  }
  HWY_ALIGN float s[kSums];
  for (std::size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, s + v * kLanes);
  for (std::size_t i = whole; i < count; ++i) s[i - whole] += hn::GetLane(term(one, LoadAs(one, x + i)));
  for (std::size_t half = kSums / 2; half != 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) s[j] += s[j + half];
  return s[0];
}

template <class T>
float Sum(const T* HWY_RESTRICT x, std::int64_t n) {
  return SumOf(x, n, [](auto, auto a) HWY_ATTR { return a; });
}

template <class T>
float SumOfSquares(const T* HWY_RESTRICT x, std::int64_t n) {
  return SumOf(x, n, [](auto, auto a) HWY_ATTR { return hn::Mul(a, a); });
}

template <class T>
float SumOfDistances(const T* HWY_RESTRICT x, float mean, std::int64_t n) {
  return SumOf(x, n, [mean](auto d, auto a) HWY_ATTR {
    const auto distance = hn::Sub(a, hn::Set(d, mean));
    return hn::Mul(distance, distance);
  });
}

template <class T>
void ScaleTwice(const T* HWY_RESTRICT x, float factor, const T* HWY_RESTRICT weight, T* HWY_RESTRICT y,
                std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto normal = RoundTo<T>(d, hn::Mul(LoadAs(d, x + i), hn::Set(d, factor)));
    StoreAs(d, hn::Mul(LoadAs(d, weight + i), normal), y + i);
  });
}

template <class T>
void ScaleWide(const T* HWY_RESTRICT x, float factor, const T* HWY_RESTRICT weight, float offset, T* HWY_RESTRICT y,
               std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto normal = hn::Mul(LoadAs(d, x + i), hn::Set(d, factor));
    StoreAs(d, hn::Mul(hn::Add(hn::Set(d, offset), LoadAs(d, weight + i)), normal), y + i);
  });
}

template <class T>
void Rotate(const T* HWY_RESTRICT x, const T* HWY_RESTRICT cos, const T* HWY_RESTRICT sin, T* HWY_RESTRICT y,
            std::int64_t half) {
  const auto h = static_cast<std::size_t>(half);
  ForVectors(half, [&](auto d, std::size_t i) HWY_ATTR {
    const auto left = LoadAs(d, x + i), right = LoadAs(d, x + h + i);
    const auto product = [&](auto a, const T* b) HWY_ATTR { return RoundTo<T>(d, hn::Mul(a, LoadAs(d, b))); };
    StoreAs(d, hn::Sub(product(left, cos + i), product(right, sin + i)), y + i);
    StoreAs(d, hn::Add(product(right, cos + h + i), product(left, sin + h + i)), y + h + i);
  });
}

template <class T>
void Center(const T* HWY_RESTRICT x, float mean, float factor, const T* HWY_RESTRICT weight, const T* HWY_RESTRICT bias,
            T* HWY_RESTRICT y, std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    auto normal = hn::Mul(hn::Sub(LoadAs(d, x + i), hn::Set(d, mean)), hn::Set(d, factor));
    if (weight != nullptr) normal = hn::Mul(normal, LoadAs(d, weight + i));
    if (bias != nullptr) normal = hn::Add(normal, LoadAs(d, bias + i));
    StoreAs(d, normal, y + i);
  });
}

template <class T>
void SiluMul(const T* HWY_RESTRICT gate, const T* HWY_RESTRICT up, T* HWY_RESTRICT y, std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto g = LoadAs(d, gate + i);
    const auto silu = hn::Div(g, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(g))));
    StoreAs(d, hn::Mul(RoundTo<T>(d, silu), LoadAs(d, up + i)), y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
