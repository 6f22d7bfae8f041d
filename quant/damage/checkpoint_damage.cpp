// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/damage/checkpoint_damage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "fp8/quant/checkpoint/quantize_plan.h"
#include "fp8/quant/forms/form.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/scheme/float_dtype.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

recipes::FloatType checked_float_type(const io::TensorInfo& info, const fs::path& folder) {
  if (is_float(info.dtype)) return float_type(info.dtype);
  throw io::Error(folder.string() + ": " + info.name + ": expected dtype F32, BF16 or F16, found " +
                  io::name_of(info.dtype));
}

/// A weight, chunk by chunk of its rows.
class RowReader {
 public:
  RowReader(const io::Checkpoint& checkpoint, WeightSlice weight)
      : checkpoint_(checkpoint),
        weight_(std::move(weight)),
        type_(checked_float_type(checkpoint.info(weight_.tensor), checkpoint.folder())) {}
  RowReader(const io::Checkpoint& checkpoint, const std::string& tensor)
      : RowReader(checkpoint, whole_weight(checkpoint.info(tensor))) {}

  recipes::FloatType type() const { return type_; }
  std::int64_t rows() const { return weight_.rows; }
  std::int64_t cols() const { return weight_.cols; }
  std::string place() const { return weight_.place(); }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows()) * row_bytes(); }
  /// Rows to read at a time: a multiple of `band`.
  std::int64_t step(std::int64_t band = 1) const {
    const auto fit = static_cast<std::int64_t>(kPieceBytes / std::max<std::uint64_t>(row_bytes(), 1));
    return band >= rows() ? std::max<std::int64_t>(rows(), 1) : std::max<std::int64_t>(fit / band, 1) * band;
  }

  const void* read(std::int64_t first, std::int64_t rows) {
    buffer_.resize(static_cast<std::uint64_t>(rows) * row_bytes());
    read_rows(checkpoint_, weight_, first, rows, buffer_.data(), scratch_);
    return buffer_.data();
  }

 private:
  std::uint64_t row_bytes() const {
    return static_cast<std::uint64_t>(cols() * io::size_of(checkpoint_.info(weight_.tensor).dtype));
  }

  const io::Checkpoint& checkpoint_;
  WeightSlice weight_;
  recipes::FloatType type_;
  std::vector<std::uint8_t> buffer_, scratch_;
};

void check_stop(const std::function<bool()>& stop) {
  if (stop && stop()) throw io::Error("interrupted");
}

std::int64_t band_of(const Scheme& scheme) {
  return scheme.weights == WeightGranularity::block ? scheme.block.rows : 1;
}

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

/// Codes of rows from first_row on and, when given, the values they were made of. scale_inv: of all of the weight.
void add_codes(const std::uint8_t* codes, std::int64_t rows, std::int64_t cols, std::int64_t first_row,
               const std::vector<float>& scale_inv, const Scheme& scheme, const void* reference,
               recipes::FloatType type, CastDamage& out) {
  std::vector<float> decoded(static_cast<std::size_t>(rows * cols));
  decode_weight_rows(codes, rows, cols, first_row, scale_inv.data(), static_cast<std::int64_t>(scale_inv.size()),
                     scheme, decoded.data(), recipes::FloatType::F32);
  CastDamage part;
  if (reference != nullptr) {
    part = compare_cast(reference, type, rows, cols, decoded.data());
  } else {
    Scheme plain = scheme;
    plain.activations = ActivationScaling::none;
    part = input_damage(decoded.data(), recipes::FloatType::F32, rows, cols, plain);
  }
  const float* table = kernels::decode_table(scheme.format);
  part.saturated =
      std::count_if(codes, codes + rows * cols, [&](std::uint8_t c) { return std::abs(table[c]) >= scheme.fp8_max(); });
  out.merge(part);
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

CheckpointDamage damage_of_fp8_checkpoint(const fs::path& model, const std::optional<fs::path>& reference,
                                          const std::function<bool()>& stop) {
  const io::Checkpoint source(model);
  std::optional<io::Checkpoint> original;
  if (reference.has_value()) original.emplace(*reference);
  CheckpointDamage out;
  std::vector<std::uint8_t> codes;
  for (const auto& w : read_stored(source).weights) {
    const auto& [module, all_rows, cols, scheme] = w.spec;
    const NonFinite bad = count_nonfinite(source, w.weight, scheme.dialect, /*bytes_are_codes=*/true);
    if (bad.any()) {
      out.skipped.push_back({module, "holds " + bad.text(static_cast<std::uint64_t>(all_rows * cols))});
      continue;
    }
    std::vector<float> scale_inv;
    try {
      scale_inv = read_scale_inv(source, w);
    } catch (const io::Error& error) {
      out.skipped.push_back({module, error.what()});
      continue;
    }
    ModuleDamage damage = ModuleDamage::of(module, "Linear", scheme, scale_inv);
    if (original.has_value() && (!original->contains(w.weight) ||
                                 original->info(w.weight).shape != std::vector<std::int64_t>{all_rows, cols})) {
      throw io::Error(reference->string() + ": expected a tensor '" + w.weight +
                      "' of the same shape; the checkpoint was made of another model");
    }
    std::optional<RowReader> values;
    if (original.has_value()) values.emplace(*original, w.weight);
    const std::int64_t step =
        std::max<std::int64_t>(static_cast<std::int64_t>(kPieceBytes) / std::max<std::int64_t>(cols, 1), 1);
    for (std::int64_t row = 0; row < all_rows; row += step) {
      check_stop(stop);
      const std::int64_t rows = std::min(step, all_rows - row);
      codes.resize(static_cast<std::size_t>(rows * cols));
      read_code_rows(source, w, row, rows, codes.data());
      add_codes(codes.data(), rows, cols, row, scale_inv, scheme, values ? values->read(row, rows) : nullptr,
                values ? values->type() : recipes::FloatType::F32, damage.weight);
    }
    out.modules.push_back(std::move(damage));
  }
  return out;
}

}  // namespace fp8::quant
