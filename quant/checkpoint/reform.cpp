// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "fp8/configs/option_names.h"
#include "fp8/quant/checkpoint/reform_plan.h"
#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/forms/carry_through.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/forms/sidecar.h"
#include "fp8/quant/scheme/float_dtype.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using recipes::FloatType;

/// Weights from this size on are made in parts of it, so that no thread is left alone with one.
constexpr std::int64_t kPartCodes = std::int64_t{16} << 20;
constexpr std::int64_t kCastElements = std::int64_t{1} << 18;

const char* word_of(FloatType type) {
  return type == FloatType::F32 ? "float32" : type == FloatType::F16 ? "float16" : "bfloat16";
}
float largest_of(FloatType type) {
  return type == FloatType::F16 ? 65504.0f : type == FloatType::BF16 ? 0x1.FEp127f : std::numeric_limits<float>::max();
}

/// A weight being made; its parts share it.
struct Work {
  explicit Work(const PlannedWeight& planned) : w(planned) {}
  const PlannedWeight& w;
  std::once_flag once;
  std::vector<float> from, to;  // scale_inv, of the whole weight
  WeightScales tensor;          // requantized per tensor
  bool may_overflow = false;    // decoded: the type may not hold every value
  std::mutex mutex;
  double largest = 0, largest_value = 0;  // max |w - w'|, max |w|
};

/// One run: units from a plan.
class Job {
 public:
  Job(const fs::path& model, const ConvertOptions& options)
      : options_(options),
        files_(identity_of(model)),
        carried_(carried_identity_of(model)),
        source_(model, options.assume),
        plan_(plan_conversion(source_, options)) {
    if (options.allow_nonfinite) find_nonfinite_tensors();
    for (const auto& w : plan_.weights) groups_.try_emplace(group_key(w));
    add_units();
    report_.from = source_.form_name() +
                   (source_.high_precision() ? "" : ": " + source_.stored.weights.front().spec.scheme.describe());
    report_.to = plan_.form == nullptr ? kernels::name_of(plan_.type)
                                       : std::string(name_of(options_.form)) + ": " + plan_.config.scheme.describe();
    for (const auto& w : plan_.weights)
      report_.modules.push_back({w.to.module, w.change, w.exact, w.reason, std::nullopt});
    report_.notes.insert(report_.notes.begin(), plan_.notes.begin(), plan_.notes.end());
    report_.kv = plan_.config.kv.size();
    report_.source_bytes = source_.checkpoint.total_bytes();
  }

  ConvertReport& report() { return report_; }

  void write(const fs::path& out) {
    StreamOptions stream = options_.stream;
    stream.identity = identity();
    stream.source = source_.checkpoint.folder();
    stream.carried = carried_;
    for (const auto& [tensor, found] : nonfinite_) stream.nonfinite.insert(tensor);
    const auto finish = [&](OutputFolder& folder) { finish_folder(folder, run_mark(units_, stream)); };
    const auto result =
        options_.join ? join_checkpoint(out, units_, stream, finish) : write_checkpoint(out, units_, stream, finish);
    report_.notes.insert(report_.notes.end(), result.warnings.begin(), result.warnings.end());
    report_.finished_before = result.finished_before;
  }

 private:
  struct Group {
    std::mutex mutex;
    std::optional<float> amax;
  };

  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw io::Error(source_.checkpoint.folder().string() + ": " + tensor + ": " + what);
  }

  /// Whether a tensor's NaN and Inf were found and allowed.
  bool allowed(const std::string& tensor) const { return nonfinite_.count(tensor) != 0; }

  void find_nonfinite_tensors() {
    std::set<std::string> codes;
    for (const auto& w : plan_.weights) codes.insert(w.from.weight);
    const auto dialect = plan_.weights.empty() ? recipes::Dialect::ocp : plan_.weights.front().from.spec.scheme.dialect;
    nonfinite_ = find_nonfinite(source_.checkpoint, dialect, codes, options_.stream.stop);
    for (const auto& w : plan_.weights) {
      if (!allowed(w.from.weight)) continue;
      const auto max = [](const Scheme& s) { return kernels::fp8_max(s.format, s.dialect); };
      if (w.change == Change::requantized)
        fail(w.from.weight, "holds NaN or Inf, of which no new scales can be made; without " +
                                configs::option_name("'weights'", "--scheme") + " its codes stay as they are");
      if (w.change != Change::decoded && max(w.from.spec.scheme) < max(w.to.scheme))
        fail(w.from.weight,
             "holds NaN or Inf of dialect gaudi2, whose codes are numbers in another; expected finite weights");
      if (w.change == Change::decoded && max(w.from.spec.scheme) == 240)
        fail(w.from.weight, "holds NaN or Inf of dialect gaudi2, which is not decoded; expected finite weights");
    }
    for (const auto& [tensor, found] : nonfinite_) {
      const auto& info = source_.checkpoint.info(tensor);
      report_.notes.push_back(tensor + ": copied with " + found.text(static_cast<std::uint64_t>(info.numel())));
    }
  }

  // Units

  void add(Unit unit) {
    for (const auto& e : unit.entries) {
      if (!outputs_.insert(e.name).second) fail(e.name, "the converted checkpoint would hold two tensors of this name");
      report_.weights_bytes += bytes_of(e);
    }
    units_.push_back(std::move(unit));
  }

  /// In the order of the source, so that it is read from front to back.
  void add_units() {
    std::map<std::string, const PlannedWeight*> by_codes;
    for (const auto& w : plan_.weights) by_codes[w.from.weight] = &w;
    for (const auto& tensor : source_.checkpoint.names()) {
      if (const auto it = by_codes.find(tensor); it != by_codes.end()) {
        add(weight_unit(*it->second));
      } else if (plan_.consumed.count(tensor) == 0) {
        const auto& info = source_.checkpoint.info(tensor);
        add(plan_.cast && is_float(info.dtype) && float_type(info.dtype) != plan_.type
                ? cast_unit(info)
                : copy_unit(source_.checkpoint, tensor, tensor));
      }
    }
    for (const auto& kv : plan_.config.kv) {
      Unit unit;
      unit.name = kv.attention + " key-value cache";
      unit.entries = plan_.form->kv_entries(kv, plan_.config);
      unit.run = [this, &kv](UnitContext& context) { plan_.form->write_kv(context, kv, plan_.config); };
      add(std::move(unit));
    }
  }

  Unit weight_unit(const PlannedWeight& w) {
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

  Unit cast_unit(const io::TensorInfo& info) {
    Unit unit;
    unit.name = info.name;
    unit.entries = {{info.name, file_type(plan_.type), info.shape}};
    unit.source_bytes = info.bytes();
    const auto cast = [this, &info](UnitContext& context, std::int64_t first, std::int64_t last) {
      for (std::int64_t at = first; at < last; at += kCastElements)
        cast_piece(context, info, at, std::min(kCastElements, last - at));
    };
    const std::int64_t n = info.numel();
    if (n < 2 * kPartCodes) {
      unit.run = [cast, n](UnitContext& context) { cast(context, 0, n); };
      return unit;
    }
    for (std::int64_t at = 0; at < n; at += kPartCodes) {
      unit.parts.push_back(
          [cast, at, last = std::min(at + kPartCodes, n)](UnitContext& context) { cast(context, at, last); });
    }
    return unit;
  }

  void cast_piece(UnitContext& context, const io::TensorInfo& info, std::int64_t first, std::int64_t n) {
    const auto from_size = static_cast<std::uint64_t>(io::size_of(info.dtype)),
               to_size = static_cast<std::uint64_t>(kernels::size_of(plan_.type));
    context.in.resize(static_cast<std::uint64_t>(n) * from_size);
    context.out.resize(static_cast<std::uint64_t>(n) * to_size);
    source_.checkpoint.read(info.name, context.in.data(), static_cast<std::uint64_t>(first) * from_size,
                            context.in.size());
    if (!allowed(info.name) && has_nonfinite(context.in.data(), info.dtype, n))
      refuse_nonfinite(source_.checkpoint, info.name);
    if (!cast_floats(context.in.data(), float_type(info.dtype), n, plan_.type, context.out.data())) {
      fail(info.name, std::string("holds values that leave the range of ") + kernels::name_of(plan_.type));
    }
    context.write(info.name, context.out.data(), static_cast<std::uint64_t>(first) * to_size, context.out.size());
    context.advance(context.in.size());
  }

  // Weights

  /// Transposed codes are read or written in runs of as many bytes as there are rows: few, long ones.
  std::int64_t chunk_rows(const PlannedWeight& w) const {
    const bool transposed =
        w.from.transposed || (w.change != Change::decoded && options_.form == CheckpointFormat::inc);
    return rows_per_chunk(w, transposed);
  }

  void load_scales(UnitContext& context, Work& work) {
    std::call_once(work.once, [&] {
      const auto& w = work.w;
      work.from = read_scale_inv(source_.checkpoint, w.from);
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

  void convert_rows(UnitContext& context, Work& work, std::int64_t first, std::int64_t last) {
    load_scales(context, work);
    const auto& w = work.w;
    const std::int64_t step = chunk_rows(w), cols = w.to.cols;
    for (std::int64_t row = first; row < last; row += step) {
      const std::int64_t rows = std::min(step, last - row);
      context.in.resize(static_cast<std::size_t>(rows * cols));
      read_code_rows(source_.checkpoint, w.from, row, rows, context.in.data(), allowed(w.from.weight));
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

  void decode_source(const Work& work, const std::uint8_t* codes, std::int64_t row, std::int64_t rows, void* y,
                     FloatType type) const {
    decode_weight_rows(codes, rows, work.w.to.cols, row, work.from.data(), static_cast<std::int64_t>(work.from.size()),
                       work.w.from.spec.scheme, y, type);
  }

  /// Whether a finite value of the rows just decoded became infinite.
  bool overflows(const UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const {
    const std::int64_t n = rows * work.w.to.cols;
    if (!allowed(work.w.from.weight)) return !std::isfinite(kernels::amax(context.out.data(), plan_.type, n));
    std::vector<float> values(static_cast<std::size_t>(n));
    std::vector<std::uint8_t> typed(context.out.size());
    decode_source(work, context.in.data(), row, rows, values.data(), FloatType::F32);
    return !cast_floats(values.data(), FloatType::F32, n, plan_.type, typed.data());
  }

  void decode(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
    const std::int64_t cols = work.w.to.cols, size = kernels::size_of(plan_.type);
    context.out.resize(static_cast<std::size_t>(rows * cols * size));
    decode_source(work, context.in.data(), row, rows, context.out.data(), plan_.type);
    if (work.may_overflow && overflows(context, work, row, rows)) {
      fail(work.w.from.weight, std::string("holds values that leave the range of ") + kernels::name_of(plan_.type));
    }
    context.write(work.w.output(), context.out.data(), static_cast<std::uint64_t>(row * cols * size),
                  context.out.size());
  }

  /// codes: what is written, scaled by work.to. before: the values that they stand for.
  void note_deviation(Work& work, const std::vector<float>& before, const std::uint8_t* codes, std::int64_t row,
                      std::int64_t rows) const {
    std::vector<float> after(before.size());
    decode_weight_rows(codes, rows, work.w.to.cols, row, work.to.data(), static_cast<std::int64_t>(work.to.size()),
                       work.w.to.scheme, after.data(), FloatType::F32);
    Deviation d;
    d.add(before.data(), after.data(), static_cast<std::int64_t>(before.size()));
    const std::lock_guard lock(work.mutex);
    work.largest = std::max(work.largest, d.largest);
    work.largest_value = std::max(work.largest_value, d.largest_value);
  }

  void rescale(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
    std::vector<float> values(context.in.size());
    decode_source(work, context.in.data(), row, rows, values.data(), FloatType::F32);
    plan_.rescaling.apply(context.in.data(), static_cast<std::int64_t>(context.in.size()));
    plan_.form->write_codes(context, work.w.to, context.in.data(), row, rows);
    note_deviation(work, values, context.in.data(), row, rows);
  }

  void requantize(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const {
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
  float tensor_amax(UnitContext& context, const PlannedWeight& of) {
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

  static std::string group_key(const PlannedWeight& w) { return w.fuse_group.empty() ? w.to.module : w.fuse_group; }

  float weight_amax(UnitContext& context, const PlannedWeight& w) const {
    Work work(w);
    work.from = read_scale_inv(source_.checkpoint, w.from);
    const std::int64_t step = chunk_rows(w), cols = w.to.cols;
    std::vector<std::uint8_t> codes;
    std::vector<float> values;
    float largest = 0;
    for (std::int64_t row = 0; row < w.to.rows; row += step) {
      const std::int64_t rows = std::min(step, w.to.rows - row);
      codes.resize(static_cast<std::size_t>(rows * cols));
      values.resize(codes.size());
      read_code_rows(source_.checkpoint, w.from, row, rows, codes.data());
      decode_source(work, codes.data(), row, rows, values.data(), FloatType::F32);
      largest = std::max(largest, kernels::amax(values.data(), FloatType::F32, rows * cols));
      context.advance(0);
    }
    return largest;
  }

  void finish_weight(UnitContext& context, Work& work) {
    const auto& w = work.w;
    if (w.change == Change::decoded) return;
    load_scales(context, work);  // a weight without rows has not come by
    plan_.form->write_scales(context, w.to, plan_.config, work.to);
    if (w.exact) return;
    const std::lock_guard lock(report_mutex_);
    report_.modules[static_cast<std::size_t>(&w - plan_.weights.data())].max_error =
        work.largest == 0 ? 0 : work.largest / work.largest_value;
  }

  // The folder

  io::Json identity() const {
    io::Json id = {{"command", "convert"},    {"version", FP8_VERSION},
                   {"to", report_.to},        {"cast_all", plan_.cast},
                   {"qdq", plan_.config.qdq}, {"rescale", {plan_.rescaling.times, plan_.rescaling.over}}};
    if (options_.assume.has_value()) id["assume"] = name_of(*options_.assume);
    if (!nonfinite_.empty()) id["nonfinite"] = nonfinite_json(nonfinite_);
    id["source"] = files_;
    return id;
  }

  void finish_folder(OutputFolder& folder, const std::string& mark) {
    io::Json edits = {{"quantization_config", nullptr}, {"compression_config", nullptr}};
    if (plan_.form != nullptr) {
      const io::Json config = plan_.form->config(plan_.config);
      edits["quantization_config"] = config;
      for (const auto& [name, value] : plan_.form->extra_files(config)) folder.write_json(name, value);
    } else if (plan_.type != source_.type) {
      for (const char* key : {"dtype", "torch_dtype"}) {
        if (source_.config.contains(key)) edits[key] = word_of(plan_.type);
      }
    }
    io::Json note = plan_.form != nullptr ? sidecar() : make_note();
    note["converted"] = {
        {"from", source_.form_name()},
        {"exact", std::all_of(plan_.weights.begin(), plan_.weights.end(), [](const auto& w) { return w.exact; })}};
    if (!nonfinite_.empty()) note["nonfinite"] = nonfinite_json(nonfinite_);
    note["run"] = mark;
    folder.write_json(kSidecarName, note);
    folder.write_config(source_.checkpoint.folder() / "config.json", edits);
    const auto warnings = folder.carry_through(source_.checkpoint.folder());
    report_.notes.insert(report_.notes.end(), warnings.begin(), warnings.end());
  }

  io::Json sidecar() const {
    Plan plan;
    plan.scale_method = plan_.config.scale_method;
    const io::Json& old = source_.sidecar;
    if (old.is_object() && old.contains("measurements") && old["measurements"].is_string())
      plan.measurements = old["measurements"].get<std::string>();
    if (old.is_object() && old.contains("skipped") && old["skipped"].is_object()) {
      for (const auto& [name, reason] : old["skipped"].items()) {
        if (reason.is_string()) plan.skipped.push_back({name, reason.get<std::string>()});
      }
    }
    for (const auto& w : plan_.weights) {
      if (!w.reason.empty()) plan.skipped.push_back({w.to.module, w.reason});
    }
    return make_sidecar(plan, plan_.config.scheme);
  }

  const ConvertOptions& options_;
  const io::Json files_, carried_;  // of the source, as they were before it was read
  ConvertSource source_;
  ConvertPlan plan_;
  ConvertReport report_;
  std::map<std::string, NonFinite> nonfinite_;  // by tensor of the source; allowed
  std::mutex report_mutex_;
  std::map<std::string, Group> groups_;
  std::set<std::string> outputs_;
  std::vector<Unit> units_;
};

}  // namespace

const char* name_of(Change change) {
  switch (change) {
    case Change::decoded:
      return "decoded";
    case Change::unchanged:
      return "unchanged";
    case Change::spread:
      return "scales spread";
    case Change::rescaled:
      return "rescaled";
    case Change::requantized:
      break;
  }
  return "requantized";
}

ConvertReport convert_checkpoint(const fs::path& model, const fs::path& out, const ConvertOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  Job job(model, options);
  if (!options.dry_run) job.write(out);
  return std::move(job.report());
}

}  // namespace fp8::quant
