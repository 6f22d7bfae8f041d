// SPDX-License-Identifier: Apache-2.0
// The optimizers' operations (simd_kernels.h) in Highway's portable vectors, compiled once per target. Only operations
// that IEEE 754 defines to the bit, so all targets agree.
#include "fp8/runtime/kernels/highway/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/optim/optim_simd.cpp"
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

inline void Scale(float* HWY_RESTRICT y, std::int64_t n, float a) {
  ForVectors(
      n, [&](auto d, std::size_t i) HWY_ATTR { hn::StoreU(hn::Mul(hn::Set(d, a), hn::LoadU(d, y + i)), d, y + i); });
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

template <class Weight, class Moment>
void Adam(void* weight, const void* grad, void* exp_avg, void* exp_avg_sq, std::int64_t n, const AdamFactors& f) {
  auto* HWY_RESTRICT w = static_cast<Weight*>(weight);
  auto* HWY_RESTRICT g = static_cast<const Weight*>(grad);
  auto* HWY_RESTRICT m = static_cast<Moment*>(exp_avg);
  auto* HWY_RESTRICT v = static_cast<Moment*>(exp_avg_sq);
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto x = LoadAs(d, g + i);
    const auto first = hn::Add(hn::Mul(hn::Set(d, f.beta1), LoadAs(d, m + i)), hn::Mul(hn::Set(d, f.rest1), x));
    const auto second =
        hn::Add(hn::Mul(hn::Set(d, f.beta2), LoadAs(d, v + i)), hn::Mul(hn::Mul(hn::Set(d, f.rest2), x), x));
    StoreAs(d, first, m + i);
    StoreAs(d, second, v + i);
    const auto root = hn::Add(hn::Mul(hn::Sqrt(second), hn::Set(d, f.root_scale)), hn::Set(d, f.eps));
    const auto kept = hn::Mul(LoadAs(d, w + i), hn::Set(d, f.decay));
    StoreAs(d, hn::Add(kept, hn::Mul(hn::Set(d, f.neg_step), hn::Div(first, root))), w + i);
  });
}
inline void AdamF32(void* w, const void* g, void* m, void* v, std::int64_t n, const AdamFactors& f) {
  Adam<float, float>(w, g, m, v, n, f);
}
inline void AdamF32Bf16(void* w, const void* g, void* m, void* v, std::int64_t n, const AdamFactors& f) {
  Adam<float, std::uint16_t>(w, g, m, v, n, f);
}
inline void AdamBf16F32(void* w, const void* g, void* m, void* v, std::int64_t n, const AdamFactors& f) {
  Adam<std::uint16_t, float>(w, g, m, v, n, f);
}
inline void AdamBf16(void* w, const void* g, void* m, void* v, std::int64_t n, const AdamFactors& f) {
  Adam<std::uint16_t, std::uint16_t>(w, g, m, v, n, f);
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
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR { StoreAs(d, hn::LoadU(d, x + i), y + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

#define FP8_OPTIM_KERNELS(of)                                                                                          \
  {of(Scale), of(ScaleAddTo),   of(ScaleAddSquare), {{of(AdamF32), of(AdamF32Bf16)}, {of(AdamBf16F32), of(AdamBf16)}}, \
   of(Lamb),  of(SumOfSquares), of(Widen),          of(Narrow)}

constexpr OptimKernels kBaseline = FP8_OPTIM_KERNELS(HWY_STATIC_DISPATCH), kAvx2 = FP8_OPTIM_KERNELS(FP8_AT_AVX2),
                       kAvx512 = FP8_OPTIM_KERNELS(FP8_AT_AVX512);

}  // namespace

const OptimKernels& optim_kernels_in_force() { return of_level(kBaseline, kAvx2, kAvx512); }

}  // namespace fp8::kernels
#endif  // HWY_ONCE
