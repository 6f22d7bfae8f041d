// SPDX-License-Identifier: Apache-2.0
// Squared errors of a weight under each candidate for its scale, in Highway's portable vectors.
//
// Values are widened to f32 into a buffer that stays in the first cache while all candidates pass over it. A cast is
// rounded on the number line (highway/fp8_grid-inl.h): r = RNE(clamp(w * scale_j)),
// error_j += (w * scale_j - r)^2, in units of scale_inv_j.
//
// Sums have 16 lanes and an order of their own, whatever the width of a vector: a choice is the same everywhere.
#include "fp8/runtime/kernels/scale_search.h"

#include <algorithm>
#include <limits>

#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/cast/scale_search.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

#include "fp8/runtime/kernels/highway/fp8_grid-inl.h"

#ifndef FP8_SCALE_SEARCH_LANES
#define FP8_SCALE_SEARCH_LANES
namespace fp8::kernels {
constexpr std::size_t kLanes = 16;  // of a sum
}  // namespace fp8::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// sums[lane] of (w * scale - its rounding)^2 over values, n of them, a multiple of kLanes.
void SquaredErrors(const float* HWY_RESTRICT w, std::size_t n, float scale, const RoundingGrid& grid,
                   float* HWY_RESTRICT sums) {
  const hn::CappedTag<float, kLanes> d;
  const auto multiplier = hn::Set(d, scale);
  for (std::size_t part = 0; part < kLanes; part += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (std::size_t i = part; i < n; i += kLanes) {
      const auto y = hn::Mul(hn::LoadU(d, w + i), multiplier);
      const auto error = hn::Sub(y, RoundToGrid(d, y, grid));
      sum = hn::Add(sum, hn::Mul(error, error));
    }
    hn::StoreU(sum, d, sums + part);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

using Errors = void (*)(const float*, std::size_t, float, const RoundingGrid&, float*);
constexpr Errors kScalar = HWY_STATIC_DISPATCH(SquaredErrors), kAvx2 = FP8_AT_AVX2(SquaredErrors),
                 kAvx512 = FP8_AT_AVX512(SquaredErrors);

constexpr std::size_t kBuffer = 1024;  // values that are widened at a time
constexpr std::int64_t kGrain = 16 * 1024;

float pairwise(float* sums) {
  for (std::size_t n = kLanes / 2; n > 0; n /= 2) {
    for (std::size_t i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

/// The values of one unit, in pieces as they fill the buffer.
class UnitErrors {
 public:
  UnitErrors(const CastArgs& args, float scale_inv, double* errors)
      : args_(args),
        grid_(rounding_grid(args.format, args.saturation())),
        kernel_(of_level(kScalar, kAvx2, kAvx512)),
        errors_(errors) {
    std::fill(errors, errors + kScaleCandidates, 0.0);
    for (int i = 0; i < kScaleCandidates; ++i) scale_inv_[i] = scale_candidate(scale_inv, i);
  }

  /// n values from `x` on.
  void add(const char* x, std::int64_t n) {
    const std::int64_t size = size_of(args_.type);
    while (n > 0) {
      const std::int64_t count = std::min<std::int64_t>(n, static_cast<std::int64_t>(kBuffer - filled_));
      widen(x, count);
      x += count * size;
      n -= count;
      filled_ += (static_cast<std::size_t>(count) + kLanes - 1) / kLanes * kLanes;
      if (filled_ == kBuffer) flush();
    }
  }

  /// In units of the weight. A candidate that is too small for a multiplier into fp8 is none.
  void finish() {
    flush();
    for (int i = 0; i < kScaleCandidates; ++i) {
      const double unit = scale_inv_[i];
      errors_[i] = scale_inv_[i] >= std::numeric_limits<float>::min() ? errors_[i] * unit * unit
                                                                      : std::numeric_limits<double>::infinity();
    }
  }

 private:
  /// Up to whole lanes, with zeros, which no scale has an error for.
  void widen(const char* x, std::int64_t n) {
    float* to = buffer_ + filled_;
    for (std::int64_t i = 0; i < n; ++i) to[i] = load_element(x, args_.type, i);
    for (std::size_t i = static_cast<std::size_t>(n); i % kLanes != 0; ++i) to[i] = 0;
  }

  void flush() {
    for (int i = 0; filled_ > 0 && i < kScaleCandidates; ++i) {
      float sums[kLanes];
      kernel_(buffer_, filled_, 1.0f / scale_inv_[i], grid_, sums);
      errors_[i] += pairwise(sums);
    }
    filled_ = 0;
  }

  const CastArgs& args_;
  const RoundingGrid grid_;
  const Errors kernel_;
  double* errors_;
  float scale_inv_[kScaleCandidates];
  float buffer_[kBuffer];
  std::size_t filled_ = 0;
};

void check(const CastArgs& args, const float* scale_inv, const double* errors) {
  check_matrix("scale_errors", args.rows, args.cols, args.row_stride);
  check_cast_max("scale_errors", args.format, args.saturation());
  const bool along = args.layout.along_rows() && args.layout.cols == 0;
  if (!along && !args.layout.has_blocks())
    throw std::invalid_argument("scale_errors: expected a scale per tensor, row or block");
  if (args.rows > 0 && (scale_inv == nullptr || errors == nullptr || (args.cols > 0 && args.x == nullptr)))
    throw std::invalid_argument("scale_errors: x, scale_inv and errors must not be null for a non-empty matrix");
}

}  // namespace

float scale_candidate(float scale_inv, int i) {
  // 2^(n / 16) as f32: one rounding, and exact doubles of each other an octave apart.
  constexpr float kSixteenth[] = {0x1p0f,        0x1.0b5586p0f, 0x1.172b84p0f, 0x1.2387a6p0f,
                                  0x1.306fe0p0f, 0x1.3dea64p0f, 0x1.4bfdaep0f, 0x1.5ab07ep0f,
                                  0x1.6a09e6p0f, 0x1.7a1148p0f, 0x1.8ace54p0f, 0x1.9c4918p0f,
                                  0x1.ae89fap0f, 0x1.c199bep0f, 0x1.d5818ep0f, 0x1.ea4afap0f};
  const int j = i + kFirstScaleStep, octave = j < 0 ? -1 : j / 16;
  return scale_inv * (octave < 0 ? 0.5f : octave > 0 ? 2.0f : 1.0f) * kSixteenth[j - 16 * octave];
}

int least_error(const double* errors) {
  const auto* const end = errors + kScaleCandidates;
  if (std::all_of(errors, end, [](double e) { return e == 0; })) return -kFirstScaleStep;  // zeros
  return static_cast<int>(std::min_element(errors, end) - errors);
}

void scale_errors(const CastArgs& args, const float* scale_inv, double* errors) {
  check(args, scale_inv, errors);
  const ScaleLayout& layout = args.layout;
  const bool blocks = layout.has_blocks();
  const std::int64_t unit_rows = blocks ? layout.rows : 1, unit_cols = blocks ? layout.cols : args.cols,
                     across = blocks ? blocks_of(args.cols, layout.cols) : 1,
                     units = blocks_of(args.rows, unit_rows) * across;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, unit_rows * unit_cols));
  parallel_each(units, grain, [&](std::int64_t unit) {
    const std::int64_t row = unit / across * unit_rows, col = unit % across * unit_cols;
    UnitErrors sum(args, scale_inv[layout.one() ? 0 : unit], errors + unit * kScaleCandidates);
    for (std::int64_t r = row; r < std::min(args.rows, row + unit_rows); ++r)
      sum.add(static_cast<const char*>(args.x) + (r * args.row_stride + col) * size_of(args.type),
              std::min(unit_cols, args.cols - col));
    sum.finish();
  });
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
