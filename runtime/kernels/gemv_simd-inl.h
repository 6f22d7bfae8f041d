// SPDX-License-Identifier: Apache-2.0
// gemv_kernels.h in Highway's portable vectors, compiled once per target by gemv_simd.cpp.
#if defined(FP8_RUNTIME_KERNELS_GEMV_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_GEMV_SIMD_INL_H_
#undef FP8_RUNTIME_KERNELS_GEMV_SIMD_INL_H_
#else
#define FP8_RUNTIME_KERNELS_GEMV_SIMD_INL_H_
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

/// The second cache gets a row 2 KiB before it is read, on into the next row: the CPU by itself stops at each page. To
/// the first cache, or in several rows at once, it would take up to twice as long.
HWY_INLINE void FetchAhead(const std::uint16_t* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + 2048), 0, 2);
}

/// The sums of M rows of x with one row of w.
template <int M>
struct GemvTile {
  Vec sum[M][2 * kVectors];

  HWY_INLINE GemvTile() {
    for (auto& of_row : sum)
      for (Vec& one : of_row) one = hn::Zero(F32());
  }

  /// One block of w; x's rows are x_stride apart.
  HWY_INLINE void Add(const std::uint16_t* HWY_RESTRICT w, const float* HWY_RESTRICT x, std::int64_t x_stride) {
    const U32 du;
    constexpr int kLanes = 16 / kVectors;
    for (int v = 0; v < kVectors; ++v) {
      const auto pairs = LoadPairs(w + 2 * v * kLanes);
      const Vec even = hn::BitCast(F32(), hn::ShiftLeft<16>(pairs));
      const Vec odd = hn::BitCast(F32(), hn::And(pairs, hn::Set(du, 0xFFFF0000u)));
      for (int i = 0; i < M; ++i) {
        const float* of_row = x + i * x_stride + v * kLanes;
        sum[i][v] = hn::MulAdd(even, hn::LoadU(F32(), of_row), sum[i][v]);
        sum[i][kVectors + v] = hn::MulAdd(odd, hn::LoadU(F32(), of_row + 16), sum[i][kVectors + v]);
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
  const std::int64_t whole = range.k / kGemvBlock, blocks = (range.k + kGemvBlock - 1) / kGemvBlock;
  const std::int64_t x_stride = blocks * kGemvBlock;
  const float* HWY_RESTRICT x = range.x;
  for (std::int64_t row = 0; row < range.rows; ++row) {
    const std::uint16_t* HWY_RESTRICT w = range.w + row * range.w_stride;
    GemvTile<M> tile;
    for (std::int64_t b = 0; b < whole; ++b) {
      FetchAhead(w + b * kGemvBlock);
      tile.Add(w + b * kGemvBlock, x + b * kGemvBlock, x_stride);
    }
    if (whole < blocks) {
      std::uint16_t last[kGemvBlock] = {};
      std::memcpy(last, w + whole * kGemvBlock, static_cast<std::size_t>(range.k % kGemvBlock) * sizeof(std::uint16_t));
      tile.Add(last, x + whole * kGemvBlock, x_stride);
    }
    for (int i = 0; i < M; ++i) range.sums[i * range.sums_stride + row] = tile.Total(i);
  }
}

inline void Gemv(const GemvRange& range) { range.m == 1 ? GemvRows<1>(range) : GemvRows<2>(range); }

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();
#endif
