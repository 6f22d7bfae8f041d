// SPDX-License-Identifier: Apache-2.0
// Rounding to the values of an fp8 format on the number line, without codes. A constant of the right size, added and
// taken away, rounds to nearest even, for the sum has no bits below a step of the grid:
//
//   c = 1.5 * 2^(23 - mantissa bits) * max(2^floor(log2 |y|), smallest normal)        r = (y + c) - c
#if defined(FP8_RUNTIME_KERNELS_HIGHWAY_FP8_GRID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FP8_RUNTIME_KERNELS_HIGHWAY_FP8_GRID_INL_H_
#undef FP8_RUNTIME_KERNELS_HIGHWAY_FP8_GRID_INL_H_
#else
#define FP8_RUNTIME_KERNELS_HIGHWAY_FP8_GRID_INL_H_
#endif

#include <hwy/highway.h>

#include "fp8/runtime/kernels/format.h"

#ifndef FP8_RUNTIME_KERNELS_HIGHWAY_FP8_GRID_
#define FP8_RUNTIME_KERNELS_HIGHWAY_FP8_GRID_
namespace fp8::kernels {

/// Where a format saturates, where its subnormals begin, and what makes c of a power of two.
struct RoundingGrid {
  float max = 448.0f, smallest_normal = 0x1p-6f, magic = 0x1.8p20f;
};

inline RoundingGrid rounding_grid(Format format, float max) {
  if (format == Format::E4M3) return {max};
  return {max, 0x1p-14f, 0x1.8p21f};
}

}  // namespace fp8::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// y saturated and rounded; the sign of zeros is lost.
template <class D>
HWY_INLINE hn::Vec<D> RoundToGrid(D d, hn::Vec<D> y, const RoundingGrid& grid) {
  const hn::RebindToUnsigned<D> du;
  const auto clamped = hn::Min(hn::Max(y, hn::Set(d, -grid.max)), hn::Set(d, grid.max));
  const auto power = hn::BitCast(d, hn::And(hn::BitCast(du, clamped), hn::Set(du, 0x7F800000u)));
  const auto c = hn::Mul(hn::Max(power, hn::Set(d, grid.smallest_normal)), hn::Set(d, grid.magic));
  return hn::Sub(hn::Add(clamped, c), c);
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
