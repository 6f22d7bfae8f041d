// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/pipeline.h"

#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {
namespace {

using recipes::FloatType;

constexpr std::int64_t kChunkCodes = std::int64_t{1} << 18, kTransposedCodes = std::int64_t{1} << 20;
/// Transposed values are read, and their codes written, in runs of a chunk's rows: longer runs, fewer of them.
constexpr std::uint64_t kTransposedChunkBytes = std::uint64_t{8} << 20;

float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

float largest_of(FloatType type) {
  return type == FloatType::F16 ? 65504.0f : type == FloatType::BF16 ? 0x1.FEp127f : std::numeric_limits<float>::max();
}

/// The name of those that share a scale.
const std::string& group_key(const PlannedWeight& w) { return w.fuse_group.empty() ? w.to.module : w.fuse_group; }

bool per_tensor(const PlannedWeight& w) { return w.to.scheme.weights == Granularity::tensor; }

/// Rows that share scales which are made of them.
std::int64_t grain_of(const PlannedWeight& w) {
  const bool blocks = w.change == Change::requantized && w.to.scheme.has_blocks();
  return blocks ? std::max<std::int64_t>(w.to.scheme.block.rows, 1) : 1;
}

std::int64_t rows_in(std::int64_t values, const PlannedWeight& w) {
  return std::max<std::int64_t>(1, values / std::max<std::int64_t>(1, w.to.cols) / grain_of(w)) * grain_of(w);
}

constexpr std::int64_t kCastElements = std::int64_t{1} << 18;

[[noreturn]] void fail(const io::Checkpoint& source, const std::string& tensor, const std::string& what) {
  io::fail<io::Error>("{}: {}: {}", source.folder().string(), tensor, what);
}

}  // namespace

std::int64_t rows_per_chunk(const PlannedWeight& w, bool transposed) {
  return rows_in(transposed ? kTransposedCodes : kChunkCodes, w);
}

// The weights of a plan as units of work: rows are read in chunks (and decoded), new scales and codes are made of them
// where the plan says so, and the form writes them.
//
//   new scales per tensor    first the amax of all that share the scale (q, k, v), then the codes
//              per channel   one pass; large weights are cut into ranges of rows that run side by side
//              per block     the same, in whole rows of blocks
//              searched      INC's *_opt_* methods: per tensor they hold the whole weight

/// Weights in codes from this size on are made in parts of it, so that no thread is left alone with one.
constexpr std::int64_t kPartCodes = std::int64_t{16} << 20;

class Pipeline::Rows {
 public:
  /// Both must outlive this.
  Rows(const io::Checkpoint& source, const FolderPlan& plan)
      : source_(source), plan_(plan), errors_(plan.weights.size()) {
    for (const auto& w : plan.weights)
      if (w.change == Change::requantized) groups_[group_key(w)].members.push_back(&w);
  }

  /// One unit of the plan's weights of these numbers.
  Unit unit_of(const std::vector<std::size_t>& weights) {
    Unit unit;
    std::vector<std::shared_ptr<Work>> works;
    for (const std::size_t i : weights) {
      const PlannedWeight& w = plan_.weights[i];
      if (works.empty()) unit.name = w.in_codes() ? w.output() : w.to.module;
      if (w.change == Change::decoded) {
        unit.entries.push_back({w.output(), file_type(plan_.type), {w.to.rows, w.to.cols}});
      } else {
        for (auto& e : plan_.form->entries(w.to, plan_.config)) unit.entries.push_back(std::move(e));
      }
      unit.source_bytes += static_cast<std::uint64_t>(w.to.rows * w.to.cols * value_size(w));
      works.push_back(std::make_shared<Work>(w));
    }
    const std::int64_t rows = works.front()->w.to.rows, part = part_rows(works.front()->w);
    for (std::int64_t row = 0; part < rows && row < rows; row += part) {
      unit.parts.push_back([this, work = works.front(), row, last = std::min(row + part, rows)](UnitContext& context) {
        make_rows(context, *work, row, last);
      });
    }
    unit.run = [this, works = std::move(works), in_parts = part < rows](UnitContext& context) {
      for (const auto& work : works) {
        if (!in_parts) make_rows(context, *work, 0, work->w.to.rows);
        finish_weight(context, *work);
      }
    };
    return unit;
  }

  /// A floating point tensor of the source that becomes the plan's type.
  Unit cast_unit(const io::TensorInfo& info) const {
    Unit unit{info.name, {{info.name, file_type(plan_.type), info.shape}}, info.bytes(), {}, {}};
    run_in_parts(unit, info.numel(), kPartCodes,
                 [this, &info](UnitContext& context, std::int64_t at, std::int64_t end) {
                   for (; at < end; at += kCastElements)
                     cast_piece(context, info, at, std::min(kCastElements, end - at));
                 });
    return unit;
  }

  std::optional<double> max_error(std::size_t i) const { return errors_[i]; }
  const UnderflowReport& lost() const { return lost_; }

 private:
  /// A weight being made; its parts share it.
  struct Work {
    Work(const PlannedWeight& planned) : w(planned) {}
    const PlannedWeight& w;
    std::once_flag once;
    std::vector<float> from, to;                  // scale_inv, of the whole weight
    WeightScales tensor;                          // new ones, per tensor
    bool may_overflow = false;                    // decoded: the type may not hold every value
    std::mutex mutex;                             // guards what follows
    double largest_error = 0, largest_value = 0;  // max |w - w'|, max |w|
    float amax = 0;                               // of values in high precision
    Underflow lost;
  };

  struct Group {
    std::vector<const PlannedWeight*> members;
    std::mutex mutex;
    std::optional<WeightScales> scales;
  };
  /// Rows as values: as they were read, or decoded.
  struct Values {
    const void* data = nullptr;
    recipes::FloatType type = recipes::FloatType::F32;
    std::vector<float> decoded = {};
  };

  bool allowed(const std::string& tensor) const { return plan_.nonfinite.contains(tensor); }
  std::int64_t value_size(const PlannedWeight& w) const {
    return w.in_codes() ? 1 : io::size_of(source_.info(w.values.tensor).dtype);
  }
  std::int64_t chunk_rows(const PlannedWeight& w) const {
    const bool out = w.change != Change::decoded && plan_.form->stores_transposed();
    if (w.in_codes()) return rows_per_chunk(w, out || w.from.transposed);
    const std::uint64_t bytes = out || w.values.is_transposed() ? kTransposedChunkBytes : io::kChunkBytes;
    return rows_in(static_cast<std::int64_t>(bytes) / value_size(w), w);
  }

  /// Rows of a part; all of them where one thread makes the weight. The amax per tensor of values in high precision is
  /// made by one thread, for which others would wait.
  std::int64_t part_rows(const PlannedWeight& w) const {
    const std::int64_t rows = w.to.rows, chunk = chunk_rows(w);
    if (w.in_codes()) {
      const std::int64_t part =
          std::max<std::int64_t>(1, kPartCodes / std::max<std::int64_t>(1, chunk * w.to.cols)) * chunk;
      return rows > 2 * part ? part : rows;
    }
    const std::int64_t size = value_size(w), part = static_cast<std::int64_t>(kPartBytes);
    return per_tensor(w) || rows * w.to.cols * size <= 2 * part ? rows : rows_in(part / size, w);
  }

  void load_scales(UnitContext& context, Work& work) {
    std::call_once(work.once, [&] {
      const auto& w = work.w;
      if (w.in_codes()) work.from = read_scale_inv(source_, w.from);
      const std::int64_t rows = w.to.rows, cols = w.to.cols;
      if (w.change == Change::decoded) {
        const float largest = work.from.empty() ? 0.0f : *std::ranges::max_element(work.from);
        work.may_overflow = !(largest * kernels::fp8_max(w.from.spec.scheme.format, w.from.spec.scheme.dialect) <=
                              largest_of(plan_.type));
      } else if (w.change == Change::requantized) {
        work.to.assign(static_cast<std::size_t>(scale_grid(w.to.scheme, rows, cols).size()), 0.0f);
        if (!per_tensor(w)) return;
        work.tensor = group_scales(context, w);
        work.to = work.tensor.scale_inv;
      } else {
        work.to = spread_scales(work.from, w.from.spec.scheme, w.to.scheme, rows, cols);
        for (auto& s : work.to) s = plan_.rescaling.scale_inv(s, w.to.module);
      }
    });
  }

  void make_rows(UnitContext& context, Work& work, std::int64_t first, std::int64_t last) {
    load_scales(context, work);
    const auto& w = work.w;
    each_chunk(context, w, first, last, [&](std::int64_t row, std::int64_t rows) {
      switch (w.change) {
        case Change::decoded: decode(context, work, row, rows); break;
        case Change::rescaled: rescale(context, work, row, rows); break;
        case Change::requantized: quantize(context, work, row, rows); break;
        case Change::unchanged:
        case Change::spread: plan_.form->write_codes(context, w.to, context.in.data(), row, rows); break;
      }
      context.advance(context.in.size());
    });
    if (first == last) context.advance(0);
  }

  /// Reads rows [first, last) chunk by chunk into context.in for visit(row, rows).
  template <class Visit>
  void each_chunk(UnitContext& context, const PlannedWeight& w, std::int64_t first, std::int64_t last,
                  const Visit& visit) const {
    const std::int64_t step = chunk_rows(w);
    for (std::int64_t row = first; row < last; row += step) {
      const std::int64_t rows = std::min(step, last - row);
      read(context, w, row, rows);
      visit(row, rows);
    }
  }

  void read(UnitContext& context, const PlannedWeight& w, std::int64_t row, std::int64_t rows) const {
    context.in.resize(static_cast<std::size_t>(rows * w.to.cols * value_size(w)));
    if (w.in_codes()) {
      read_code_rows(source_, w.from, row, rows, context.in.data(), allowed(w.from.weight));
    } else {
      read_rows(source_, w.values, row, rows, context.in.data(), context.scratch);
    }
  }

  Values values_of(const UnitContext& context, const PlannedWeight& w, const std::vector<float>& scale_inv,
                   std::int64_t row, std::int64_t rows) const {
    if (!w.in_codes()) return {context.in.data(), float_type(source_.info(w.values.tensor).dtype)};
    Values values;
    values.decoded.resize(context.in.size());
    values.data = values.decoded.data();
    decode_weight_rows(context.in.data(), rows, w.to.cols, row, scale_inv.data(),
                       static_cast<std::int64_t>(scale_inv.size()), w.from.spec.scheme, values.decoded.data(),
                       FloatType::F32);
    return values;
  }

  void decode(UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const {
    const auto& w = work.w;
    const std::int64_t cols = w.to.cols, size = kernels::size_of(plan_.type);
    context.out.resize(static_cast<std::size_t>(rows * cols * size));
    decode_weight_rows(context.in.data(), rows, cols, row, work.from.data(),
                       static_cast<std::int64_t>(work.from.size()), w.from.spec.scheme, context.out.data(), plan_.type);
    if (work.may_overflow && overflows(context, work, row, rows)) fail_range(w.from.weight);
    context.write(w.output(), context.out.data(), static_cast<std::uint64_t>(row * cols * size), context.out.size());
  }

  [[noreturn]] void fail_range(const std::string& tensor) const {
    fail(source_, tensor, std::string("holds values that leave the range of ") + kernels::name_of(plan_.type));
  }

  /// True if a finite value of the rows just decoded became infinite.
  bool overflows(const UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const {
    const std::int64_t n = rows * work.w.to.cols;
    if (!allowed(work.w.from.weight)) return !std::isfinite(kernels::amax(context.out.data(), plan_.type, n));
    std::vector<std::uint8_t> typed(context.out.size());
    return !cast_floats(values_of(context, work.w, work.from, row, rows).data, FloatType::F32, n, plan_.type,
                        typed.data());
  }

  /// codes: what is written, scaled by work.to. before: the values that they stand for.
  static void note_deviation(Work& work, const std::vector<float>& before, const std::uint8_t* codes, std::int64_t row,
                             std::int64_t rows) {
    std::vector<float> after(before.size());
    decode_weight_rows(codes, rows, work.w.to.cols, row, work.to.data(), static_cast<std::int64_t>(work.to.size()),
                       work.w.to.scheme, after.data(), FloatType::F32);
    Deviation d;
    d.add(before.data(), after.data(), static_cast<std::int64_t>(before.size()));
    const std::lock_guard lock(work.mutex);
    work.largest_error = std::max(work.largest_error, d.largest);
    work.largest_value = std::max(work.largest_value, d.largest_value);
  }

  void rescale(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
    const Values values = values_of(context, work.w, work.from, row, rows);
    plan_.rescaling.apply(context.in.data(), static_cast<std::int64_t>(context.in.size()));
    plan_.form->write_codes(context, work.w.to, context.in.data(), row, rows);
    note_deviation(work, values.decoded, context.in.data(), row, rows);
  }

  void quantize(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
    const auto& w = work.w;
    const Values values = values_of(context, w, work.from, row, rows);
    context.out.resize(static_cast<std::size_t>(rows * w.to.cols));
    const float amax = make_codes(context, work, values, row, rows);
    if (w.rounded != nullptr) w.rounded->read(w.codes.module, w.codes.first + row, rows, w.to.cols, context.out.data());
    plan_.form->write_codes(context, w.to, context.out.data(), row, rows);
    if (w.in_codes()) return note_deviation(work, values.decoded, context.out.data(), row, rows);
    const Underflow lost = underflow_of_codes(values.data, values.type, rows * w.to.cols, context.out.data());
    const std::lock_guard lock(work.mutex);
    work.lost.add(lost);
    work.amax = larger(amax, work.amax);
  }

  /// Codes into context.out; new scales per channel or block into work.to. A row's scale needs that row only: amax and
  /// cast while it is in cache. Returns the rows' amax where it was computed, else 0.
  float make_codes(UnitContext& context, Work& work, const Values& values, std::int64_t row, std::int64_t rows) const {
    const auto& w = work.w;
    const Scheme& scheme = w.to.scheme;
    const std::int64_t cols = w.to.cols;
    float largest = 0;
    std::vector<float> made;
    if (per_tensor(w)) {
      cast_weight_rows(values.data, values.type, rows, cols, 0, work.tensor, scheme, context.out.data());
      return largest;
    }
    if (scheme.has_blocks() && !scheme.least_error()) {
      if (w.measured != nullptr && w.measured->measured_weight_amax.has_value())
        largest = kernels::amax(values.data, values.type, rows * cols);
      try {
        made = quantize_weight_blocks(values.data, values.type, rows, cols, scheme, w.place(), context.out.data());
      } catch (const std::invalid_argument&) {
        if (!w.in_codes() && count_nonfinite(source_, w.values).any()) refuse_nonfinite(source_, w.values);
        throw;
      }
    } else {
      std::vector<float> amax(static_cast<std::size_t>(rows));
      if (scheme.has_blocks())
        amax = block_amax(values.data, values.type, rows, cols, scheme);
      else
        kernels::amax_rows(values.data, values.type, rows, cols, cols, amax.data());
      for (const float a : amax) largest = larger(a, largest);
      refuse_if_nonfinite(w, largest);
      WeightScales scales = searches(scheme)
                                ? searched_weight_scales(values.data, values.type, rows, cols, scheme, w.place())
                                : weight_scales(amax, scheme, w.place(), values.type);
      if (scheme.least_error())
        scales = least_error_scales(values.data, values.type, rows, cols, scales, scheme, w.place());
      cast_weight_rows(values.data, values.type, rows, cols, 0, scales, scheme, context.out.data());
      made = std::move(scales.scale_inv);
    }
    std::copy(made.begin(), made.end(), work.to.begin() + work.w.to.scheme.layout().in_grid(row, 0, work.w.to.cols));
    return largest;
  }

  /// Codes that are NaN or Inf were refused when they were read.
  void refuse_if_nonfinite(const PlannedWeight& w, float amax) const {
    if (!w.in_codes() && !std::isfinite(amax)) refuse_nonfinite(source_, w.values);
  }

  /// Those of a weight, or of all of its group: engines give those one scale anyway.
  WeightScales group_scales(UnitContext& context, const PlannedWeight& of) {
    Group& group = groups_.at(group_key(of));
    const std::lock_guard lock(group.mutex);
    if (group.scales.has_value()) return *group.scales;
    float largest = 0;
    for (const auto* w : group.members) largest = std::max(largest, weight_amax(context, *w));
    WeightScales scales = searches(of.to.scheme) ? searched(of) : weight_scales({largest}, of.to.scheme, of.place());
    if (of.to.scheme.least_error()) {
      TensorScaleSearch search(scales, of.to.scheme);
      for (const auto* w : group.members)
        each_value(context, *w, [&](const Values& values, std::int64_t rows) {
          search.add(values.data, values.type, rows, w->to.cols);
        });
      scales = search.best(of.place());
    }
    group.scales = scales;
    return scales;
  }

  /// visit(values, rows) of the whole weight.
  template <class Visit>
  void each_value(UnitContext& context, const PlannedWeight& w, const Visit& visit) const {
    const std::vector<float> scale_inv = w.in_codes() ? read_scale_inv(source_, w.from) : std::vector<float>();
    each_chunk(context, w, 0, w.to.rows, [&](std::int64_t row, std::int64_t rows) {
      visit(values_of(context, w, scale_inv, row, rows), rows);
      context.advance(0);
    });
  }

  float weight_amax(UnitContext& context, const PlannedWeight& w) const {
    float largest = 0;
    each_value(context, w, [&](const Values& values, std::int64_t rows) {
      largest = larger(kernels::amax(values.data, values.type, rows * w.to.cols), largest);
    });
    refuse_if_nonfinite(w, largest);
    if (w.measured != nullptr) check_measured_weight(*w.measured, largest);
    return largest;
  }

  /// A search needs all of the weight in memory.
  WeightScales searched(const PlannedWeight& w) const {
    const auto dtype = source_.info(w.values.tensor).dtype;
    std::vector<std::uint8_t> all(static_cast<std::size_t>(w.values.values() * io::size_of(dtype))), scratch;
    read_rows(source_, w.values, 0, w.to.rows, all.data(), scratch);
    return searched_weight_scales(all.data(), float_type(dtype), w.to.rows, w.to.cols, w.to.scheme, w.place());
  }

  void finish_weight(UnitContext& context, Work& work) {
    const auto& w = work.w;
    if (w.change == Change::decoded) return;
    load_scales(context, work);  // a weight without rows has not come by
    if (!w.in_codes()) {
      if (w.measured != nullptr && !per_tensor(w)) check_measured_weight(*w.measured, work.amax);
      if (w.rounded != nullptr)
        w.rounded->require_scales(w.codes.module, w.codes.first, w.to.rows, w.to.cols, w.to.scheme, work.to);
      lost_.add(w.to.module, work.lost);
    }
    plan_.form->write_scales(context, w.to, plan_.config, work.to);
    if (w.exact) return;
    errors_[static_cast<std::size_t>(&w - plan_.weights.data())] =
        work.largest_error == 0 ? 0 : work.largest_error / work.largest_value;
  }

  void cast_piece(UnitContext& context, const io::TensorInfo& info, std::int64_t first, std::int64_t n) const {
    const auto from_size = static_cast<std::uint64_t>(io::size_of(info.dtype)),
               to_size = static_cast<std::uint64_t>(kernels::size_of(plan_.type));
    context.in.resize(static_cast<std::uint64_t>(n) * from_size);
    context.out.resize(static_cast<std::uint64_t>(n) * to_size);
    source_.read(info.name, context.in.data(), static_cast<std::uint64_t>(first) * from_size, context.in.size());
    if (!allowed(info.name) && has_nonfinite(context.in.data(), info.dtype, n)) refuse_nonfinite(source_, info.name);
    if (!cast_floats(context.in.data(), float_type(info.dtype), n, plan_.type, context.out.data()))
      fail_range(info.name);
    context.write(info.name, context.out.data(), static_cast<std::uint64_t>(first) * to_size, context.out.size());
    context.advance(context.in.size());
  }

  const io::Checkpoint& source_;
  const FolderPlan& plan_;
  std::map<std::string, Group> groups_;        // by their name, or the module's
  std::vector<std::optional<double>> errors_;  // of each weight of the plan; one thread finishes it
  UnderflowReport lost_;
};

Pipeline::Pipeline(Job noted, const SourceFolder& from, const FolderPlan& plan)
    : Job(std::move(noted)), plan_(plan), rows_(std::make_unique<Rows>(from.checkpoint, plan)) {
  const io::Checkpoint& source = from.checkpoint;
  identify(plan.identity);
  for (const auto& piece : plan.pieces) {
    if (!piece.weights.empty()) {
      units.push_back(rows_->unit_of(piece.weights));
      continue;
    }
    const auto& info = source.info(piece.from);
    const bool cast = plan.cast && is_float(info.dtype) && float_type(info.dtype) != plan.type;
    units.push_back(cast ? rows_->cast_unit(info) : copy_unit(source, piece.from, piece.to));
  }
  const bool decodes = !plan.weights.empty() && plan.weights.front().in_codes();
  for (const auto& kv : plan.config.kv)  // names are part of a run's mark
    units.push_back(kv_unit(*plan.form, plan.config, kv, kv.attention + (decodes ? " key-value cache" : "")));
  std::set<std::string> outputs;
  for (const auto& unit : units)
    for (const auto& e : unit.entries)
      if (!outputs.insert(e.name).second)
        fail(source, e.name, "the converted checkpoint would hold two tensors of this name");
  form = plan.form;
  texts = plan.texts;
  texts.card->weights_bytes = weights_bytes(), texts.card->source_bytes = source.total_bytes();
  marked = true;
  for (const auto& [tensor, found] : plan.nonfinite) stream.nonfinite.insert(tensor);
}

Pipeline::~Pipeline() = default;

void Pipeline::run(const std::filesystem::path& out, bool dry_run, bool join, WriteReport& report,
                   std::vector<std::string>& warnings) {
  report.units = units.size();
  report.weights_bytes = texts.card->weights_bytes, report.source_bytes = texts.card->source_bytes;
  if (dry_run) return;
  if (form != nullptr) quantization = form->config(plan_.config);
  std::vector<std::string> left;
  const auto result = write(out, join, &left);
  for (const auto& lines : {left, rows_->lost().warnings(plan_.config.scale_method, "weights"), result.warnings})
    warnings.insert(warnings.end(), lines.begin(), lines.end());
  report.units_kept = result.kept;
  report.shares = result.shares;
  report.finished_before = result.finished_before;
}

std::optional<double> Pipeline::max_error(std::size_t i) const { return rows_->max_error(i); }

}  // namespace fp8::quant
