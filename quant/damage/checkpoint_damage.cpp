// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/damage/checkpoint_damage.h"

#include "fp8/quant/checkpoint/quantize_plan.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

recipes::FloatType checked_float_type(const io::TensorInfo& info, const fs::path& folder) {
  if (is_float(info.dtype)) return float_type(info.dtype);
  io::fail<io::Error>("{}: {}: expected dtype F32, BF16 or F16, found {}", folder.string(), info.name,
                      io::name_of(info.dtype));
}

/// A weight, chunk by chunk of its rows.
class RowReader {
 public:
  RowReader(const io::Checkpoint& checkpoint, WeightSlice weight)
      : checkpoint_(checkpoint), weight_(std::move(weight)) {}
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
  recipes::FloatType type_ = checked_float_type(checkpoint_.info(weight_.tensor), checkpoint_.folder());
  std::vector<std::uint8_t> buffer_, scratch_;
};

void check_stop(const std::function<bool()>& stop) {
  if (stop && stop()) throw io::Error("interrupted");
}

/// Rows that share scales: chunks are multiples of it.
std::int64_t band_of(const Scheme& scheme) { return scheme.has_blocks() ? scheme.block.rows : 1; }

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
    if (m.scheme.has_blocks()) {
      part = block_amax(data, reader.type(), rows, reader.cols(), m.scheme);
    } else {
      kernels::amax_rows(data, reader.type(), rows, reader.cols(), reader.cols(), part.data());
    }
    amax.insert(amax.end(), part.begin(), part.end());
  }
  if (std::ranges::any_of(amax, [](float a) { return !std::isfinite(a); })) return {std::nanf("")};
  if (m.scheme.weights == Granularity::tensor) amax = {amax.empty() ? 0.0f : *std::ranges::max_element(amax)};
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

/// Counts what CheckpointDamage::saturated's rule for codes alone asks for.
class TopCodes {
 public:
  TopCodes(const Scheme& scheme, std::int64_t rows, std::int64_t cols)
      : cols_(cols), layout_(scheme.layout()), groups_(static_cast<std::size_t>(layout_.grid(rows, cols).size())) {
    const float* table = kernels::decode_table(scheme.format);
    const float top = scheme.fp8_max();
    float next = 0;
    for (int c = 0; c < 256; ++c)
      if (const float v = std::abs(table[c]); v < top) next = std::max(next, v);
    for (int c = 0; c < 256; ++c) {
      const float v = std::abs(table[c]);
      kind_[c] = v >= top ? kTop : v == next ? kNext : kOther;
    }
  }

  void add(const std::uint8_t* codes, std::int64_t first_row, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::uint8_t* line = codes + row * cols_;
      for (std::int64_t col = 0; col < cols_; ++col) {
        const Kind kind = kind_[line[col]];
        next_ += kind == kNext ? 1 : 0;
        if (kind != kTop) continue;
        ++top_;
        groups_[static_cast<std::size_t>(layout_.in_grid(first_row + row, col, cols_))] = true;
      }
    }
  }

  std::int64_t saturated() const {
    const auto own = std::ranges::count(groups_, true);
    const double near = static_cast<double>(next_) / 2, more = static_cast<double>(top_ - own) - near;
    return more > 3 * std::sqrt(1 + 1.5 * near) ? static_cast<std::int64_t>(more) : 0;
  }

 private:
  enum Kind : std::uint8_t { kOther, kNext, kTop };

  std::int64_t cols_;
  kernels::ScaleLayout layout_;
  Kind kind_[256];
  std::int64_t top_ = 0, next_ = 0;
  std::vector<bool> groups_;  ///< those with the largest code: what amax itself becomes
};

/// A checkpoint with its weights in fp8 by module.
struct Side {
  explicit Side(const fs::path& folder) : checkpoint(folder) {
    if (read_quantization_config(folder).is_null()) return;
    weights = read_stored(checkpoint).weights;
    for (const auto& w : weights) by_module.emplace(w.spec.module, &w);
  }

  io::Checkpoint checkpoint;
  std::vector<StoredWeight> weights;
  std::map<std::string, const StoredWeight*> by_module;
};

/// The values of one weight as f32, whatever it is stored in.
class Values {
 public:
  /// Throws io::Error where `side` has no such weight of that shape.
  Values(const Side& side, const std::string& module, std::int64_t rows, std::int64_t cols)
      : checkpoint_(side.checkpoint), cols_(cols) {
    const std::string tensor = module + ".weight";
    std::vector<std::int64_t> shape;
    if (const auto found = side.by_module.find(module); found != side.by_module.end()) {
      stored_ = found->second;
      scale_inv_ = read_scale_inv(checkpoint_, *stored_);
      shape = {stored_->spec.rows, stored_->spec.cols};
    } else if (checkpoint_.contains(tensor)) {
      plain_.emplace(checkpoint_, tensor);
      shape = checkpoint_.info(tensor).shape;
    }
    if (shape != std::vector<std::int64_t>{rows, cols})
      io::fail<io::Error>("{}: expected a tensor '{}' of the same shape; the checkpoint was made of another model",
                          checkpoint_.folder().string(), tensor);
  }

  std::int64_t band() const { return stored_ == nullptr ? 1 : band_of(stored_->spec.scheme); }

  const float* read(std::int64_t first, std::int64_t rows) {
    const auto n = static_cast<std::size_t>(rows * cols_);
    values_.resize(n);
    if (stored_ == nullptr) {
      const void* data = plain_->read(first, rows);
      kernels::parallel_for(rows * cols_, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          values_[static_cast<std::size_t>(i)] = kernels::load_element(data, plain_->type(), i);
      });
    } else {
      codes_.resize(n);
      read_code_rows(checkpoint_, *stored_, first, rows, codes_.data(), /*allow_nonfinite=*/true);
      decode_weight_rows(codes_.data(), rows, cols_, first, scale_inv_.data(), std::ssize(scale_inv_),
                         stored_->spec.scheme, values_.data(), recipes::FloatType::F32);
    }
    return values_.data();
  }

  struct Rows {
    const void* data;
    recipes::FloatType type;
  };
  /// As above, of weights in high precision: the comparison reads any dtype.
  Rows read_plain(std::int64_t first, std::int64_t rows) {
    if (stored_ == nullptr) return {plain_->read(first, rows), plain_->type()};
    return {read(first, rows), recipes::FloatType::F32};
  }

 private:
  const io::Checkpoint& checkpoint_;
  std::int64_t cols_;
  const StoredWeight* stored_ = nullptr;
  std::vector<float> scale_inv_, values_;
  std::optional<RowReader> plain_;
  std::vector<std::uint8_t> codes_;
};

std::int64_t step_of(std::int64_t cols, std::int64_t band) {
  const auto fit = static_cast<std::int64_t>(kPieceBytes) / std::max<std::int64_t>(cols, 1);
  return std::max<std::int64_t>(fit / band, 1) * band;
}

/// One weight in fp8; reference: null, or the values that it was made of.
CastDamage damage_of_codes(const io::Checkpoint& source, const StoredWeight& w, const std::vector<float>& scale_inv,
                           Values* reference, const std::function<bool()>& stop) {
  const auto& [module, all_rows, cols, scheme] = w.spec;
  constexpr auto kF32 = recipes::FloatType::F32;
  CastDamage out;
  std::vector<std::uint8_t> codes;
  std::vector<float> decoded;
  TopCodes top(scheme, all_rows, cols);
  Scheme plain = scheme;
  plain.activations = ActivationScaling::none;
  const std::int64_t step = step_of(cols, band_of(scheme));
  const WeightScales scales{scale_inv, scale_inv};
  for (std::int64_t row = 0; row < all_rows; row += step) {
    check_stop(stop);
    const std::int64_t rows = std::min(step, all_rows - row);
    codes.resize(static_cast<std::size_t>(rows * cols));
    decoded.resize(codes.size());
    read_code_rows(source, w, row, rows, codes.data());
    decode_weight_rows(codes.data(), rows, cols, row, scale_inv.data(), std::ssize(scale_inv), scheme, decoded.data(),
                       kF32);
    if (reference != nullptr) {
      const WeightScales part = scales.of_rows(row, rows, scheme, cols);
      const auto before = reference->read_plain(row, rows);
      out.merge(compare_cast(before.data, before.type, rows, cols, decoded.data(), &part, &scheme));
    } else {
      top.add(codes.data(), row, rows);
      out.merge(input_damage(decoded.data(), kF32, rows, cols, plain));
    }
  }
  if (reference == nullptr) out.saturated = top.saturated();
  return out;
}

/// A module's damage, or why there is none.
struct Found {
  ModuleDamage damage;
  std::string problem;
};

Found look_at(const Side& model, const StoredWeight& w, const Side* reference, const std::function<bool()>& stop) {
  const auto& [module, rows, cols, scheme] = w.spec;
  const NonFinite bad = count_nonfinite(model.checkpoint, w.weight, scheme.dialect, /*bytes_are_codes=*/true);
  if (bad.any()) return {{}, "holds " + bad.text(static_cast<std::uint64_t>(rows * cols))};
  std::vector<float> scale_inv;
  try {
    scale_inv = read_scale_inv(model.checkpoint, w);
  } catch (const io::Error& error) {
    return {{}, error.what()};
  }
  std::optional<Values> values;
  if (reference != nullptr) values.emplace(*reference, module, rows, cols);
  Found found{ModuleDamage::of(module, "Linear", scheme, scale_inv), ""};
  found.damage.weight = damage_of_codes(model.checkpoint, w, scale_inv, values ? &*values : nullptr, stop);
  return found;
}

void add_stored(const Side& model, const Side* reference, const std::function<bool()>& stop, CheckpointDamage& out) {
  const auto n = std::ssize(model.weights);
  std::vector<Found> found(model.weights.size());
  const auto look = [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      found[i] = look_at(model, model.weights[i], reference, stop);
  };
  // Of many small weights threads take one each; a large one has work for all of them.
  constexpr std::int64_t kSmall = 1 << 20;
  const bool small =
      std::ranges::all_of(model.weights, [](const StoredWeight& w) { return w.spec.rows * w.spec.cols <= kSmall; });
  if (small)
    kernels::parallel_for(n, 1, look);
  else
    look(0, n);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].problem.empty())
      out.modules.push_back(std::move(found[i].damage));
    else
      out.skipped.push_back({model.weights[i].spec.module, std::move(found[i].problem)});
  }
}

/// Matrices of `model` in high precision. Throws io::Error for one that the reference has not.
void add_plain(const Side& model, const Side& reference, const std::function<bool()>& stop, CheckpointDamage& out) {
  constexpr std::string_view kWeight = ".weight";
  for (std::size_t i = 0; i < model.checkpoint.names().size(); ++i) {
    const auto& info = model.checkpoint.info(i);
    if (info.shape.size() != 2 || !is_float(info.dtype) || !info.name.ends_with(kWeight)) continue;
    const std::string module = info.name.substr(0, info.name.size() - kWeight.size());
    const std::int64_t rows = info.shape[0], cols = info.shape[1];
    Values values(model, module, rows, cols), before(reference, module, rows, cols);
    ModuleDamage damage;
    damage.name = module;
    damage.type = "matrix";
    damage.scheme = io::name_of(info.dtype);
    const std::int64_t step = step_of(cols, before.band());
    for (std::int64_t row = 0; row < rows; row += step) {
      check_stop(stop);
      const std::int64_t n = std::min(step, rows - row);
      const auto plain = before.read_plain(row, n);
      damage.weight.merge(compare_cast(plain.data, plain.type, n, cols, values.read(row, n)));
    }
    out.modules.push_back(std::move(damage));
  }
}

}  // namespace

CheckpointDamage damage_of_checkpoint(const fs::path& model, const CheckpointOptions& options) {
  const CheckpointPlan planned(model, options);
  const io::Checkpoint& source = planned.source.checkpoint;
  const Plan& plan = planned.plan;
  CheckpointDamage out{{}, plan.skipped, plan.warnings};
  if (const std::string notice = planned.source.modules.notice(); !notice.empty())
    out.warnings.insert(out.warnings.begin(), io::spelled(notice, options.plan.spelling));
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

// Damage of weights that are in fp8 already, and two checkpoints side by side.

CheckpointDamage damage_of_fp8_checkpoint(const fs::path& model, const std::function<bool()>& stop) {
  CheckpointDamage out;
  add_stored(Side(model), nullptr, stop, out);
  return out;
}

CheckpointDamage compare_checkpoints(const fs::path& model, const fs::path& reference,
                                     const std::function<bool()>& stop) {
  const Side side(model), other(reference);
  CheckpointDamage out;
  add_stored(side, &other, stop, out);
  if (side.weights.empty()) add_plain(side, other, stop, out);
  return out;
}

}  // namespace fp8::quant
