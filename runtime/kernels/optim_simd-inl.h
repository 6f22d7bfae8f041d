// SPDX-License-Identifier: Apache-2.0
// optim_kernels.h in Highway's portable vectors, compiled once per target by optim_simd.cpp. Only operations that IEEE 754
// defines to the bit, so all targets agree.
#if defined(FP8_RUNTIME_KERNELS_OPTIM_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_OPTIM_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_OPTIM_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_OPTIM_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include "fp8/runtime/kernels/optim_kernels.h"

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

inline void Scale(float* HWY_RESTRICT y, std::int64_t n, float a) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR { hn::StoreU(hn::Mul(hn::Set(d, a), hn::LoadU(d, y + i)), d, y + i); });
}

inline void ScaleAddTo(float* HWY_RESTRICT y, const float* HWY_RESTRICT x, std::int64_t n, float a, float b) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto left = hn::Mul(hn::Set(d, a), hn::LoadU(d, y + i));
    hn::StoreU(hn::Add(left, hn::Mul(hn::Set(d, b), hn::LoadU(d, x + i))), d, y + i);
  });
}

inline void ScaleAddSquare(float* HWY_RESTRICT v, const float* HWY_RESTRICT g, std::int64_t n, float a, float b) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto x = hn::LoadU(d, g + i);
    const auto square = hn::Mul(hn::Mul(hn::Set(d, b), x), x);
    hn::StoreU(hn::Add(hn::Mul(hn::Set(d, a), hn::LoadU(d, v + i)), square), d, v + i);
  });
}

inline void Adam(float* HWY_RESTRICT w, const float* HWY_RESTRICT g, float* HWY_RESTRICT m, float* HWY_RESTRICT v,
                 std::int64_t n, const AdamFactors& f) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto x = hn::LoadU(d, g + i);
    const auto first =
        hn::Add(hn::Mul(hn::Set(d, f.beta1), hn::LoadU(d, m + i)), hn::Mul(hn::Set(d, f.rest1), x));
    const auto second = hn::Add(hn::Mul(hn::Set(d, f.beta2), hn::LoadU(d, v + i)),
                                hn::Mul(hn::Mul(hn::Set(d, f.rest2), x), x));
    hn::StoreU(first, d, m + i);
    hn::StoreU(second, d, v + i);
    const auto root = hn::Add(hn::Mul(hn::Sqrt(second), hn::Set(d, f.root_scale)), hn::Set(d, f.eps));
    const auto kept = hn::Mul(hn::LoadU(d, w + i), hn::Set(d, f.decay));
    hn::StoreU(hn::Add(kept, hn::Mul(hn::Set(d, f.neg_step), hn::Div(first, root))), d, w + i);
  });
}

inline void Lamb(float* HWY_RESTRICT step, const float* HWY_RESTRICT m, const float* HWY_RESTRICT v,
                 const float* HWY_RESTRICT w, std::int64_t n, const LambTensor& f) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto first = hn::Div(hn::LoadU(d, m + i), hn::Set(d, f.correction1));
    const auto root = hn::Sqrt(hn::Div(hn::LoadU(d, v + i), hn::Set(d, f.correction2)));
    const auto adam = hn::Div(first, hn::Add(root, hn::Set(d, f.eps)));
    hn::StoreU(hn::Add(adam, hn::Mul(hn::Set(d, f.weight_decay), hn::LoadU(d, w + i))), d, step + i);
  });
}

inline double SumOfSquares(const float* HWY_RESTRICT x, std::int64_t n) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t kSums = 16;
  HWY_ALIGN double sums[kSums] = {};
  const auto lanes = hn::Lanes(d), whole = static_cast<std::size_t>(n) / kSums * kSums;
  for (std::size_t part = 0; part < kSums; part += 2 * lanes) {  // two vectors of sums at a time hide the latency
    auto left = hn::Zero(d), right = hn::Zero(d);
    for (std::size_t i = part; i < whole; i += kSums) {
      const auto a = hn::PromoteTo(d, hn::LoadU(narrow, x + i)), b = hn::PromoteTo(d, hn::LoadU(narrow, x + i + lanes));
      left = hn::Add(left, hn::Mul(a, a));
      right = hn::Add(right, hn::Mul(b, b));
    }
    hn::StoreU(left, d, sums + part);
    hn::StoreU(right, d, sums + part + lanes);
  }
  for (std::size_t i = whole; i < static_cast<std::size_t>(n); ++i) {
    sums[i - whole] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  for (std::size_t width = kSums / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

inline void Widen(const std::uint16_t* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t n) {
  auto* bits = reinterpret_cast<std::uint32_t*>(y);
  for (std::int64_t i = 0; i < n; ++i) bits[i] = static_cast<std::uint32_t>(x[i]) << 16;
}

inline void Narrow(const float* HWY_RESTRICT x, std::uint16_t* HWY_RESTRICT y, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto lanes = hn::Lanes(d), count = static_cast<std::size_t>(n);
  HWY_ALIGN std::uint32_t upper[hn::MaxLanes(hn::ScalableTag<float>())];
  const auto round = [&](auto tag, std::size_t i) HWY_ATTR {
    const auto bits = hn::BitCast(du, hn::LoadU(tag, x + i));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
    const auto nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFF)), hn::Set(du, 0x7F800000));
    return hn::IfThenElse(nan, hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40)), rounded);
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const hn::Rebind<std::uint16_t, decltype(d)> half;
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<decltype(d)>(), round(d, i))), half, y + i);
  }
  if (i == count) return;
  HWY_ALIGN float rest[hn::MaxLanes(hn::ScalableTag<float>())] = {};
  for (std::size_t j = 0; i + j < count; ++j) rest[j] = x[i + j];
  x = rest;
  hn::Store(round(d, 0), du, upper);
  for (std::size_t j = 0; i + j < count; ++j) y[i + j] = static_cast<std::uint16_t>(upper[j]);
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
