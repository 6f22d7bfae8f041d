// SPDX-License-Identifier: Apache-2.0
// Integer maxima of magnitude bits in Highway's portable vectors, compiled once per target by amax_simd.cpp.
// Four accumulators hide the latency of the maximum; the prefetch runs 8 KiB ahead, which covers the DRAM latency.
#if defined(FP8_RUNTIME_KERNELS_AMAX_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_AMAX_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_AMAX_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_AMAX_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
T MagnitudeMax(const T* HWY_RESTRICT x, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const std::size_t n = static_cast<std::size_t>(count), lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(d, static_cast<T>(static_cast<T>(~T{0}) >> 1));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (std::size_t line = 0; line < 4 * lanes; line += 64 / sizeof(T)) hwy::Prefetch(x + i + line + 8192 / sizeof(T));
    a = hn::Max(a, hn::And(hn::LoadU(d, x + i), magnitude));
    b = hn::Max(b, hn::And(hn::LoadU(d, x + i + lanes), magnitude));
    c = hn::Max(c, hn::And(hn::LoadU(d, x + i + 2 * lanes), magnitude));
    e = hn::Max(e, hn::And(hn::LoadU(d, x + i + 3 * lanes), magnitude));
  }
  for (; i + lanes <= n; i += lanes) a = hn::Max(a, hn::And(hn::LoadU(d, x + i), magnitude));
  HWY_ALIGN T lane[hn::MaxLanes(hn::ScalableTag<T>())];
  hn::Store(hn::Max(hn::Max(a, b), hn::Max(c, e)), d, lane);
  T best = 0;
  for (std::size_t j = 0; j < lanes; ++j) best = best < lane[j] ? lane[j] : best;
  for (; i < n; ++i) {
    const T bits = static_cast<T>(x[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1));
    best = best < bits ? bits : best;
  }
  return best;
}

template <class T>
void MagnitudeMaxInto(const T* HWY_RESTRICT x, std::int64_t count, T* HWY_RESTRICT best) {
  const hn::ScalableTag<T> d;
  const std::size_t n = static_cast<std::size_t>(count), lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(d, static_cast<T>(static_cast<T>(~T{0}) >> 1));
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Max(hn::LoadU(d, best + i), hn::And(hn::LoadU(d, x + i), magnitude)), d, best + i);
  }
  for (; i < n; ++i) {
    const T bits = static_cast<T>(x[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1));
    best[i] = best[i] < bits ? bits : best[i];
  }
}

inline std::uint32_t MagnitudeMax32(const std::uint32_t* x, std::int64_t n) { return MagnitudeMax(x, n); }
inline std::uint16_t MagnitudeMax16(const std::uint16_t* x, std::int64_t n) { return MagnitudeMax(x, n); }
inline void MagnitudeMaxInto32(const std::uint32_t* x, std::int64_t n, std::uint32_t* best) {
  MagnitudeMaxInto(x, n, best);
}
inline void MagnitudeMaxInto16(const std::uint16_t* x, std::int64_t n, std::uint16_t* best) {
  MagnitudeMaxInto(x, n, best);
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
