// SPDX-License-Identifier: Apache-2.0
// The Cholesky factor in f64: f32 would lose what the damping leaves of a matrix whose largest eigenvalue is 10^4 times
// its smallest. Panels of rows; each is factored, then taken off all that is right of and below it.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "fp8/runtime/kernels/rounding.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/rounding/factor.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// R rows of c, `lanes` columns each: -= sum over k of panel[k, row] * panel[k, column].
template <int R, class D>
HWY_INLINE void SubtractTile(D d, const double* HWY_RESTRICT left, const double* HWY_RESTRICT right, std::int64_t k,
                             std::int64_t stride, double* HWY_RESTRICT c) {
  hn::Vec<D> sums[R];
  for (int r = 0; r < R; ++r) sums[r] = hn::Zero(d);
  for (std::int64_t i = 0; i < k; ++i) {
    const auto x = hn::LoadU(d, right + i * stride);
    for (int r = 0; r < R; ++r) sums[r] = hn::Add(sums[r], hn::Mul(hn::Set(d, left[i * stride + r]), x));
  }
  for (int r = 0; r < R; ++r) {
    double* to = c + r * stride;
    hn::StoreU(hn::Sub(hn::LoadU(d, to), sums[r]), d, to);
  }
}

/// R rows of c from column 0 to n.
template <int R>
HWY_INLINE void SubtractRows(const double* left, const double* right, std::int64_t n, std::int64_t k,
                             std::int64_t stride, double* c) {
  const hn::CappedTag<double, 8> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t col = 0;
  for (; col + lanes <= n; col += lanes) SubtractTile<R>(d, left, right + col, k, stride, c + col);
  for (; col < n; ++col) SubtractTile<R>(hn::CappedTag<double, 1>(), left, right + col, k, stride, c + col);
}

/// c [rows, n] -= left^T right over k rows of the panel; all rows `stride` apart.
void SubtractProducts(const double* left, const double* right, std::int64_t rows, std::int64_t n, std::int64_t k,
                      std::int64_t stride, double* c) {
  constexpr int kRows = 8;
  std::int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) SubtractRows<kRows>(left + row, right, n, k, stride, c + row * stride);
  for (; row < rows; ++row) SubtractRows<1>(left + row, right, n, k, stride, c + row * stride);
}

/// y[n] -= a * x[n]
void SubtractScaled(const double* HWY_RESTRICT x, double a, std::int64_t n, double* HWY_RESTRICT y) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Sub(hn::LoadU(d, y + i), hn::Mul(hn::Set(d, a), hn::LoadU(d, x + i))), d, y + i);
  for (; i < n; ++i) y[i] -= a * x[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kPanel = 64;     // rows that are factored at a time
constexpr std::int64_t kColumns = 256;  // of a range of the panel: 128 KiB
constexpr std::int64_t kBlock = 64;     // rows and columns that are subtracted from at a time

struct Kernels {
  void (*products)(const double*, const double*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double*);
  void (*scaled)(const double*, double, std::int64_t, double*);
};
constexpr Kernels kScalar = {HWY_STATIC_DISPATCH(SubtractProducts), HWY_STATIC_DISPATCH(SubtractScaled)},
                  kAvx2 = {FP8_AT_AVX2(SubtractProducts), FP8_AT_AVX2(SubtractScaled)},
                  kAvx512 = {FP8_AT_AVX512(SubtractProducts), FP8_AT_AVX512(SubtractScaled)};

/// `count` rows of a, n long, become those of U. False at a pivot that is not positive.
bool factor_rows(const Kernels& kernels, double* a, std::int64_t count, std::int64_t n, std::int64_t stride) {
  double reciprocals[kPanel];
  const auto eliminate = [&](std::int64_t i, std::int64_t first, std::int64_t last) {
    double* row = a + i * stride;
    for (std::int64_t j = first; j < last; ++j) row[j] *= reciprocals[i];
    for (std::int64_t below = i + 1; below < count; ++below) {
      const std::int64_t from = std::max(first, below);
      if (from < last) kernels.scaled(row + from, row[below], last - from, a + below * stride + from);
    }
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const double pivot = a[i * stride + i];
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    reciprocals[i] = 1 / std::sqrt(pivot);
    eliminate(i, i, count);
  }
  parallel_for(n - count, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t col = begin; col < end; col += kColumns) {
      for (std::int64_t i = 0; i < count; ++i) eliminate(i, count + col, count + std::min(end, col + kColumns));
    }
  });
  return true;
}

/// What a panel of `count` rows takes off the n rows below it. Blocks of columns go past all rows above them, so that
/// the panel's part that they need stays in the second cache.
void subtract_panel(const Kernels& kernels, const double* panel, std::int64_t count, std::int64_t n,
                    std::int64_t stride, double* rest) {
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  parallel_each(blocks, 1, [&](std::int64_t i) {
    const std::int64_t col = (blocks - 1 - i) * kBlock, width = std::min(kBlock, n - col);  // the longest first
    for (std::int64_t row = 0; row <= col; row += kBlock)
      kernels.products(panel + row, panel + col, std::min(kBlock, n - row), width, count, stride,
                       rest + row * stride + col);
  });
}

}  // namespace

bool factor_gram(double* a, std::int64_t n, float* factor) {
  if (n < 0 || (n > 0 && (a == nullptr || factor == nullptr)))
    throw std::invalid_argument("factor_gram: n must not be negative, nor a and factor null");
  const Kernels& kernels = of_level(kScalar, kAvx2, kAvx512);
  for (std::int64_t done = 0; done < n; done += kPanel) {
    const std::int64_t count = std::min(kPanel, n - done), rest = n - done - count;
    double* rows = a + done * n + done;
    if (!factor_rows(kernels, rows, count, n - done, n)) return false;
    subtract_panel(kernels, rows + count, count, rest, n, rows + count * n + count);
  }
  parallel_each(n, 16, [&](std::int64_t k) {
    const double* row = a + k * n;
    for (std::int64_t l = k + 1; l < n; ++l) factor[k * n + l] = static_cast<float>(row[l] / row[k]);
  });
  return true;
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
