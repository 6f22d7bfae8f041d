// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/damage/checkpoint_damage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "fp8/quant/checkpoint/quantize_plan.h"
#include "fp8/quant/damage/row_reader.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

/// amax of a planned weight: per row or block, or one value, as the scheme has scales. One NaN for a weight with NaN or
/// Inf.
std::vector<float> amax_of(RowReader reader, const PlannedModule& m, const std::function<bool()>& stop) {
  std::vector<float> amax;
  const std::int64_t step = reader.step(band_of(m.scheme));
  for (std::int64_t row = 0; row < reader.rows(); row += step) {
    check_stop(stop);
    const std::int64_t rows = std::min(step, reader.rows() - row);
    const void* data = reader.read(row, rows);
    std::vector<float> part(static_cast<std::size_t>(rows));
    if (m.scheme.weights == WeightGranularity::block) {
      part = block_amax(data, reader.type(), rows, reader.cols(), m.scheme);
    } else {
      kernels::amax_rows(data, reader.type(), rows, reader.cols(), reader.cols(), part.data());
    }
    amax.insert(amax.end(), part.begin(), part.end());
  }
  if (std::any_of(amax.begin(), amax.end(), [](float a) { return !std::isfinite(a); })) return {std::nanf("")};
  if (m.scheme.weights == WeightGranularity::tensor)
    amax = {amax.empty() ? 0.0f : *std::max_element(amax.begin(), amax.end())};
  return amax;
}

bool holds_nan(const std::vector<float>& amax) { return amax.size() == 1 && std::isnan(amax[0]); }

ModuleDamage damage_of(RowReader reader, const PlannedModule& m, const WeightScales& scales,
                       const std::function<bool()>& stop) {
  ModuleDamage out = ModuleDamage::of(m.info.name, m.info.type, m.scheme, scales.scale_inv);
  const std::int64_t step = reader.step(band_of(m.scheme)), cols = reader.cols();
  for (std::int64_t row = 0; row < reader.rows(); row += step) {
    check_stop(stop);
    const std::int64_t rows = std::min(step, reader.rows() - row);
    out.weight.merge(weight_damage(reader.read(row, rows), reader.type(), rows, cols,
                                   scales.of_rows(row, rows, m.scheme, cols), m.scheme));
  }
  return out;
}

}  // namespace

CheckpointDamage damage_of_checkpoint(const fs::path& model, const CheckpointOptions& options) {
  const CheckpointPlan planned(model, options);
  const io::Checkpoint& source = planned.source();
  const Plan& plan = planned.plan();
  CheckpointDamage out{{}, plan.skipped, plan.warnings};
  if (const std::string notice = planned.modules().notice(); !notice.empty())
    out.warnings.insert(out.warnings.begin(), notice);
  std::vector<RowReader> readers;  // each pass reads with a copy, whose buffers end with it
  std::uint64_t total = 0, done = 0;
  for (const auto& m : plan.modules) {
    readers.emplace_back(source, planned.source_of(m.info.name));
    total += readers.back().bytes();
  }
  const auto advance = [&](std::size_t i) {
    if (options.progress) options.progress(done += readers[i].bytes(), 2 * total);
  };
  std::vector<std::vector<float>> amax;
  std::map<std::string, float> groups;
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const auto& m = plan.modules[i];
    amax.push_back(amax_of(readers[i], m, options.stop));
    if (holds_nan(amax.back())) {
      const WeightSlice weight = planned.source_of(m.info.name);
      out.skipped.push_back(
          {m.info.name, "holds " + count_nonfinite(source, weight).text(static_cast<std::uint64_t>(weight.values()))});
    } else if (!m.fuse_group.empty()) {
      groups[m.fuse_group] = std::max(groups[m.fuse_group], amax.back()[0]);
    }
    advance(i);
  }
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const auto& m = plan.modules[i];
    if (holds_nan(amax[i])) continue;
    if (const auto group = groups.find(m.fuse_group); group != groups.end()) amax[i] = {group->second};
    const WeightScales scales = weight_scales(amax[i], m.scheme, readers[i].place());
    out.modules.push_back(damage_of(readers[i], m, scales, options.stop));
    advance(i);
  }
  return out;
}

}  // namespace fp8::quant
