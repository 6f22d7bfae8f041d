// SPDX-License-Identifier: Apache-2.0
// The sweep over columns. What later columns are owed by all blocks of columns before is one product; within a block,
// columns lie in vectors of rows, a row of the weight per lane:
//
//   cols      0 ............ first ....... end ............. n
//                            |  block      |  rounded before  |
//   owed [rows, block]  =  e [rows, end ..] . F [first .. end, end ..]^T          multiply()
//   block, right to left   w' = w + owed;  r, e;  owed of the block's columns on the left += e F[., k]
#include <algorithm>
#include <stdexcept>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/rounding.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/rounding/sweep.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

#include "fp8/runtime/kernels/highway/fp8_grid-inl.h"

#ifndef FP8_ROUNDING_SWEEP
#define FP8_ROUNDING_SWEEP
namespace fp8::kernels {

constexpr std::int64_t kBand = 64;   // rows whose vectors stay in the first cache
constexpr std::int64_t kBlock = 64;  // columns

/// A block of columns of a band of rows; arrays are [column][kBand].
struct SweepBlock {
  std::int64_t cols = 0;
  float w[kBlock * kBand], owed[kBlock * kBand];           ///< owed: w' - w
  float scale[kBlock * kBand], scale_inv[kBlock * kBand];  ///< as the block's columns have them
  float factor[kBlock * kBlock];                           ///< of the block, right of its diagonal
  float rounded[kBlock * kBand], error[kBlock * kBand];
  RoundingGrid grid;
};

}  // namespace fp8::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void SweepColumns(SweepBlock& HWY_RESTRICT b) {
  const hn::CappedTag<float, kBand> d;
  for (std::int64_t row = 0; row < kBand; row += static_cast<std::int64_t>(hn::Lanes(d))) {
    for (std::int64_t k = b.cols - 1; k >= 0; --k) {
      const std::int64_t at = k * kBand + row;
      const auto w = hn::LoadU(d, b.w + at);
      const auto owed = hn::LoadU(d, b.owed + at);
      const auto target = hn::IfThenElse(hn::Eq(owed, hn::Zero(d)), w, hn::Add(w, owed));  // -0 stays
      const auto y = hn::Mul(target, hn::LoadU(d, b.scale + at));
      const auto rounded = hn::CopySign(RoundToGrid(d, y, b.grid), y);
      const auto error = hn::Sub(w, hn::Mul(rounded, hn::LoadU(d, b.scale_inv + at)));
      hn::StoreU(rounded, d, b.rounded + at);
      hn::StoreU(error, d, b.error + at);
      for (std::int64_t left = 0; left < k; ++left) {
        float* later = b.owed + left * kBand + row;
        hn::StoreU(hn::Add(hn::LoadU(d, later), hn::Mul(error, hn::Set(d, b.factor[left * kBlock + k]))), d, later);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

using Sweep = void (*)(SweepBlock&);
constexpr Sweep kScalar = HWY_STATIC_DISPATCH(SweepColumns), kAvx2 = FP8_AT_AVX2(SweepColumns),
                kAvx512 = FP8_AT_AVX512(SweepColumns);

/// One band of rows, all columns.
class Band {
 public:
  Band(const CompensatedRounding& args, SweepBlock& block, std::vector<float>& owed)
      : args_(args), block_(block), owed_(owed), sweep_(of_level(kScalar, kAvx2, kAvx512)) {
    block.grid = rounding_grid(args.format, args.max);
  }

  void run(std::int64_t row, std::int64_t rows) {
    row_ = row, rows_ = rows;
    for (std::int64_t end = args_.cols; end > 0; end -= block_.cols) {
      block_.cols = std::min(kBlock, end);
      first_ = end - block_.cols;
      load(end);
      sweep_(block_);
      store();
    }
  }

 private:
  void load(std::int64_t end) {
    const std::int64_t n = args_.cols, cols = block_.cols;
    multiply({args_.error + row_ * n + end, n, 1}, {args_.factor + first_ * n + end, 1, n}, rows_, cols, n - end,
             owed_.data(), cols, false);
    for (std::int64_t k = 0; k < cols; ++k) {
      const std::int64_t col = first_ + k, group = args_.group == nullptr ? 0 : args_.group[col];
      const float* from = args_.factor + col * n + first_;
      std::copy(from + k + 1, from + cols, block_.factor + k * kBlock + k + 1);
      for (std::int64_t r = 0; r < rows_; ++r) {
        block_.w[k * kBand + r] = args_.w[(row_ + r) * n + col];
        block_.owed[k * kBand + r] = owed_[r * cols + k];
        block_.scale[k * kBand + r] = args_.scale[group * args_.rows + row_ + r];
        block_.scale_inv[k * kBand + r] = args_.scale_inv[group * args_.rows + row_ + r];
      }
      for (std::int64_t r = rows_; r < kBand; ++r) {
        const std::int64_t at = k * kBand + r;
        block_.w[at] = block_.owed[at] = 0, block_.scale[at] = block_.scale_inv[at] = 1;
      }
    }
  }

  void store() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t to = (row_ + r) * args_.cols + first_;
      for (std::int64_t k = 0; k < block_.cols; ++k) {
        args_.rounded[to + k] = block_.rounded[k * kBand + r];
        args_.error[to + k] = block_.error[k * kBand + r];
      }
    }
  }

  const CompensatedRounding& args_;
  SweepBlock& block_;
  std::vector<float>& owed_;
  const Sweep sweep_;
  std::int64_t row_ = 0, rows_ = 0, first_ = 0;
};

}  // namespace

void round_compensated(const CompensatedRounding& args) {
  if (args.rows < 0 || args.cols < 0) throw std::invalid_argument("round_compensated: sizes must not be negative");
  check_cast_max("round_compensated", args.format, args.max);
  if (args.rows == 0 || args.cols == 0) return;
  for (const void* pointer : {static_cast<const void*>(args.w), static_cast<const void*>(args.factor),
                              static_cast<const void*>(args.scale), static_cast<const void*>(args.scale_inv),
                              static_cast<const void*>(args.rounded), static_cast<const void*>(args.error)})
    if (pointer == nullptr) throw std::invalid_argument("round_compensated: only group may be null");
  parallel_for(args.rows, kBand, [&](std::int64_t begin, std::int64_t end) {
    const auto block = std::make_unique<SweepBlock>();
    std::vector<float> owed(kBand * kBlock);
    Band band(args, *block, owed);
    for (std::int64_t row = begin; row < end; row += kBand) band.run(row, std::min(kBand, end - row));
  });
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
