// SPDX-License-Identifier: Apache-2.0
// The f32 products of attention.h in Highway's portable vectors, compiled once per target by f32_math.cpp. A tile is
// kTileRows rows of c by two vectors of columns held in registers; the columns of b for it lie packed as [k][2 *
// lanes].
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_F32_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_F32_MATH_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_F32_MATH_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_F32_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include "fp8/runtime/kernels/attention.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kTileRows = 6;
constexpr std::int64_t kPanelDepth = 256;  // k per packed panel: 32 KiB with 512-bit vectors

/// c[kRows, 2 vectors] (+)= a[kRows, k] . panel[k, 2 vectors], the sums of each element in ascending k.
template <int kRows>
HWY_INLINE void Tile(const float* HWY_RESTRICT a, std::int64_t a_row, std::int64_t a_col,
                     const float* HWY_RESTRICT panel, std::int64_t k, float* HWY_RESTRICT c, std::int64_t c_stride,
                     bool first) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;
  V left[kRows], right[kRows];
  for (int r = 0; r < kRows; ++r) {
    left[r] = first ? hn::Zero(d) : hn::LoadU(d, c + r * c_stride);
    right[r] = first ? hn::Zero(d) : hn::LoadU(d, c + r * c_stride + lanes);
  }
  for (std::int64_t p = 0; p < k; ++p) {
    const V b0 = hn::Load(d, panel), b1 = hn::Load(d, panel + lanes);
    panel += 2 * lanes;
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(d, a[r * a_row + p * a_col]);
      left[r] = hn::Add(left[r], hn::Mul(x, b0));
      right[r] = hn::Add(right[r], hn::Mul(x, b1));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    hn::StoreU(left[r], d, c + r * c_stride);
    hn::StoreU(right[r], d, c + r * c_stride + lanes);
  }
}

inline void TileOf(int rows, const float* a, std::int64_t a_row, std::int64_t a_col, const float* panel, std::int64_t k,
                   float* c, std::int64_t c_stride, bool first) {
  switch (rows) {
    case 1: return Tile<1>(a, a_row, a_col, panel, k, c, c_stride, first);
    case 2: return Tile<2>(a, a_row, a_col, panel, k, c, c_stride, first);
    case 3: return Tile<3>(a, a_row, a_col, panel, k, c, c_stride, first);
    case 4: return Tile<4>(a, a_row, a_col, panel, k, c, c_stride, first);
    case 5: return Tile<5>(a, a_row, a_col, panel, k, c, c_stride, first);
    default: return Tile<6>(a, a_row, a_col, panel, k, c, c_stride, first);
  }
}

/// Columns [j, j + width) of rows [p, p + depth) of b, padded with zeros to 2 vectors.
inline void Pack(const F32View& b, std::int64_t p, std::int64_t depth, std::int64_t j, std::int64_t width,
                 std::int64_t columns, float* HWY_RESTRICT panel) {
  const float* from = b.data + p * b.row_stride + j * b.col_stride;
  if (width < columns) {
    for (std::int64_t i = 0; i < depth * columns; ++i) panel[i] = 0;
  }
  if (b.col_stride == 1) {
    for (std::int64_t r = 0; r < depth; ++r) {
      for (std::int64_t c = 0; c < width; ++c) panel[r * columns + c] = from[r * b.row_stride + c];
    }
    return;
  }
  for (std::int64_t c = 0; c < width; ++c) {
    for (std::int64_t r = 0; r < depth; ++r) panel[r * columns + c] = from[r * b.row_stride + c * b.col_stride];
  }
}

inline void Multiply(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
                     std::int64_t c_stride, bool accumulate) {
  const hn::ScalableTag<float> d;
  constexpr std::size_t kMostColumns = 2 * hn::MaxLanes(hn::ScalableTag<float>());
  const auto columns = static_cast<std::int64_t>(2 * hn::Lanes(d));
  HWY_ALIGN float panel[kPanelDepth * kMostColumns];
  HWY_ALIGN float edge[kTileRows * kMostColumns];
  for (std::int64_t j = 0; j < n; j += columns) {
    const std::int64_t width = n - j < columns ? n - j : columns;
    for (std::int64_t p = 0; p == 0 || p < k; p += kPanelDepth) {
      const std::int64_t depth = k - p < kPanelDepth ? k - p : kPanelDepth;
      const bool first = p == 0 && !accumulate;
      Pack(b, p, depth, j, width, columns, panel);
      for (std::int64_t i = 0; i < m; i += kTileRows) {
        const int rows = static_cast<int>(m - i < kTileRows ? m - i : kTileRows);
        const float* x = a.data + i * a.row_stride + p * a.col_stride;
        float* y = c + i * c_stride + j;
        if (width == columns) {
          TileOf(rows, x, a.row_stride, a.col_stride, panel, depth, y, c_stride, first);
          continue;
        }
        for (int r = 0; r < rows; ++r) {  // a tile that is cut at the right: through a whole one
          for (std::int64_t q = 0; q < columns; ++q)
            edge[r * columns + q] = !first && q < width ? y[r * c_stride + q] : 0;
        }
        TileOf(rows, x, a.row_stride, a.col_stride, panel, depth, edge, columns, false);
        for (int r = 0; r < rows; ++r) {
          for (std::int64_t q = 0; q < width; ++q) y[r * c_stride + q] = edge[r * columns + q];
        }
      }
    }
  }
}

/// 2^n for whole n in [-126, 127].
template <class D, class V>
HWY_INLINE hn::Vec<D> PowerOfTwo(D d, V n) {
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(hn::RebindToSigned<D>(), 127))));
}

template <class D, class V>
HWY_INLINE V Exp(D d, V input) {
  const hn::RebindToSigned<D> di;
  const V x = hn::Min(hn::Max(input, hn::Set(d, -105.0f)), hn::Set(d, 89.0f));
  // round(x log2 e): adding 1.5 * 2^23 leaves no bits for a fraction
  const V magic = hn::Set(d, 12582912.0f);
  const V n = hn::Sub(hn::Add(hn::Mul(x, hn::Set(d, 1.44269504f)), magic), magic);
  // ln 2 = 0.693359375 - 2.12194440e-4; n times the first part is exact
  V r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f)));
  r = hn::Add(r, hn::Mul(n, hn::Set(d, 2.12194440e-4f)));
  V y = hn::Set(d, 1.0f / 5040);  // the Taylor series: |r| <= 0.35, so the first term left out is below 6e-9
  for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    y = hn::Add(hn::Mul(y, r), hn::Set(d, term));
  }
  const auto whole = hn::ConvertTo(di, n), half = hn::ShiftRight<1>(whole);  // two steps reach the subnormals
  y = hn::Mul(hn::Mul(y, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(whole, half)));
  return hn::IfThenElse(hn::Eq(input, input), y, input);
}

inline void ExpShifted(float* HWY_RESTRICT x, std::int64_t count, float shift) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d), n = static_cast<std::size_t>(count);
  const auto s = hn::Set(d, shift);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(Exp(d, hn::Sub(hn::LoadU(d, x + i), s)), d, x + i);
  if (i == n) return;
  HWY_ALIGN float rest[hn::MaxLanes(hn::ScalableTag<float>())] = {};
  for (std::size_t j = 0; i + j < n; ++j) rest[j] = x[i + j];
  hn::Store(Exp(d, hn::Sub(hn::Load(d, rest), s)), d, rest);
  for (std::size_t j = 0; i + j < n; ++j) x[i + j] = rest[j];
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
