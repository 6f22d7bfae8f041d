// SPDX-License-Identifier: Apache-2.0
// gemv_kernels.h in Highway's portable vectors, compiled once per target by gemv_simd.cpp.
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_GEMV_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_GEMV_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_GEMV_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_GEMV_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "fp8/runtime/kernels/gemv_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using Vec = hn::Vec<F32>;
inline constexpr int kVectors = static_cast<int>(16 / hn::MaxLanes(F32()));  ///< of each of a block's halves

/// Two bf16 a lane, the first in its lower half.
HWY_INLINE hn::Vec<U32> LoadPairs(const std::uint16_t* p) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return hn::Set(U32(), pair);
#else
  return hn::BitCast(U32(), hn::LoadU(hn::Repartition<std::uint16_t, U32>(), p));
#endif
}

HWY_INLINE Vec Even(hn::Vec<U32> pairs) { return hn::BitCast(F32(), hn::ShiftLeft<16>(pairs)); }
HWY_INLINE Vec Odd(hn::Vec<U32> pairs) { return hn::BitCast(F32(), hn::And(pairs, hn::Set(U32(), 0xFFFF0000u))); }

/// The second cache gets a row 1 KiB before it is read, on into the next row: the CPU by itself stops at each page. To
/// the first cache, or in several rows at once, it would take up to twice as long.
HWY_INLINE void FetchAhead(const std::uint16_t* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + 1024), 0, 2);
}

/// The sums of M rows of x with one row of w.
template <int M>
struct GemvTile {
  Vec sum[M][2 * kVectors];

  HWY_INLINE GemvTile() {
    for (auto& of_row : sum)
      for (Vec& one : of_row) one = hn::Zero(F32());
  }

  /// One block of w, and of M rows of x that are x_stride apart.
  HWY_INLINE void Add(const std::uint16_t* HWY_RESTRICT w, const std::uint16_t* HWY_RESTRICT x, std::int64_t x_stride) {
    constexpr int kLanes = 16 / kVectors;
    for (int v = 0; v < kVectors; ++v) {
      const auto pairs = LoadPairs(w + 2 * v * kLanes);
      const Vec even = Even(pairs), odd = Odd(pairs);
      for (int i = 0; i < M; ++i) {
        const auto of_row = LoadPairs(x + i * x_stride + 2 * v * kLanes);
        sum[i][v] = hn::MulAdd(even, Even(of_row), sum[i][v]);
        sum[i][kVectors + v] = hn::MulAdd(odd, Odd(of_row), sum[i][kVectors + v]);
      }
    }
  }

  HWY_INLINE float Total(int i) const {
    HWY_ALIGN float s[16];
    for (int v = 0; v < kVectors; ++v)
      hn::Store(hn::Add(sum[i][v], sum[i][kVectors + v]), F32(), s + v * (16 / kVectors));
    for (int half = 8; half != 0; half /= 2)
      for (int j = 0; j < half; ++j) s[j] += s[j + half];
    return s[0];
  }
};

/// Every row of w with the M rows of x.
template <int M>
HWY_INLINE void GemvRows(const GemvRange& range) {
  const std::int64_t whole = range.k / kGemvBlock, rest = range.k % kGemvBlock;
  const std::uint16_t* HWY_RESTRICT x = range.a;
  std::uint16_t last_x[M * kGemvBlock] = {}, last_w[kGemvBlock] = {};
  for (int i = 0; i < M && rest > 0; ++i)
    std::memcpy(last_x + i * kGemvBlock, x + i * range.a_stride + whole * kGemvBlock,
                static_cast<std::size_t>(rest) * 2);
  for (std::int64_t row = 0; row < range.rows; ++row) {
    const std::uint16_t* HWY_RESTRICT w = range.w + row * range.w_stride;
    GemvTile<M> tile;
    for (std::int64_t b = 0; b < whole; ++b) {
      FetchAhead(w + b * kGemvBlock);
      tile.Add(w + b * kGemvBlock, x + b * kGemvBlock, range.a_stride);
    }
    if (rest > 0) {
      std::memcpy(last_w, w + whole * kGemvBlock, static_cast<std::size_t>(rest) * 2);
      tile.Add(last_w, last_x, kGemvBlock);
    }
    for (int i = 0; i < M; ++i) range.sums[i * range.sums_stride + row] = tile.Total(i);
  }
}

inline void Gemv(const GemvRange& range) { range.m == 1 ? GemvRows<1>(range) : GemvRows<2>(range); }

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();
#endif
