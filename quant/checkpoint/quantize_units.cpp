// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/quantize_units.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant::units {
namespace {

/// Transposed codes are written, and transposed weights read, in runs of a chunk's rows: longer runs, fewer of them.
constexpr std::uint64_t kTransposedChunkBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kPartBytes = std::uint64_t{32} << 20;

float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

/// One weight in the source, in chunks of rows.
class Rows {
 public:
  Rows(const Shared& shared, const Weight& weight)
      : shared_(shared),
        weight_(weight),
        type_(float_type(dtype())),
        bytes_(static_cast<std::uint64_t>(weight.spec.cols * io::size_of(dtype()))) {}

  recipes::FloatType type() const { return type_; }
  std::uint64_t row_bytes() const { return bytes_; }
  /// Rows that belong together: those of a block.
  std::int64_t grain() const {
    return weight_.spec.scheme.weights == WeightGranularity::block
               ? std::max<std::int64_t>(weight_.spec.scheme.block.rows, 1)
               : 1;
  }

  /// body(first_row, rows, data) over [begin, end).
  template <class Body>
  void each(UnitContext& context, std::int64_t begin, std::int64_t end, Body body) const {
    const bool transposed = shared_.form.stores_transposed() || weight_.source.is_transposed();
    const std::uint64_t chunk = transposed ? kTransposedChunkBytes : io::kChunkBytes;
    const std::int64_t step =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk / std::max<std::uint64_t>(bytes_, 1)) / grain()) *
        grain();
    for (std::int64_t row = begin; row < end; row += step) {
      const std::int64_t rows = std::min(step, end - row);
      context.in.resize(static_cast<std::uint64_t>(rows) * bytes_);
      read_rows(shared_.source, weight_.source, row, rows, context.in.data(), context.scratch);
      body(row, rows);
    }
  }

 private:
  io::DType dtype() const { return shared_.source.info(weight_.source.tensor).dtype; }

  const Shared& shared_;
  const Weight& weight_;
  recipes::FloatType type_;
  std::uint64_t bytes_;
};

float tensor_amax(const Shared& shared, const Weight& w, UnitContext& context) {
  const Rows rows(shared, w);
  float largest = 0;
  rows.each(context, 0, w.spec.rows, [&](std::int64_t, std::int64_t count) {
    largest = larger(kernels::amax(context.in.data(), rows.type(), count * w.spec.cols), largest);
    context.advance(0);
  });
  if (!std::isfinite(largest)) refuse_nonfinite(shared.source, w.source);
  check_measured_weight(w.module, largest);
  return largest;
}

/// A search needs all of the weight in memory.
WeightScales searched(const Shared& shared, const Weight& w) {
  const auto dtype = shared.source.info(w.source.tensor).dtype;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(w.source.values() * io::size_of(dtype))), scratch;
  read_rows(shared.source, w.source, 0, w.spec.rows, all.data(), scratch);
  return searched_weight_scales(all.data(), float_type(dtype), w.spec.rows, w.spec.cols, w.spec.scheme,
                                w.source.place());
}

void per_tensor(const Shared& shared, const std::vector<Weight>& weights, UnitContext& context) {
  float amax = 0;
  for (const auto& w : weights) amax = std::max(amax, tensor_amax(shared, w, context));
  for (const auto& w : weights) {
    const Rows rows(shared, w);
    const WeightScales scales =
        searches(w.spec.scheme) ? searched(shared, w) : weight_scales({amax}, w.spec.scheme, w.source.place());
    Underflow lost;
    rows.each(context, 0, w.spec.rows, [&](std::int64_t row, std::int64_t count) {
      context.out.resize(static_cast<std::size_t>(count * w.spec.cols));
      cast_weight_rows(context.in.data(), rows.type(), count, w.spec.cols, 0, scales, w.spec.scheme,
                       context.out.data());
      lost.add(underflow_of_codes(context.in.data(), rows.type(), count * w.spec.cols, context.out.data()));
      shared.form.write_codes(context, w.spec, context.out.data(), row, count);
      context.advance(context.in.size());
    });
    if (w.spec.rows == 0) context.advance(0);
    shared.lost.add(w.spec.module, lost);
    shared.form.write_scales(context, w.spec, shared.config, scales.scale_inv);
  }
}

/// A weight whose rows, or rows of blocks, are independent: its ranges fill one list of scales.
class Ranges {
 public:
  Ranges(const Shared& shared, Weight weight)
      : shared_(shared),
        w_(std::move(weight)),
        rows_(shared_, w_),
        grid_(scale_grid(w_.spec.scheme, w_.spec.rows, w_.spec.cols)),
        scale_inv_(static_cast<std::size_t>(grid_.size())),
        parts_(part_count()),
        largest_(parts_, 0.0f),
        lost_(parts_) {}

  std::size_t parts() const { return parts_; }

  /// One of parts() ranges.
  void run(UnitContext& context, std::size_t part) {
    const std::int64_t grains = (w_.spec.rows + rows_.grain() - 1) / rows_.grain(),
                       n = static_cast<std::int64_t>(parts_), i = static_cast<std::int64_t>(part);
    const std::int64_t begin = grains * i / n * rows_.grain(),
                       end = std::min(w_.spec.rows, grains * (i + 1) / n * rows_.grain());
    rows_.each(context, begin, end, [&](std::int64_t row, std::int64_t count) {
      context.out.resize(static_cast<std::size_t>(count * w_.spec.cols));
      const std::vector<float> made = w_.spec.scheme.weights == WeightGranularity::block
                                          ? blocks(context, count, largest_[part])
                                          : channels(context, count, largest_[part]);
      lost_[part].add(underflow_of_codes(context.in.data(), rows_.type(), count * w_.spec.cols, context.out.data()));
      std::copy(made.begin(), made.end(), scale_inv_.begin() + row / grid_.block_rows * grid_.cols);
      shared_.form.write_codes(context, w_.spec, context.out.data(), row, count);
      context.advance(context.in.size());
    });
    if (begin == end) context.advance(0);
  }

  /// After all of them.
  void finish(UnitContext& context) {
    check_measured_weight(w_.module, *std::max_element(largest_.begin(), largest_.end()));
    Underflow lost;
    for (const auto& part : lost_) lost.add(part);
    shared_.lost.add(w_.spec.module, lost);
    shared_.form.write_scales(context, w_.spec, shared_.config, scale_inv_);
  }

 private:
  std::size_t part_count() const {
    const std::uint64_t bytes = static_cast<std::uint64_t>(w_.spec.rows) * rows_.row_bytes();
    const auto most = static_cast<std::uint64_t>(std::max<std::int64_t>(1, w_.spec.rows / rows_.grain()));
    return static_cast<std::size_t>(bytes <= 2 * kPartBytes ? 1 : std::min(bytes / kPartBytes, most));
  }

  /// A row's scale needs that row only: amax and cast while it is in cache.
  std::vector<float> channels(UnitContext& context, std::int64_t count, float& largest) const {
    const auto& scheme = w_.spec.scheme;
    std::vector<float> amax(static_cast<std::size_t>(count));
    kernels::amax_rows(context.in.data(), rows_.type(), count, w_.spec.cols, w_.spec.cols, amax.data());
    for (const float a : amax) largest = larger(a, largest);
    if (!std::isfinite(largest)) refuse_nonfinite(shared_.source, w_.source);
    WeightScales scales =
        searches(scheme) ? searched_weight_scales(context.in.data(), rows_.type(), count, w_.spec.cols, scheme, place_)
                         : weight_scales(amax, scheme, place_, rows_.type());
    cast_weight_rows(context.in.data(), rows_.type(), count, w_.spec.cols, 0, scales, scheme, context.out.data());
    return std::move(scales.scale_inv);
  }

  std::vector<float> blocks(UnitContext& context, std::int64_t count, float& largest) const {
    if (w_.module.measured_weight_amax.has_value())
      largest = larger(kernels::amax(context.in.data(), rows_.type(), count * w_.spec.cols), largest);
    try {
      return quantize_weight_blocks(context.in.data(), rows_.type(), count, w_.spec.cols, w_.spec.scheme, place_,
                                    context.out.data());
    } catch (const std::invalid_argument&) {
      if (count_nonfinite(shared_.source, w_.source).any()) refuse_nonfinite(shared_.source, w_.source);
      throw;
    }
  }

  const Shared& shared_;
  const Weight w_;
  const std::string place_ = w_.source.place();  // for messages
  const Rows rows_;
  const ScaleGrid grid_;
  std::vector<float> scale_inv_;
  std::size_t parts_;
  std::vector<float> largest_;  // per part
  std::vector<Underflow> lost_;
};

}  // namespace

Unit quantize_unit(const Shared& shared, std::vector<Weight> weights) {
  Unit unit;
  unit.name = weights.front().spec.module;
  for (const auto& w : weights) {
    unit.source_bytes +=
        static_cast<std::uint64_t>(w.source.values() * io::size_of(shared.source.info(w.source.tensor).dtype));
    for (auto& e : shared.form.entries(w.spec, shared.config)) unit.entries.push_back(std::move(e));
  }
  if (weights.front().spec.scheme.weights == WeightGranularity::tensor) {
    unit.run = [&shared, weights = std::move(weights)](UnitContext& context) { per_tensor(shared, weights, context); };
    return unit;
  }
  const auto ranges = std::make_shared<Ranges>(shared, std::move(weights.front()));
  for (std::size_t i = 0; i < ranges->parts(); ++i)
    unit.parts.push_back([ranges, i](UnitContext& context) { ranges->run(context, i); });
  unit.run = [ranges](UnitContext& context) { ranges->finish(context); };
  return unit;
}

}  // namespace fp8::quant::units
