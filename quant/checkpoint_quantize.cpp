// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint_quantize.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "fp8/quant/formats/checkpoint_folder.h"
#include "fp8/quant/formats/compressed_tensors.h"
#include "fp8/quant/formats/inc_checkpoint.h"
#include "fp8/quant/formats/sidecar.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/io/safetensors.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using io::DType;

constexpr std::uint64_t kChunkBytes = std::uint64_t{8} << 20;

bool is_float(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16; }
recipes::FloatType float_type(DType dtype) {
  return dtype == DType::F32 ? recipes::FloatType::F32 : dtype == DType::BF16 ? recipes::FloatType::BF16 : recipes::FloatType::F16;
}

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.size() - 7); }

/// One run: the plan, the source, the outputs.
class Job {
 public:
  Job(const fs::path& model, const CheckpointOptions& options)
      : options_(options), config_(read_model_config(model)), source_(model), plan_(make_plan(find_modules(), options.plan)) {
    check_plan();
    check_model();
    lay_out();
  }

  CheckpointReport report() const {
    CheckpointReport r;
    for (const auto& m : plan_.modules) r.quantized.emplace_back(m.info.name, m.scheme.describe());
    r.skipped = plan_.skipped;
    r.warnings = plan_.warnings;
    r.source_bytes = source_.total_bytes();
    for (const auto& e : entries_) r.weights_bytes += bytes_of(e);
    return r;
  }

  void write(const fs::path& out) {
    OutputFolder folder(out, options_.overwrite);
    ShardedWriter writer(folder.path(), entries_, options_.shard_bytes);
    total_ = source_.total_bytes();
    for (const auto& e : entries_) {
      if (const PlannedModule* m = weight_of(e.name)) {
        quantize(*m, writer);
      } else if (source_.contains(e.name)) {
        keep(e.name, writer);
      }
    }
    writer.commit();
    const Scheme scheme = plan_.modules.front().scheme;
    io::Json edits;
    edits["quantization_config"] = is_inc() ? inc::make_config(scheme, plan_.scale_method, names_, kept_linears(), layout_)
                                            : compressed_tensors::make_config(scheme, names_, kept_linears());
    if (is_inc()) folder.write_json("quantization_config.json", edits["quantization_config"]);
    if (tied_ && plan_.find("lm_head") != nullptr) edits["tie_word_embeddings"] = false;
    folder.write_config(source_.folder() / "config.json", edits);
    folder.write_json(kSidecarName, make_sidecar(plan_, scheme));
    for (auto& warning : folder.carry_through(source_.folder())) plan_.warnings.push_back(std::move(warning));
    folder.commit();
  }

 private:
  /// The tensor that holds a module's weight: its own, or the embedding's for a tied lm_head.
  std::string source_tensor(const std::string& module) const { return untied_ && module == "lm_head" ? "model.embed_tokens.weight" : module + ".weight"; }

  std::vector<ModuleInfo> find_modules() {
    std::vector<ModuleInfo> modules;
    for (const auto& tensor : source_.names()) {
      const auto& info = source_.info(tensor);
      if (tensor.size() <= 7 || tensor.compare(tensor.size() - 7, 7, ".weight") != 0 || info.shape.size() < 2) continue;
      modules.push_back({module_of(tensor), type_of_weight(module_of(tensor), info.shape), info.shape});
    }
    const io::Json tie = config_.value("tie_word_embeddings", io::Json(false));
    if (!tie.is_boolean() && !tie.is_null()) {
      throw io::Error((source_.folder() / "config.json").string() + ": key 'tie_word_embeddings': found " + io::printable(tie.dump(-1, ' ', true), 60) + ", allowed: true, false");
    }
    tied_ = tie == io::Json(true);
    if (tied_ && !source_.contains("lm_head.weight") && source_.contains("model.embed_tokens.weight")) {
      modules.push_back({"lm_head", "Linear", source_.info("model.embed_tokens.weight").shape});
      tied_head_ = true;
    }
    return modules;
  }

  bool is_inc() const { return options_.format == CheckpointFormat::inc; }

  /// Throws if the form can't hold the module's scheme.
  void check_form(const PlannedModule& m) const {
    if (is_inc()) return inc::check_scheme(m.scheme, m.info.name);
    const std::string form = name_of(options_.format);
    if (m.scheme.format != recipes::Format::E4M3) throw io::Error(form + ": expected fp8_config E4M3, found E5M2");
    if (options_.format != CheckpointFormat::inc_vllm) return;
    if (m.scheme.weights != WeightGranularity::tensor || m.scheme.activations != ActivationScaling::static_tensor) {
      throw io::Error(form + ": " + m.info.name + ": expected one static scale per tensor, found " + m.scheme.describe());
    }
  }

  void check_plan() {
    if (plan_.modules.empty()) throw io::Error(source_.folder().string() + ": no module is left to quantize (--include, --exclude, allowlist, blocklist)");
    std::vector<PlannedModule> linears;
    for (auto& m : plan_.modules) {
      if (m.info.type != "Linear" || m.info.shape.size() != 2) {
        plan_.skipped.push_back({m.info.name, name_of(options_.format) + std::string(" quantizes Linear only, this is ") + m.info.type});
        continue;
      }
      const auto& info = source_.info(m.info.name == "lm_head" && tied_head_ ? "model.embed_tokens.weight" : m.info.name + ".weight");
      if (!is_float(info.dtype)) {
        throw io::Error(source_.folder().string() + ": " + info.name + ": expected dtype F32, BF16 or F16, found " + io::name_of(info.dtype));
      }
      check_form(m);
      for (const char* made : {".weight_scale", ".input_scale", ".scale_weight", ".scale_input"}) {
        if (source_.contains(m.info.name + made)) {
          throw io::Error(source_.folder().string() + ": " + m.info.name + made + ": a scale, in what should be a high precision checkpoint");
        }
      }
      linears.push_back(m);
    }
    plan_.modules = std::move(linears);
    if (plan_.modules.empty()) throw io::Error(source_.folder().string() + ": no Linear module is left to quantize");
    untied_ = tied_head_ && plan_.find("lm_head") != nullptr;
    for (const auto& m : plan_.modules) names_.push_back(m.info.name);
  }

  /// The measurement's fingerprint, if it has one, against the weights that are to be quantized.
  void check_model() const {
    const auto& measurements = options_.plan.measurements;
    if (!measurements.has_value() || !measurements->model.has_value()) return;
    measure::ModelFingerprint model;
    for (const auto& m : plan_.modules) model.weights.push_back(measure::fingerprint_of(m.info.name, source_, source_tensor(m.info.name)));
    measure::require_same_model(*measurements->model, model, "measurements");
  }

  void lay_out() {
    for (const auto& tensor : source_.names()) {
      const auto& info = source_.info(tensor);
      if (weight_of(tensor) == nullptr) entries_.push_back({tensor, info.dtype, info.shape});
    }
    if (is_inc()) layout_ = inc::layout_of(plan_.modules.front().scheme, options_.plan.config.has_value() && options_.plan.config->use_qdq);
    for (const auto& m : plan_.modules) {
      if (is_inc()) {
        for (auto& e : inc::entries(m.info.name, m.info.shape[0], m.info.shape[1], m.scheme, layout_)) entries_.push_back(std::move(e));
        continue;
      }
      entries_.push_back({m.info.name + ".weight", DType::F8_E4M3, m.info.shape});
      entries_.push_back({m.info.name + ".weight_scale", DType::F32,
                          m.scheme.weights == WeightGranularity::channel ? std::vector<std::int64_t>{m.info.shape[0], 1} : std::vector<std::int64_t>{1}});
      if (m.scheme.activations == ActivationScaling::static_tensor) entries_.push_back({m.info.name + ".input_scale", DType::F32, {1}});
    }
    for (std::size_t i = 0; i < plan_.modules.size(); ++i) by_weight_[plan_.modules[i].info.name + ".weight"] = i;
  }

  const PlannedModule* weight_of(const std::string& tensor) const {
    if (tensor.size() <= 7 || tensor.compare(tensor.size() - 7, 7, ".weight") != 0) return nullptr;
    if (by_weight_.empty()) return plan_.find(module_of(tensor));
    const auto it = by_weight_.find(tensor);
    return it == by_weight_.end() ? nullptr : &plan_.modules[it->second];
  }

  /// Linears that stay as they are: transformers needs each by name.
  std::vector<std::string> kept_linears() const {
    std::vector<std::string> kept;
    for (const auto& s : plan_.skipped) {
      const std::string tensor = s.name + ".weight";
      const bool linear = source_.contains(tensor) ? type_of_weight(s.name, source_.info(tensor).shape) == "Linear" : s.name == "lm_head";
      if (linear) kept.push_back(s.name);
    }
    return kept;
  }

  void advance(std::uint64_t bytes) {
    done_ += bytes;
    if (options_.stop && options_.stop()) throw io::Error("interrupted");
    if (options_.progress) options_.progress(std::min(done_, total_), total_);
  }

  /// Calls body(first_row, rows, data) over a weight, chunk by chunk.
  template <class Body>
  void for_rows(const std::string& tensor, Body body) {
    const auto& info = source_.info(tensor);
    const std::uint64_t row_bytes = static_cast<std::uint64_t>(info.shape[1]) * static_cast<std::uint64_t>(io::size_of(info.dtype));
    const std::int64_t step = std::max<std::int64_t>(1, static_cast<std::int64_t>(kChunkBytes / std::max<std::uint64_t>(row_bytes, 1)));
    for (std::int64_t row = 0; row < info.shape[0]; row += step) {
      const std::int64_t rows = std::min(step, info.shape[0] - row);
      in_.resize(static_cast<std::uint64_t>(rows) * row_bytes);
      source_.read(tensor, in_.data(), static_cast<std::uint64_t>(row) * row_bytes, in_.size());
      body(row, rows);
    }
  }

  float tensor_amax(const std::string& tensor) {
    if (auto it = amax_.find(tensor); it != amax_.end()) return it->second;
    const auto& info = source_.info(tensor);
    float largest = 0;
    for_rows(tensor, [&](std::int64_t, std::int64_t rows) {
      const float a = kernels::amax(in_.data(), float_type(info.dtype), rows * info.shape[1]);
      largest = std::isnan(a) || a > largest ? a : largest;
      advance(0);
    });
    if (!std::isfinite(largest)) {
      throw io::Error(source_.folder().string() + ": " + tensor + ": expected finite weights, found " + (std::isnan(largest) ? "NaN" : "Inf"));
    }
    return amax_[tensor] = largest;
  }

  /// The amax that a per-tensor scale is made of: the module's own, or the largest of its group.
  float scale_amax(const PlannedModule& m) {
    float amax = tensor_amax(source_tensor(m.info.name));
    check_measured_weight(m, amax);
    if (m.fuse_group.empty()) return amax;
    for (const auto& other : plan_.modules) {
      if (other.fuse_group == m.fuse_group) amax = std::max(amax, tensor_amax(source_tensor(other.info.name)));
    }
    return amax;
  }

  /// One scale for all of a weight. A search needs all of it in memory.
  WeightScales tensor_scales(const PlannedModule& m, recipes::FloatType type) {
    const std::string tensor = source_tensor(m.info.name);
    const float amax = scale_amax(m);
    if (!searches(m.scheme)) return weight_scales({amax}, m.scheme, tensor);
    const auto& info = source_.info(tensor);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(info.bytes()));
    source_.read(tensor, all.data(), 0, all.size());
    return searched_weight_scales(all.data(), type, info.shape[0], info.shape[1], m.scheme, tensor);
  }

  void quantize(const PlannedModule& m, ShardedWriter& writer) {
    const std::string tensor = source_tensor(m.info.name), name = m.info.name;
    const auto& info = source_.info(tensor);
    const auto type = float_type(info.dtype);
    const std::int64_t cols = info.shape[1];
    const bool per_channel = m.scheme.weights == WeightGranularity::channel;
    WeightScales scales;
    float largest = 0;
    if (!per_channel) scales = tensor_scales(m, type);
    std::vector<float> stored;
    for_rows(tensor, [&](std::int64_t row, std::int64_t rows) {
      if (per_channel) {  // a row's scale needs that row only: amax and cast while it is in cache
        std::vector<float> amax(static_cast<std::size_t>(rows));
        kernels::amax_rows(in_.data(), type, rows, cols, cols, amax.data());
        for (float a : amax) largest = std::isnan(a) || a > largest ? a : largest;
        scales = searches(m.scheme) ? searched_weight_scales(in_.data(), type, rows, cols, m.scheme, tensor) : weight_scales(amax, m.scheme, tensor, type);
        stored.insert(stored.end(), scales.scale_inv.begin(), scales.scale_inv.end());
      }
      out_.resize(static_cast<std::size_t>(rows * cols));
      cast_weight_rows(in_.data(), type, rows, cols, 0, scales, m.scheme, out_.data());
      if (is_inc()) {
        inc::write_rows(writer, name, out_.data(), rows, cols, row, info.shape[0]);
      } else {
        writer.write(name + ".weight", out_.data(), static_cast<std::uint64_t>(row * cols), out_.size());
      }
      advance(in_.size());
    });
    if (per_channel) check_measured_weight(m, largest);
    if (!per_channel) stored = scales.scale_inv;
    if (is_inc()) return inc::write_scales(writer, name, stored, m.scheme, layout_);
    writer.write(name + ".weight_scale", stored.data(), 0, stored.size() * sizeof(float));
    if (m.scheme.activations == ActivationScaling::static_tensor) writer.write(name + ".input_scale", &m.scheme.input_scale_inv, 0, sizeof(float));
  }

  void keep(const std::string& tensor, ShardedWriter& writer) {
    const auto& info = source_.info(tensor);
    for (std::uint64_t at = 0; at < info.bytes() || at == 0; at += kChunkBytes) {
      const std::uint64_t size = std::min(kChunkBytes, info.bytes() - at);
      in_.resize(size);
      source_.read(tensor, in_.data(), at, size);
      if (is_float(info.dtype)) {
        const float a = kernels::amax(in_.data(), float_type(info.dtype), static_cast<std::int64_t>(size) / io::size_of(info.dtype));
        if (std::isnan(a)) throw io::Error(source_.folder().string() + ": " + tensor + ": expected finite weights, found NaN");
      }
      writer.write(tensor, in_.data(), at, size);
      advance(size);
    }
  }

  const CheckpointOptions& options_;
  io::Json config_;
  io::Checkpoint source_;
  bool tied_ = false;       // config.json says so; a quantized lm_head ends it
  bool tied_head_ = false;  // and the file has no lm_head.weight
  bool untied_ = false;     // lm_head is quantized from the embedding's tensor
  Plan plan_;
  inc::Layout layout_;
  std::vector<std::string> names_;
  std::vector<io::SafetensorsWriter::Entry> entries_;
  std::map<std::string, std::size_t> by_weight_;
  std::map<std::string, float> amax_;
  std::vector<std::uint8_t> in_, out_;
  std::uint64_t done_ = 0, total_ = 0;
};

}  // namespace

CheckpointReport quantize_checkpoint(const fs::path& model, const fs::path& out, const CheckpointOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  Job job(model, options);
  if (!options.dry_run) job.write(out);
  return job.report();
}

}  // namespace fp8::quant
