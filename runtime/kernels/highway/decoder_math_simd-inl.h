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

#include <type_traits>

#include "fp8/runtime/kernels/decoder_math_kernels.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/highway/f32_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
float SumOfSquares(const T* HWY_RESTRICT x, std::int64_t n) {
  constexpr std::size_t kSums = 32;
  const hn::CappedTag<float, 16> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d), kVectors = kSums / kLanes;
  const std::size_t count = static_cast<std::size_t>(n), whole = count / kSums * kSums;
  hn::Vec<decltype(d)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto a = LoadAs(d, x + i + v * kLanes);
      sums[v] = hn::Add(sums[v], hn::Mul(a, a));
    }
  }
  HWY_ALIGN float s[kSums];
  for (std::size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, s + v * kLanes);
  for (std::size_t i = whole; i < count; ++i) {
    float a;
    if constexpr (std::is_same_v<T, float>)
      a = x[i];
    else
      a = bf16_to_f32(x[i]);
    s[i - whole] += a * a;
  }
  for (std::size_t half = kSums / 2; half != 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) s[j] += s[j + half];
  return s[0];
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

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
