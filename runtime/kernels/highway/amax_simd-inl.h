// SPDX-License-Identifier: Apache-2.0
// Integer maxima of magnitude bits in Highway's portable vectors, compiled once per target by amax_simd.cpp.
// Four accumulators hide the latency of the maximum; the prefetch runs 8 KiB ahead, which covers the DRAM latency.
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_AMAX_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_AMAX_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_AMAX_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_AMAX_SIMD_INL_H_
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
  T best = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(a, b), hn::Max(c, e))));
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

/// The maxima of runs of `width` elements, the last of them maybe shorter; vectors of d.
template <class D, class T = hn::TFromD<D>>
void GroupMaxima(D d, const T* HWY_RESTRICT x, std::size_t n, std::size_t width, T* HWY_RESTRICT best) {
  const std::size_t lanes = hn::Lanes(d);
  const T magnitude = static_cast<T>(static_cast<T>(~T{0}) >> 1);
  for (std::size_t first = 0; first < n; first += width) {
    const std::size_t end = n - first < width ? n : first + width;
    auto v = hn::Zero(d);
    std::size_t i = first;
    for (; i + lanes <= end; i += lanes) v = hn::Max(v, hn::And(hn::LoadU(d, x + i), hn::Set(d, magnitude)));
    T group = hn::GetLane(hn::MaxOfLanes(d, v));
    for (; i < end; ++i) {
      const T bits = static_cast<T>(x[i] & magnitude);
      group = group < bits ? bits : group;
    }
    *best++ = group;
  }
}

template <class T>
void MagnitudeMaxGroups(const T* x, std::int64_t n, std::int64_t width, T* best) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 16 / sizeof(T)> small;
  const std::size_t count = static_cast<std::size_t>(n), group = static_cast<std::size_t>(width);
  if (group >= hn::Lanes(d)) return GroupMaxima(d, x, count, group, best);
  GroupMaxima(small, x, count, group, best);
}

inline std::uint32_t MagnitudeMax32(const std::uint32_t* x, std::int64_t n) { return MagnitudeMax(x, n); }
inline std::uint16_t MagnitudeMax16(const std::uint16_t* x, std::int64_t n) { return MagnitudeMax(x, n); }
inline void MagnitudeMaxInto32(const std::uint32_t* x, std::int64_t n, std::uint32_t* best) {
  MagnitudeMaxInto(x, n, best);
}
inline void MagnitudeMaxInto16(const std::uint16_t* x, std::int64_t n, std::uint16_t* best) {
  MagnitudeMaxInto(x, n, best);
}

inline void MagnitudeMaxGroups32(const std::uint32_t* x, std::int64_t n, std::int64_t width, std::uint32_t* best) {
  MagnitudeMaxGroups(x, n, width, best);
}
inline void MagnitudeMaxGroups16(const std::uint16_t* x, std::int64_t n, std::int64_t width, std::uint16_t* best) {
  MagnitudeMaxGroups(x, n, width, best);
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
