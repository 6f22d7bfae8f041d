// SPDX-License-Identifier: Apache-2.0
// fp8 run: a TorchScript model on inputs from a file, in high precision or with measured modules in fp8. Samples run in
// order, so a model that keeps state in itself carries it from one to the next.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/common/file_dtype.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/script_input.h"

namespace fp8::commands {
namespace {

io::DType file_dtype(at::ScalarType dtype, const std::string& name) {
  const auto stored = runtime::ops::file_dtype(dtype);
  if (stored && !runtime::ops::is_fp8(dtype)) return *stored;
  io::fail<io::Error>("forward's result: {} is of dtype {}, allowed: bool, integers, f16, bf16, f32, f64", name,
                      c10::toString(dtype));
}

/// Collects the outputs of all calls along dimension 0. Memory is bounded by one call: the file's layout follows from
/// the first call, and every later one must return tensors of the same dtypes and shapes per sample.
class RunOutput {
 public:
  /// samples: of the whole run. reference: a file that an earlier run wrote, or empty.
  RunOutput(std::filesystem::path path, std::int64_t samples, const std::filesystem::path& reference)
      : path_(std::move(path)), samples_(samples) {
    if (!reference.empty()) reference_ = std::make_unique<io::SafetensorsFile>(reference);
  }

  /// The tensors of samples [first, first + count). Throws io::Error if they do not fit those of the calls before.
  void append(const std::vector<std::pair<std::string, at::Tensor>>& tensors, std::int64_t first, std::int64_t count) {
    if (writer_ == nullptr) lay_out(tensors, count);
    if (tensors.size() != outputs_.size())
      io::fail<io::Error>("forward's result: {} tensors for sample {}, {} before", tensors.size(), first,
                          outputs_.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Output& o = outputs_[i];
      at::Tensor values = tensors[i].second.detach().to(at::kCPU).contiguous();
      if (values.dim() == 0) values = values.unsqueeze(0);
      auto expected = o.shape;
      expected[0] = o.rows_per_sample * count;
      if (tensors[i].first != o.name || values.scalar_type() != o.dtype ||
          values.sizes() != at::IntArrayRef(expected)) {
        io::fail<io::Error>("forward's result: {} is {} {} for sample {}, expected {} {} as before", tensors[i].first,
                            c10::toString(values.scalar_type()), io::Json(values.sizes().vec()).dump(), first,
                            c10::toString(o.dtype), io::Json(expected).dump());
      }
      const auto row_bytes = samples_ > 0 && values.size(0) > 0 ? static_cast<std::uint64_t>(values.nbytes()) /
                                                                      static_cast<std::uint64_t>(values.size(0))
                                                                : 0;
      const std::uint64_t offset = static_cast<std::uint64_t>(first * o.rows_per_sample) * row_bytes;
      writer_->write(o.name, values.const_data_ptr(), offset, values.nbytes());
      look_at(o, values, offset);
    }
  }
  void commit() { writer_->commit(); }

  /// "outputs": {"output": {"shape", "dtype", "min", "max", "mean", "non_finite", "mean_difference"?,
  /// "max_difference"?}}, and rows; after commit().
  void add_to(Report& report) const {
    auto& all = report.json["outputs"] = io::Json::object();
    for (const auto& o : outputs_) {
      const std::string dtype = io::name_of(file_dtype(o.dtype, o.name));
      auto& one = all[o.name] = {{"shape", o.shape}, {"dtype", dtype},   {"min", o.min},
                                 {"max", o.max},     {"mean", o.mean()}, {"non_finite", o.non_finite}};
      report.row({o.name, fmt::format("{} {}", dtype, io::Json(o.shape).dump())});
      report.row({o.name + " min, mean, max", fmt::format("{:.6g}, {:.6g}, {:.6g}", o.min, o.mean(), o.max)});
      if (o.non_finite > 0) report.row({o.name + " NaN or Inf", std::to_string(o.non_finite)});
      if (reference_ == nullptr) continue;
      one["mean_difference"] = o.mean_difference();
      one["max_difference"] = o.difference_max;
      report.row(
          {o.name + " difference mean, max", fmt::format("{:.3e}, {:.3e}", o.mean_difference(), o.difference_max)});
    }
  }

 private:
  struct Output {
    std::string name;
    std::vector<std::int64_t> shape;  ///< of the whole run
    at::ScalarType dtype = at::kFloat;
    std::int64_t rows_per_sample = 1;
    double min = 0, max = 0, sum = 0, difference_sum = 0, difference_max = 0;
    std::int64_t seen = 0, non_finite = 0;
    double mean() const { return seen > 0 ? sum / static_cast<double>(seen) : 0; }
    double mean_difference() const { return seen > 0 ? difference_sum / static_cast<double>(seen) : 0; }
  };
  /// Shapes and dtypes of the whole run from those of its first call.
  void lay_out(const std::vector<std::pair<std::string, at::Tensor>>& tensors, std::int64_t count) {
    if (tensors.empty()) throw io::Error("forward's result: found no tensor");
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors) {
      Output o;
      o.name = name;
      o.dtype = tensor.scalar_type();
      o.shape = tensor.dim() == 0 ? std::vector<std::int64_t>{1} : tensor.sizes().vec();
      if (o.shape[0] % count != 0)
        io::fail<io::Error>(
            "forward's result: {} has {} rows for {} samples, allowed: as many for each sample (try --batch 1)", name,
            o.shape[0], count);
      o.rows_per_sample = o.shape[0] / count;
      o.shape[0] = o.rows_per_sample * samples_;
      entries.push_back({name, file_dtype(o.dtype, name), o.shape});
      if (reference_ != nullptr) {
        const auto* other = reference_->find(name);
        if (other == nullptr || other->shape != o.shape)
          io::fail<io::Error>("{}: expected a tensor '{}' of shape {}, found {}", reference_->path().string(), name,
                              io::Json(o.shape).dump(), other == nullptr ? "none" : io::Json(other->shape).dump());
      }
      outputs_.push_back(std::move(o));
    }
    writer_ = std::make_unique<io::SafetensorsWriter>(path_, entries);
  }
  void look_at(Output& o, const at::Tensor& values, std::uint64_t offset) {
    const at::Tensor wide = values.to(at::kDouble);
    at::Tensor other;
    if (reference_ != nullptr) {
      const auto* found = reference_->find(o.name);
      TORCH_INTERNAL_ASSERT(found != nullptr, o.name, ": laid out beside a reference without it");
      const auto& info = *found;
      const std::uint64_t item = values.element_size(), width = static_cast<std::uint64_t>(io::size_of(info.dtype));
      other = at::empty(values.sizes(), models::scalar_type_of(info.dtype, o.name));
      reference_->read(info, other.mutable_data_ptr(), offset / item * width,
                       static_cast<std::uint64_t>(other.nbytes()));
      other = other.to(at::kDouble);
    }
    const double* x = wide.const_data_ptr<double>();
    const double* r = other.defined() ? other.const_data_ptr<double>() : nullptr;
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
      if (!std::isfinite(x[i])) {
        ++o.non_finite;
        continue;
      }
      o.min = o.seen == 0 ? x[i] : std::min(o.min, x[i]);
      o.max = o.seen == 0 ? x[i] : std::max(o.max, x[i]);
      o.sum += x[i];
      ++o.seen;
      if (r == nullptr) continue;
      const double d = std::abs(x[i] - r[i]);
      o.difference_sum += d;
      o.difference_max = std::max(o.difference_max, d);
    }
  }

  std::filesystem::path path_;
  std::int64_t samples_;
  std::unique_ptr<io::SafetensorsFile> reference_;
  std::unique_ptr<io::SafetensorsWriter> writer_;
  std::vector<Output> outputs_;
};

/// The config that is in force: --config, or QUANT_CONFIG of the environment where nothing else asks for fp8.
std::optional<configs::QuantConfig> config_of(const RunOptions& o) {
  std::optional<configs::QuantConfig> config;
  if (!o.config.empty())
    config = configs::read_quant_config(o.config, measure::parse_options());
  else if (const auto path = configs::quant_config_from_environment(); path.has_value() && o.measurements.empty())
    config = configs::read_quant_config(*path, measure::parse_options());
  if (!config.has_value() || config->mode == configs::QuantMode::NONE) return std::nullopt;
  if (config->mode == configs::QuantMode::MEASURE || config->mode == configs::QuantMode::SHAPE)
    io::fail<io::Error>("{}: key 'mode': found {}, expected QUANTIZE (fp8 measure --config measures)", config->source,
                        configs::name_of(config->mode));
  configs::refuse_type_paths(*config);
  return config;
}

/// Nothing: the model stays in high precision.
std::optional<quant::PlanOptions> plan_of(const RunOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.spelling = flag_of_option;
  plan.activations = quant::ActivationScaling::static_tensor;
  plan.config = config_of(o);
  plan.include = o.include;
  plan.exclude = o.exclude;
  // It runs here, so its codes are the emulated device's (FP8_HPU_DEVICE) unless --dialect names others.
  const bool gaudi2 = runtime::device_kind() == runtime::DeviceKind::gaudi2;
  plan.dialect = context.dialect.value_or(gaudi2 ? kernels::Dialect::gaudi2 : kernels::Dialect::ocp);
  if (plan.config.has_value()) {
    if (!o.include.empty() || !o.exclude.empty())
      throw UsageError("run: the QUANT_CONFIG decides the modules, --include and --exclude don't go with it");
    if (!context.dialect.has_value()) plan.dialect = runtime::device_dialect("run");
    if (!o.measurements.empty()) plan.measurements = measure::measurements_for(*plan.config, o.measurements);
    return plan;
  }
  if (o.measurements.empty()) {
    if (!o.include.empty() || !o.exclude.empty())
      throw UsageError("run: --include and --exclude go with --measurements");
    return std::nullopt;
  }
  plan.measurements = measure::read_measurements(o.measurements);
  return plan;
}

/// Converts the model. Modules that were watched and never called stay as they are.
quant::ConversionReport convert_script(const torch::jit::Module& model, const RunOptions& o, quant::PlanOptions plan) {
  if (plan.config.has_value() && o.measurements.empty())
    return quant::convert_with_config(model, *plan.config, *plan.dialect);
  if (plan.measurements.has_value() && !plan.config.has_value()) {
    for (const auto& name : plan.measurements->selected)
      if (plan.measurements->find(name) == nullptr) plan.keep[name] = "never called while it was measured";
  }
  return quant::convert(model, plan);
}

/// The modules are listed in the JSON and, those that stay as they are, below the table, which has their numbers.
void add_modules(const quant::ConversionReport& converted, Report& report) {
  io::Json quantized = io::Json::array(), kept = io::Json::array();
  for (const auto& m : converted.converted)
    quantized.push_back({{"name", m.name}, {"type", m.type}, {"scheme", m.scheme}});
  for (const auto& m : converted.skipped) {
    kept.push_back({{"name", m.name}, {"reason", m.reason}});
    report.below += fmt::format("kept {}: {}\n", m.name, m.reason);
  }
  report.json["modules_quantized"] = std::move(quantized);
  report.json["modules_kept"] = std::move(kept);
}

/// All samples through the model; returns the seconds spent in forward.
double forward_all(const RunOptions& o, torch::jit::Module& model, const ScriptInputs& inputs, const Context& context,
                   RunOutput& output) {
  const auto device = resolve_device(context);
  Progress progress(context, "run", inputs.samples());
  progress.announce(peak_resident_bytes);
  double seconds = 0;
  for (std::int64_t first = 0; first < inputs.samples(); first += inputs.batch()) {
    check_interrupted();
    const std::int64_t count = std::min(inputs.batch(), inputs.samples() - first);
    auto arguments = inputs.arguments(first, count, device, compute_dtype(context));
    const Stopwatch forward;
    const auto result = call_forward(model, std::move(arguments), o.model);
    seconds += forward.seconds();
    output.append(output_tensors(result), first, count);
    progress.update(first + count);
  }
  return seconds;
}

void convert_and_run(const RunOptions& o, Context& context) {
  const at::NoGradGuard no_grad;
  const Stopwatch watch;
  const auto plan = plan_of(o, context);
  if (!plan.has_value() && context.dialect.has_value())
    throw UsageError("run: --dialect goes with --measurements, --config or a QUANT_CONFIG");
  if (plan.has_value() && context.device != "hpu")
    io::fail<UsageError>("--device: found '{}', but fp8 modules run on hpu", context.device);
  auto model = load_script(o.model, context);
  const ScriptInputs inputs(o.inputs, model, o);
  quant::ConversionReport converted;
  if (plan.has_value()) {
    converted = convert_script(model, o, *plan);
    quant::serve(model);
    for (const auto& warning : converted.warnings) context.warn(warning);
    if (plan->config.has_value() && o.config.empty())
      note_conversion("QUANT_CONFIG " + plan->config->source, converted, context);
    if (converted.converted.empty()) context.warn(o.model.string() + ": no module is quantized");
  }
  RunOutput output(o.out, inputs.samples(), o.reference);
  const double forward_seconds = forward_all(o, model, inputs, context, output);
  output.commit();
  const double seconds = watch.seconds();
  Report report("run", o.model);
  add_modules(converted, report);
  report.add("chunks", "chunks", inputs.samples(), As::grouped);
  report.row({"modules in fp8", std::to_string(converted.converted.size())});
  report.row({"modules kept", std::to_string(converted.skipped.size())});
  report.json.update({{"batch", inputs.batch()}, {"seconds", seconds}, {"forward_seconds", forward_seconds}});
  output.add_to(report);
  report.add("seconds", "seconds", seconds, As::seconds);
  report.add("out", "out", o.out.string());
  report.print(context);
}

const Provided g_run(run_script, convert_and_run);

}  // namespace
}  // namespace fp8::commands
