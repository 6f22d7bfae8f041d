// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform.h"

#include <algorithm>
#include <map>

#include "fp8/configs/name_patterns.h"
#include "fp8/quant/checkpoint/reform_plan.h"
#include "fp8/quant/checkpoint/reform_weights.h"
#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/forms/carry_through.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/forms/sidecar.h"
#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using recipes::FloatType;

constexpr std::int64_t kCastElements = std::int64_t{1} << 18;

const char* word_of(FloatType type) {
  return type == FloatType::F32 ? "float32" : type == FloatType::F16 ? "float16" : "bfloat16";
}

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
    add_units();
    report_.from = source_.form_name() +
                   (source_.high_precision() ? "" : ": " + source_.stored.weights.front().spec.scheme.describe());
    report_.to = plan_.form == nullptr ? kernels::name_of(plan_.type)
                                       : std::string(plan_.form->name()) + ": " + plan_.config.scheme.describe();
    for (const auto& w : plan_.weights)
      report_.modules.push_back({w.to.module, w.change, w.exact, w.reason, std::nullopt});
    report_.notes.insert(report_.notes.begin(), plan_.notes.begin(), plan_.notes.end());
    for (auto& notice : notices_beside(source_.checkpoint)) report_.notes.push_back(std::move(notice));
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
    const auto result = make_checkpoint(out, units_, stream, options_.join, finish);
    report_.notes.insert(report_.notes.end(), result.warnings.begin(), result.warnings.end());
    report_.finished_before = result.finished_before;
    report_.shares = result.shares;
    for (std::size_t i = 0; i < plan_.weights.size(); ++i) report_.modules[i].max_error = weights_.max_error(i);
  }

 private:
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
        add(weights_.unit_of(*it->second));
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

  // The folder

  io::Json identity() const {
    io::Json id = {{"command", "convert"},    {"version", FP8_VERSION},
                   {"to", report_.to},        {"cast_all", plan_.cast},
                   {"qdq", plan_.config.qdq}, {"rescale", {plan_.rescaling.times, plan_.rescaling.over}}};
    if (!options_.assume.empty()) id["assume"] = options_.assume;
    if (!nonfinite_.empty()) id["nonfinite"] = nonfinite_json(nonfinite_);
    id["source"] = files_;
    return id;
  }

  void finish_folder(OutputFolder& folder, const std::string& mark) {
    io::Json edits = {{"quantization_config", nullptr}};
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
    folder.write_config(source_.checkpoint.folder() / io::kConfigFile, edits);
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
  ReformedWeights weights_{source_.checkpoint, plan_, nonfinite_};
  std::set<std::string> outputs_;
  std::vector<Unit> units_;
};

}  // namespace

ConvertReport convert_checkpoint(const fs::path& model, const fs::path& out, const ConvertOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  Job job(model, options);
  if (!options.dry_run) job.write(out);
  return std::move(job.report());
}

}  // namespace fp8::quant
