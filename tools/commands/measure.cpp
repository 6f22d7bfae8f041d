// SPDX-License-Identifier: Apache-2.0
// fp8 measure: the model runs on calibration data with watchers on its weights; amax of inputs, outputs and weights go to files in
// Intel Neural Compressor's form.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "fp8/configs/configs.h"
#include "fp8/measure/calibration.h"
#include "fp8/runtime/io/error.h"
#include "fp8/tools/commands/command.h"
#include "fp8/tools/commands/environment_config.h"
#include "fp8/tools/commands/model_input.h"
#include "fp8/tools/commands/output.h"
#include "fp8/tools/commands/progress.h"
#include "fp8/tools/commands/table.h"

namespace fp8::commands {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct MeasureOptions : DataOptions {
  MeasureOptions() { samples = 128; }
  std::filesystem::path model, out, config;
};

/// Which modules, what of them, and where to: the config's word, or everything into OUT/inc_output*.
struct Selection {
  measure::CalibrationOptions options;
  std::shared_ptr<configs::ModuleFilter> filter;  ///< null without a config
};

Selection selection_of(const MeasureOptions& o) {
  Selection s;
  std::string prefix = "inc_output";
  if (!o.config.empty()) {
    const auto config = configs::read_quant_config(o.config);
    configs::refuse_unbuilt(config, true);
    if (!config.dump_stats_path.filename().empty()) prefix = config.dump_stats_path.filename().string();
    s.filter = std::make_shared<configs::ModuleFilter>(configs::module_filter(config));
    const auto exclude = config.measure_exclude;
    s.options.outputs = exclude != configs::MeasureExclude::OUTPUT && exclude != configs::MeasureExclude::ALL;
  }
  s.options.select = [filter = s.filter](const std::string& name, const std::string& type) {
    const bool selected = filter == nullptr || filter->selects(type, name);
    return selected && (type == "Linear" || type == "Conv2d");
  };
  s.options.prefix = (o.out / prefix).string();
  return s;
}

/// Runs forward(first, count) over all samples. What was seen before Ctrl-C is written, then Interrupted is thrown.
template <class Forward>
void run(const MeasureOptions& o, Context& context, measure::CalibrationSession& session, std::int64_t samples, double& forward_seconds, Forward forward) {
  Progress progress(context, "measure", samples);
  for (std::int64_t first = 0; first < samples; first += o.batch) {
    if (interrupted()) {
      if (session.samples() > 0) session.finalize();
      throw Interrupted();
    }
    const std::int64_t count = std::min(o.batch, samples - first);
    session.begin_samples(first, count);
    const auto start = Clock::now();
    forward(first, count);
    forward_seconds += seconds_since(start);
    progress.update(first + count);
  }
}

/// Watches `model`. Throws io::Error if nothing is selected or the files can't be written: now, not after the run.
template <class Model>
std::shared_ptr<measure::CalibrationSession> watch(const MeasureOptions& o, const Selection& s, const Model& model) {
  measure::check_writable(s.options.prefix);
  auto session = measure::CalibrationSession::attach(model, s.options);
  if (!session->result().selected.empty()) return session;
  session->discard();
  throw io::Error(o.model.string() + ": no module is selected to be measured");
}

/// Discards a session that was not finalized when an error leaves the scope.
struct DiscardOnError {
  std::shared_ptr<measure::CalibrationSession>& session;
  ~DiscardOnError() {
    if (session != nullptr) session->discard();
  }
};

/// A language model folder.
void measure_folder(const MeasureOptions& o, Context& context, const Selection& s, std::shared_ptr<measure::CalibrationSession>& session, double& seconds) {
  auto model = load_language_model(o.model, context);
  if (model.config_json.contains("quantization_config")) throw io::Error(o.model.string() + ": expected a high precision checkpoint, found an fp8 one");
  auto chunks = load_chunks_for(o, o.model, model.config);
  session = watch(o, s, *model.model);
  const auto ids = at::from_blob(chunks.ids.data(), {chunks.count, chunks.length}, at::kLong);
  run(o, context, *session, chunks.count, seconds, [&](std::int64_t first, std::int64_t count) { model.model->forward(ids.narrow(0, first, count).to(at::kHPU)); });
}

/// The inputs of a TorchScript model: tensors named as forward's arguments, the first dimension counts samples.
std::vector<at::Tensor> script_inputs(const MeasureOptions& o, const torch::jit::Module& model) {
  if (o.data.extension() != ".safetensors") throw io::Error(o.data.string() + ": a TorchScript model takes its inputs from a .safetensors file");
  const io::Checkpoint file(o.data);
  const auto arguments = model.get_method("forward").function().getSchema().arguments();
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (!file.contains(arguments[i].name())) {
      if (arguments[i].default_value().has_value()) break;
      throw io::Error(o.data.string() + ": expected a tensor '" + arguments[i].name() + "' (forward's argument), found none");
    }
    at::Tensor t = models::read_tensor(file, arguments[i].name());
    if (t.dim() < 1 || (!inputs.empty() && t.size(0) != inputs[0].size(0))) {
      throw io::Error(o.data.string() + ": " + arguments[i].name() + ": expected the same number of samples in dimension 0 of every input");
    }
    inputs.push_back(std::move(t));
  }
  if (inputs.empty() || inputs[0].size(0) == 0) throw io::Error(o.data.string() + ": expected at least one sample");
  return inputs;
}

void measure_script(const MeasureOptions& o, Context& context, const Selection& s, std::shared_ptr<measure::CalibrationSession>& session, double& seconds) {
  if (!std::filesystem::exists(o.model)) throw io::Error(o.model.string() + ": no such file");
  torch::jit::Module model = torch::jit::load(o.model.string(), at::Device(at::kCPU));
  model.eval();
  model.to(at::Device(at::kHPU));
  if (context.dtype.has_value()) model.to(*context.dtype);
  const auto inputs = script_inputs(o, model);
  session = watch(o, s, model);
  const std::int64_t samples = std::max<std::int64_t>(0, std::min(o.samples, inputs[0].size(0) - o.skip));
  if (samples == 0) throw io::Error(o.data.string() + ": --skip passes over all samples");
  run(o, context, *session, samples, seconds, [&](std::int64_t first, std::int64_t count) {
    std::vector<c10::IValue> arguments;
    for (const auto& t : inputs) {
      at::Tensor part = t.narrow(0, o.skip + first, count).to(at::kHPU);
      arguments.emplace_back(context.dtype.has_value() && part.is_floating_point() ? part.to(*context.dtype) : part);
    }
    model.forward(std::move(arguments));
  });
}

void measure(const MeasureOptions& o, Context& context) {
  if (context.device != "hpu") throw UsageError("--device: found '" + context.device + "', allowed: hpu");
  const at::NoGradGuard no_grad;
  const auto start = Clock::now();
  const Selection selection = selection_of(o);
  std::shared_ptr<measure::CalibrationSession> session;
  const DiscardOnError guard{session};
  double forward_seconds = 0;
  const bool script = !std::filesystem::is_directory(o.model) && o.model.has_extension();
  (script ? measure_script : measure_folder)(o, context, selection, session, forward_seconds);
  if (selection.filter != nullptr) {
    for (const auto& entry : selection.filter->unused_entries()) context.warn(entry.message);
  }
  warn_non_finite(*session, context);
  const auto result = session->result();
  const auto files = session->finalize();
  std::int64_t tensors = 0;
  for (const auto& m : result.modules) tensors += static_cast<std::int64_t>(m.inputs.size() + (m.outputs ? m.outputs->size() : 0) + (m.weight ? 1 : 0));
  io::Json json = {{"modules", result.modules.size()}, {"tensors", tensors}, {"samples", session->samples()},
                   {"forward_seconds", forward_seconds - session->watch_seconds()}, {"measured_forward_seconds", forward_seconds},
                   {"seconds", seconds_since(start)}, {"non_finite", session->non_finite().size()}, {"out", io::Json::array()}};
  Table table({"measure", ">" + o.model.filename().string()});
  table.row({"modules", std::to_string(result.modules.size())});
  table.row({"tensors", std::to_string(tensors)});
  table.row({"samples", std::to_string(session->samples())});
  table.row({"seconds", human_seconds(seconds_since(start))});
  for (const auto& file : files) {
    json["out"].push_back(file.string());
    table.row({"out", file.string()});
  }
  context.result(json, table.text());
}

}  // namespace

Action add_measure(Options& options) {
  auto values = std::make_shared<MeasureOptions>();
  options.path("--model", values->model, "Checkpoint folder, or a TorchScript file (.pt)", Options::Need::required);
  options.path("--out", values->out, "Folder for the measurement files", Options::Need::required);
  options.path("--config", values->config, "QUANT_CONFIG JSON: allowlist, blocklist, measure_exclude, dump_stats_path");
  add_data_options(options, *values);
  return [values](Context& context) { measure(*values, context); };
}

}  // namespace fp8::commands
