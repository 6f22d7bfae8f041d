// SPDX-License-Identifier: Apache-2.0
// Integer maxima of magnitude bits in Highway's portable vectors, compiled once per target, and threads around them: a
// maximum has no order, so the split is free. Four accumulators hide the latency of the maximum; the prefetch runs 8
// KiB ahead, which covers the DRAM latency.
#include <hwy/cache_control.h>

#include <algorithm>
#include <mutex>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/cast/amax.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
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

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

#define FP8_AMAX_KERNELS(of)                                                                                        \
  {of(MagnitudeMax<std::uint32_t>),     of(MagnitudeMax<std::uint16_t>),       of(MagnitudeMaxInto<std::uint32_t>), \
   of(MagnitudeMaxInto<std::uint16_t>), of(MagnitudeMaxGroups<std::uint32_t>), of(MagnitudeMaxGroups<std::uint16_t>)}

// Plain loops: SSE2, the baseline of Highway, has no maximum of 16-bit words, and needs six times the instructions.
template <class T>
T magnitude_max(const T* x, std::int64_t n) {
  T best = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const T bits = static_cast<T>(x[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1));
    best = best < bits ? bits : best;
  }
  return best;
}

template <class T>
void magnitude_max_into(const T* x, std::int64_t n, T* best) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T bits = static_cast<T>(x[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1));
    best[i] = best[i] < bits ? bits : best[i];
  }
}

template <class T>
void magnitude_max_groups(const T* x, std::int64_t n, std::int64_t width, T* best) {
  for (std::int64_t i = 0; i < n; i += width) *best++ = magnitude_max(x + i, n - i < width ? n - i : width);
}

constexpr AmaxKernels kScalar = {magnitude_max<std::uint32_t>,        magnitude_max<std::uint16_t>,
                                 magnitude_max_into<std::uint32_t>,   magnitude_max_into<std::uint16_t>,
                                 magnitude_max_groups<std::uint32_t>, magnitude_max_groups<std::uint16_t>};
constexpr AmaxKernels kAvx2 = FP8_AMAX_KERNELS(FP8_AT_AVX2), kAvx512 = FP8_AMAX_KERNELS(FP8_AT_AVX512);

}  // namespace

const AmaxKernels& amax_kernels_in_force() { return of_level(kScalar, kAvx2, kAvx512); }

namespace {

constexpr std::int64_t kGrain = 256 * 1024;  // elements per range: some 5 us from the cache

void check(const char* what, const void* x, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
           const void* out) {
  check_matrix(what, rows, cols, row_stride);
  if (rows > 0 && cols > 0 && (x == nullptr || out == nullptr))
    io::fail<std::invalid_argument>("{}: x and out must not be null for a non-empty matrix", what);
}

const char* element(const void* x, FloatType type, std::int64_t i) {
  return static_cast<const char*>(x) + i * size_of(type);
}

/// Column maxima of rows [begin, end) for columns [col, col + best.size()), as magnitude bits of T.
template <class T>
void columns(void (*into)(const T*, std::int64_t, T*), const T* x, std::int64_t begin, std::int64_t end,
             std::int64_t row_stride, std::int64_t col, std::vector<T>& best) {
  for (std::int64_t r = begin; r < end; ++r) {
    into(x + r * row_stride + col, static_cast<std::int64_t>(best.size()), best.data());
  }
}

/// The matrix is cut into tiles of at most 4096 columns (16 KiB of maxima stay in L1) and about kGrain elements.
template <class T, class Widen>
void amax_cols_of(void (*into)(const T*, std::int64_t, T*), const T* x, std::int64_t rows, std::int64_t cols,
                  std::int64_t row_stride, float* out, Widen widen) {
  constexpr std::int64_t kTileCols = 4096;
  const std::int64_t col_tiles = (cols + kTileCols - 1) / kTileCols;
  const std::int64_t tile_rows = std::max<std::int64_t>(1, kGrain / std::min(cols, kTileCols));
  const std::int64_t row_tiles = (rows + tile_rows - 1) / tile_rows;
  std::vector<T> best(static_cast<std::size_t>(cols), T{0});
  std::mutex mutex;
  parallel_each(col_tiles * row_tiles, 1, [&](std::int64_t tile) {
    const std::int64_t begin = tile / col_tiles * tile_rows, col = tile % col_tiles * kTileCols;
    std::vector<T> mine(static_cast<std::size_t>(std::min(kTileCols, cols - col)), T{0});
    columns(into, x, begin, std::min(rows, begin + tile_rows), row_stride, col, mine);
    std::lock_guard lock(mutex);
    into(mine.data(), static_cast<std::int64_t>(mine.size()),
         best.data() + col);  // magnitudes already: unchanged by |.|
  });
  for (std::int64_t c = 0; c < cols; ++c) out[c] = amax_value(widen(best[static_cast<std::size_t>(c)]));
}

}  // namespace

float amax(const void* x, FloatType type, std::int64_t n) {
  float unused = 0;
  check("amax", x, 1, n, n, &unused);
  const AmaxKernels& kernels = amax_kernels_in_force();
  AmaxBits best;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    best.add(amax_of_run(kernels, element(x, type, begin), type, end - begin));
  });
  return amax_value(best.bits());
}

void amax_rows(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out) {
  check("amax_rows", x, rows, cols, row_stride, out);
  if (rows > 0 && out == nullptr) throw std::invalid_argument("amax_rows: out must not be null");
  const AmaxKernels& kernels = amax_kernels_in_force();
  if (rows < num_threads() && cols > kGrain) {
    for (std::int64_t r = 0; r < rows; ++r) out[r] = amax(element(x, type, r * row_stride), type, cols);
    return;
  }
  parallel_each(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, cols)), [&](std::int64_t r) {
    out[r] = amax_value(amax_of_run(kernels, element(x, type, r * row_stride), type, cols));
  });
}

void amax_cols(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out) {
  check("amax_cols", x, rows, cols, row_stride, out);
  if (cols == 0) return;
  if (out == nullptr) throw std::invalid_argument("amax_cols: out must not be null");
  const AmaxKernels& kernels = amax_kernels_in_force();
  if (type == FloatType::F32) {
    amax_cols_of(kernels.into_32, static_cast<const std::uint32_t*>(x), rows, cols, row_stride, out,
                 [](std::uint32_t bits) { return bits; });
  } else {
    amax_cols_of(kernels.into_16, static_cast<const std::uint16_t*>(x), rows, cols, row_stride, out,
                 [type](std::uint16_t bits) { return widen_bits(bits, type); });
  }
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
