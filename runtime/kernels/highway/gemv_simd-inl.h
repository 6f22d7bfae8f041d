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

/// Of several rows in turns (range.streams) each is fetched to the first cache 2 KiB before it is read; a row alone
/// 1 KiB before, to the second cache, on into the next row: the CPU by itself stops at each page.
template <int R>
HWY_INLINE void FetchAhead(const std::uint16_t* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  __builtin_prefetch(reinterpret_cast<const char*>(at + (R > 1 ? 2048 : 1024)), 0, R > 1 ? 3 : 2);
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

/// M rows of x, and what a block at their end takes, filled up with zeros.
template <int M>
struct GemvRowsOfX {
  const std::uint16_t* HWY_RESTRICT x;
  std::int64_t stride, whole, rest;
  std::uint16_t last[M * kGemvBlock] = {};

  HWY_INLINE explicit GemvRowsOfX(const GemvRange& range)
      : x(range.a), stride(range.a_stride), whole(range.k / kGemvBlock), rest(range.k % kGemvBlock) {
    for (int i = 0; i < M && rest > 0; ++i)
      std::memcpy(last + i * kGemvBlock, x + i * stride + whole * kGemvBlock, static_cast<std::size_t>(rest) * 2);
  }
};

/// R rows of w, `apart` rows from one to the next, with the M rows of x.
template <int M, int R>
HWY_INLINE void GemvRows(const GemvRange& range, const GemvRowsOfX<M>& x, std::int64_t row, std::int64_t apart) {
  const std::uint16_t* HWY_RESTRICT w = range.w + row * range.w_stride;
  const std::int64_t step = apart * range.w_stride;
  GemvTile<M> tiles[R];
  for (std::int64_t k = 0; k < x.whole * kGemvBlock; k += kGemvBlock) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      FetchAhead<R>(w + r * step + k);
      tiles[r].Add(w + r * step + k, x.x + k, x.stride);
    }
  }
  for (int r = 0; r < R; ++r) {
    if (x.rest > 0) {
      std::uint16_t last[kGemvBlock] = {};
      std::memcpy(last, w + r * step + x.whole * kGemvBlock, static_cast<std::size_t>(x.rest) * 2);
      tiles[r].Add(last, x.last, kGemvBlock);
    }
    for (int i = 0; i < M; ++i) range.sums[i * range.sums_stride + row + r * apart] = tiles[r].Total(i);
  }
}

/// Every row of w with the M rows of x.
template <int M>
HWY_INLINE void GemvAllRows(const GemvRange& range) {
  const GemvRowsOfX<M> x(range);
  std::int64_t row = 0;
  if constexpr (kVectors == 1) {  // fewer registers would not hold the sums of four
    constexpr int kStreams = 4;
    const std::int64_t apart = range.streams ? range.rows / kStreams : 0;
    for (; row < apart; ++row) GemvRows<M, kStreams>(range, x, row, apart);
    row = kStreams * apart;
  }
  for (; row < range.rows; ++row) GemvRows<M, 1>(range, x, row, 0);
}

inline void Gemv(const GemvRange& range) { range.m == 1 ? GemvAllRows<1>(range) : GemvAllRows<2>(range); }

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();
#endif
