// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {
namespace {

using recipes::FloatType;

float largest_of(FloatType type) {
  return type == FloatType::F16 ? 65504.0f : type == FloatType::BF16 ? 0x1.FEp127f : std::numeric_limits<float>::max();
}

/// Those of one group have one scale.
std::string group_key(const PlannedWeight& w) { return w.fuse_group.empty() ? w.to.module : w.fuse_group; }

}  // namespace

/// A weight being made; its parts share it.
struct ReformedWeights::Work {
  explicit Work(const PlannedWeight& planned) : w(planned) {}
  const PlannedWeight& w;
  std::once_flag once;
  std::vector<float> from, to;  // scale_inv, of the whole weight
  WeightScales tensor;          // requantized per tensor
  bool may_overflow = false;    // decoded: the type may not hold every value
  std::mutex mutex;
  double largest = 0, largest_value = 0;  // max |w - w'|, max |w|
};

ReformedWeights::ReformedWeights(const io::Checkpoint& source, const ConvertPlan& plan,
                                 const std::map<std::string, NonFinite>& nonfinite)
    : source_(source), plan_(plan), nonfinite_(nonfinite), errors_(plan.weights.size()) {
  for (const auto& w : plan.weights) groups_.try_emplace(group_key(w));
}

Unit ReformedWeights::unit_of(const PlannedWeight& w) {
  Unit unit;
  unit.name = w.output();
  if (w.change == Change::decoded) {
    unit.entries = {{w.output(), file_type(plan_.type), {w.to.rows, w.to.cols}}};
  } else {
    unit.entries = plan_.form->entries(w.to, plan_.config);
  }
  unit.source_bytes = static_cast<std::uint64_t>(w.to.rows * w.to.cols);
  const auto work = std::make_shared<Work>(w);
  const std::int64_t chunk = chunk_rows(w);
  const std::int64_t part =
      std::max<std::int64_t>(1, kPartCodes / std::max<std::int64_t>(1, chunk * w.to.cols)) * chunk;
  const bool in_parts = w.to.rows > 2 * part;
  for (std::int64_t row = 0; in_parts && row < w.to.rows; row += part) {
    unit.parts.push_back([this, work, row, last = std::min(row + part, w.to.rows)](UnitContext& context) {
      convert_rows(context, *work, row, last);
    });
  }
  unit.run = [this, work, in_parts](UnitContext& context) {
    if (!in_parts) convert_rows(context, *work, 0, work->w.to.rows);
    finish_weight(context, *work);
  };
  return unit;
}

/// Transposed codes are read or written in runs of as many bytes as there are rows: few, long ones.
std::int64_t ReformedWeights::chunk_rows(const PlannedWeight& w) const {
  const bool transposed = w.from.transposed || (w.change != Change::decoded && plan_.form->stores_transposed());
  return rows_per_chunk(w, transposed);
}

void ReformedWeights::load_scales(UnitContext& context, Work& work) {
  std::call_once(work.once, [&] {
    const auto& w = work.w;
    work.from = read_scale_inv(source_, w.from);
    const std::int64_t rows = w.to.rows, cols = w.to.cols;
    if (w.change == Change::decoded) {
      const float largest = work.from.empty() ? 0.0f : *std::max_element(work.from.begin(), work.from.end());
      work.may_overflow = !(largest * kernels::fp8_max(w.from.spec.scheme.format, w.from.spec.scheme.dialect) <=
                            largest_of(plan_.type));
    } else if (w.change == Change::requantized) {
      work.to.assign(static_cast<std::size_t>(scale_grid(w.to.scheme, rows, cols).size()), 0.0f);
      if (w.to.scheme.weights != WeightGranularity::tensor) return;
      work.tensor = weight_scales({tensor_amax(context, w)}, w.to.scheme, w.to.module);
      work.to = work.tensor.scale_inv;
    } else {
      work.to = spread_scales(work.from, w.from.spec.scheme, w.to.scheme, rows, cols);
      for (auto& s : work.to) s = plan_.rescaling.scale_inv(s, w.to.module);
    }
  });
}

void ReformedWeights::convert_rows(UnitContext& context, Work& work, std::int64_t first, std::int64_t last) {
  load_scales(context, work);
  const auto& w = work.w;
  const std::int64_t step = chunk_rows(w), cols = w.to.cols;
  for (std::int64_t row = first; row < last; row += step) {
    const std::int64_t rows = std::min(step, last - row);
    context.in.resize(static_cast<std::size_t>(rows * cols));
    read_code_rows(source_, w.from, row, rows, context.in.data(), allowed(w.from.weight));
    switch (w.change) {
      case Change::decoded:
        decode(context, work, row, rows);
        break;
      case Change::rescaled:
        rescale(context, work, row, rows);
        break;
      case Change::requantized:
        requantize(context, work, row, rows);
        break;
      case Change::unchanged:
      case Change::spread:
        plan_.form->write_codes(context, w.to, context.in.data(), row, rows);
        break;
    }
    context.advance(context.in.size());
  }
}

void ReformedWeights::decode_source(const Work& work, const std::uint8_t* codes, std::int64_t row, std::int64_t rows,
                                    void* y, FloatType type) {
  decode_weight_rows(codes, rows, work.w.to.cols, row, work.from.data(), static_cast<std::int64_t>(work.from.size()),
                     work.w.from.spec.scheme, y, type);
}

/// Whether a finite value of the rows just decoded became infinite.
bool ReformedWeights::overflows(const UnitContext& context, const Work& work, std::int64_t row,
                                std::int64_t rows) const {
  const std::int64_t n = rows * work.w.to.cols;
  if (!allowed(work.w.from.weight)) return !std::isfinite(kernels::amax(context.out.data(), plan_.type, n));
  std::vector<float> values(static_cast<std::size_t>(n));
  std::vector<std::uint8_t> typed(context.out.size());
  decode_source(work, context.in.data(), row, rows, values.data(), FloatType::F32);
  return !cast_floats(values.data(), FloatType::F32, n, plan_.type, typed.data());
}

void ReformedWeights::decode(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
  const std::int64_t cols = work.w.to.cols, size = kernels::size_of(plan_.type);
  context.out.resize(static_cast<std::size_t>(rows * cols * size));
  decode_source(work, context.in.data(), row, rows, context.out.data(), plan_.type);
  if (work.may_overflow && overflows(context, work, row, rows)) {
    throw io::Error(source_.folder().string() + ": " + work.w.from.weight + ": holds values that leave the range of " +
                    kernels::name_of(plan_.type));
  }
  context.write(work.w.output(), context.out.data(), static_cast<std::uint64_t>(row * cols * size), context.out.size());
}

/// codes: what is written, scaled by work.to. before: the values that they stand for.
void ReformedWeights::note_deviation(Work& work, const std::vector<float>& before, const std::uint8_t* codes,
                                     std::int64_t row, std::int64_t rows) {
  std::vector<float> after(before.size());
  decode_weight_rows(codes, rows, work.w.to.cols, row, work.to.data(), static_cast<std::int64_t>(work.to.size()),
                     work.w.to.scheme, after.data(), FloatType::F32);
  Deviation d;
  d.add(before.data(), after.data(), static_cast<std::int64_t>(before.size()));
  const std::lock_guard lock(work.mutex);
  work.largest = std::max(work.largest, d.largest);
  work.largest_value = std::max(work.largest_value, d.largest_value);
}

void ReformedWeights::rescale(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
  std::vector<float> values(context.in.size());
  decode_source(work, context.in.data(), row, rows, values.data(), FloatType::F32);
  plan_.rescaling.apply(context.in.data(), static_cast<std::int64_t>(context.in.size()));
  plan_.form->write_codes(context, work.w.to, context.in.data(), row, rows);
  note_deviation(work, values, context.in.data(), row, rows);
}

void ReformedWeights::requantize(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
  const Scheme& scheme = work.w.to.scheme;
  const std::int64_t cols = work.w.to.cols;
  const std::string& module = work.w.to.module;
  std::vector<float> values(context.in.size());
  decode_source(work, context.in.data(), row, rows, values.data(), FloatType::F32);
  context.out.resize(context.in.size());
  if (scheme.weights == WeightGranularity::block) {
    const auto scales =
        quantize_weight_blocks(values.data(), FloatType::F32, rows, cols, scheme, module, context.out.data());
    const ScaleGrid grid = scale_grid(scheme, work.w.to.rows, cols);
    std::copy(scales.begin(), scales.end(), work.to.begin() + row / grid.block_rows * grid.cols);
  } else if (scheme.weights == WeightGranularity::channel) {
    std::vector<float> amax(static_cast<std::size_t>(rows));
    kernels::amax_rows(values.data(), FloatType::F32, rows, cols, cols, amax.data());
    const WeightScales scales = weight_scales(amax, scheme, module);
    cast_weight_rows(values.data(), FloatType::F32, rows, cols, 0, scales, scheme, context.out.data());
    std::copy(scales.scale_inv.begin(), scales.scale_inv.end(), work.to.begin() + row);
  } else {
    cast_weight_rows(values.data(), FloatType::F32, rows, cols, 0, work.tensor, scheme, context.out.data());
  }
  plan_.form->write_codes(context, work.w.to, context.out.data(), row, rows);
  note_deviation(work, values, context.out.data(), row, rows);
}

/// max |w| of a weight, or of all of its group: engines give those one scale anyway.
float ReformedWeights::tensor_amax(UnitContext& context, const PlannedWeight& of) {
  Group& group = groups_.at(group_key(of));
  const std::lock_guard lock(group.mutex);
  if (group.amax.has_value()) return *group.amax;
  float largest = 0;
  for (const auto& w : plan_.weights) {
    if (w.change == Change::requantized && group_key(w) == group_key(of))
      largest = std::max(largest, weight_amax(context, w));
  }
  group.amax = largest;
  return largest;
}

float ReformedWeights::weight_amax(UnitContext& context, const PlannedWeight& w) const {
  Work work(w);
  work.from = read_scale_inv(source_, w.from);
  const std::int64_t step = chunk_rows(w), cols = w.to.cols;
  std::vector<std::uint8_t> codes;
  std::vector<float> values;
  float largest = 0;
  for (std::int64_t row = 0; row < w.to.rows; row += step) {
    const std::int64_t rows = std::min(step, w.to.rows - row);
    codes.resize(static_cast<std::size_t>(rows * cols));
    values.resize(codes.size());
    read_code_rows(source_, w.from, row, rows, codes.data());
    decode_source(work, codes.data(), row, rows, values.data(), FloatType::F32);
    largest = std::max(largest, kernels::amax(values.data(), FloatType::F32, rows * cols));
    context.advance(0);
  }
  return largest;
}

void ReformedWeights::finish_weight(UnitContext& context, Work& work) {
  const auto& w = work.w;
  if (w.change == Change::decoded) return;
  load_scales(context, work);  // a weight without rows has not come by
  plan_.form->write_scales(context, w.to, plan_.config, work.to);
  if (w.exact) return;
  errors_[static_cast<std::size_t>(&w - plan_.weights.data())] =
      work.largest == 0 ? 0 : work.largest / work.largest_value;
}

}  // namespace fp8::quant
