// SPDX-License-Identifier: Apache-2.0
// fp8 measure: the model runs on calibration data with watchers on its weights; amax of inputs, outputs and weights go to files in
// Intel Neural Compressor's form.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "fp8/configs/configs.h"
#include "fp8/configs/module_types.h"
#include "fp8/configs/python_regex.h"
#include "fp8/measure/calibration_options.h"
#include "fp8/runtime/io/error.h"
#include "fp8/tools/commands/command.h"
#include "fp8/tools/commands/environment_config.h"
#include "fp8/tools/commands/model_input.h"
#include "fp8/tools/commands/output.h"
#include "fp8/tools/commands/progress.h"
#include "fp8/tools/commands/script_input.h"
#include "fp8/tools/commands/table.h"

namespace fp8::commands {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct MeasureOptions : DataOptions {
  MeasureOptions() {
    samples = 128;
    batch = 0;  // 8; for a TorchScript model that keeps state 1
  }
  std::filesystem::path model, out, config;
  std::vector<std::string> exclude;
  std::int64_t chunk = 512;
  models::AttentionKind attention = models::AttentionKind::fused;
};

/// Which modules, what of them, and where to: the config's word, or everything into OUT/inc_output*.
struct Selection {
  measure::CalibrationOptions options;
  std::shared_ptr<configs::ModuleFilter> filter;  ///< null without a config
};

/// TorchScript models are measured in all weights that multiply: of sound models most are Conv1d, LSTM and GRU.
bool holds_product(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  if (known == nullptr) return false;
  return known->kind == configs::ModuleKind::linear || known->kind == configs::ModuleKind::convolution || known->kind == configs::ModuleKind::recurrent;
}

/// A mixture of experts shows the inputs of all its experts' weights.
bool is_mixture(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  return known != nullptr && known->kind == configs::ModuleKind::dynamic_moe;
}

Selection selection_of(const MeasureOptions& o) {
  Selection s;
  std::string prefix = "inc_output";
  if (!o.config.empty()) {
    const auto config = configs::read_quant_config(o.config);
    configs::refuse_load(config);
    auto configured = measure::calibration_options(config);
    s = {std::move(configured.options), std::move(configured.filter)};
    if (!config.dump_stats_path.filename().empty()) prefix = config.dump_stats_path.filename().string();
  } else {
    s.options.rank = configs::environment().process();
  }
  std::vector<configs::PythonRegex> exclude;
  for (const auto& pattern : o.exclude) exclude.emplace_back(pattern, "--exclude");
  s.options.select = [configured = s.options.select, exclude, script = is_script(o.model)](const std::string& name, const std::string& type) {
    for (const auto& pattern : exclude) {
      if (pattern.search(name)) return false;
    }
    return configured ? configured(name, type) : type == "Linear" || type == "Conv2d" || is_mixture(type) || (script && holds_product(type));
  };
  s.options.prefix = (o.out / prefix).string();
  return s;
}

/// Runs forward(first, count) over all samples. What was seen before Ctrl-C is written, then Interrupted is thrown.
template <class Forward>
void run(std::int64_t batch, Context& context, measure::CalibrationSession& session, std::int64_t samples, double& forward_seconds, Forward forward) {
  Progress progress(context, "measure", samples);
  for (std::int64_t first = 0; first < samples; first += batch) {
    if (interrupted()) {
      if (session.samples() > 0) session.finalize();
      throw Interrupted();
    }
    const std::int64_t count = std::min(batch, samples - first);
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
  auto model = load_language_model(o.model, context, o.attention);
  if (model.config_json.contains("quantization_config")) throw io::Error(o.model.string() + ": expected a high precision checkpoint, found an fp8 one");
  auto chunks = load_chunks_for(o, o.model, model.config);
  session = watch(o, s, *model.model);
  const auto ids = at::from_blob(chunks.ids.data(), {chunks.count, chunks.length}, at::kLong);
  run(o.batch > 0 ? o.batch : 8, context, *session, chunks.count, seconds, [&](std::int64_t first, std::int64_t count) { model.model->forward(ids.narrow(0, first, count).to(at::kHPU)); });
}

void measure_script(const MeasureOptions& o, Context& context, const Selection& s, std::shared_ptr<measure::CalibrationSession>& session, double& seconds) {
  auto model = load_script(o.model, context);
  const ScriptInputs inputs(o.data, model, {o.samples, o.skip, o.batch, o.chunk});
  session = watch(o, s, model);
  run(inputs.batch(), context, *session, inputs.samples(), seconds, [&](std::int64_t first, std::int64_t count) {
    call_forward(model, inputs.arguments(first, count, at::kHPU, context.dtype), o.model);
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
  (is_script(o.model) ? measure_script : measure_folder)(o, context, selection, session, forward_seconds);
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
  options.path("--model", values->model, "Checkpoint folder, or a TorchScript file (.pt, .jit)", Options::Need::required);
  options.path("--out", values->out, "Folder for the measurement files", Options::Need::required);
  options.list("--exclude", values->exclude, "Do not measure modules whose name matches this regular expression");
  options.integer("--chunk", values->chunk, 1, 1 << 24, "Frames of sound per sample of a .wav file");
  options.path("--config", values->config, "QUANT_CONFIG JSON: observer, allowlist, blocklist, measure_exclude, dump_stats_path, ...");
  add_data_options(options, *values);
  add_attention_option(options, values->attention);
  return [values](Context& context) { measure(*values, context); };
}

}  // namespace fp8::commands
