// SPDX-License-Identifier: Apache-2.0
// fp8 measure: the model runs on calibration data with watchers on its weights; amax of inputs, outputs and weights go
// to files in Intel Neural Compressor's form.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "fp8/configs/configs.h"
#include "fp8/configs/module_types.h"
#include "fp8/measure/calibration/options.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/quant/forms/form.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/ranks.h"
#include "fp8/tools/commands/cli/stopwatch.h"
#include "fp8/tools/commands/cli/table.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/inputs/environment_config.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/profile.h"
#include "fp8/tools/commands/inputs/samples.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/tools/commands/work/memory_budget.h"
#include "fp8/tools/models/layer_stream.h"
#include "fp8/tools/models/weights/mxfp4.h"

namespace fp8::commands {
namespace {

/// Which modules, what of them, and where to: the config's word, or everything into OUT/inc_output*.
struct Selection {
  measure::CalibrationOptions options;
  std::shared_ptr<configs::ModuleFilter> filter = nullptr;  ///< null without a config
  bool separate_files = true;                               ///< each of several ranks has its own
};

/// TorchScript models are measured in all weights that multiply: of sound models most are Conv1d, LSTM and GRU.
bool holds_product(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  if (known == nullptr) return false;
  const configs::KindInfo& info = configs::info_of(known->kind);
  return info.weight && !info.lookup && !info.reduces;
}

/// A mixture of experts shows the inputs of all its experts' weights.
bool is_mixture(const std::string& type) { return configs::type_is(type, &configs::KindInfo::experts); }

Selection selection_of(const MeasureOptions& o) {
  Selection s;
  std::string prefix = "inc_output";
  if (!o.config.empty()) {
    const auto config = configs::read_quant_config(o.config, measure::parse_options());
    configs::refuse_load(config);
    auto configured = measure::calibration_options(config);
    s = {std::move(configured.options), std::move(configured.filter), config.separate_measure_files};
    if (!config.dump_stats_path.filename().empty()) prefix = config.dump_stats_path.filename().string();
  } else {
    s.options.rank = configs::environment().process();
  }
  const configs::NamePatterns exclude(o.exclude, "--exclude");
  s.options.select = [configured = s.options.select, exclude, script = is_script(o.model)](const std::string& name,
                                                                                           const std::string& type) {
    if (exclude.matches(name)) return false;
    return configured ? configured(name, type)
                      : type == "Linear" || type == "Conv2d" || is_mixture(type) || (script && holds_product(type));
  };
  // With a config INC's lists say whether key-value caches are measured, and where that stands.
  if (o.config.empty() && !is_script(o.model)) {
    s.options.kv_cache = [exclude](const std::string& name) { return !exclude.matches(name); };
  }
  s.options.prefix = (o.out / prefix).string();
  return s;
}

/// Runs forward(first, count) over all samples, together(first) at a time. What was seen before Ctrl-C is written, then
/// Interrupted is thrown. resumable: snapshots are taken.
template <class Together, class Forward>
void run_whole(MeasureRun& run, std::int64_t samples, bool resumable, Together together, Forward forward) {
  auto& session = *run.session;
  const auto snapshot = [&](std::int64_t next) {
    run.snapshots.save([&]() -> io::Json {
      io::Json state = session.snapshot();
      return state.is_null()
                 ? io::Json()
                 : io::Json{
                       {"next_sample", next}, {"session", std::move(state)}, {"forward_seconds", run.forward_seconds}};
    });
  };
  Progress progress(run.context, "measure", samples);
  const std::int64_t start = run.progress.is_null() ? 0 : run.progress.value("next_sample", std::int64_t{0});
  std::int64_t forwards = 0;
  for (std::int64_t first = start; first < samples; ++forwards) first += together(first);
  const runtime::ProfiledStage stage(run.profiler.get(), "measure", forwards);
  for (std::int64_t first = start; first < samples;) {
    if (interrupted()) {
      if (run.snapshots.saved()) snapshot(first);
      if (session.samples() > 0) session.finalize();
      throw Interrupted();
    }
    const std::int64_t count = together(first);
    session.begin_samples(first, count);
    timed_forward(run, [&] { forward(first, count); });
    first += count;
    progress.update(first);
    if (resumable && run.snapshots.due()) snapshot(first);
  }
}

/// Watches `model`. Throws io::Error if nothing is selected or the files can't be written: now, not after the run.
template <class Model>
void watch(MeasureRun& run, const Model& model) {
  measure::check_writable(run.calibration.prefix);
  auto calibration = run.calibration;
  if (!run.progress.is_null()) calibration.resume = run.progress.value("session", io::Json());
  run.session = measure::CalibrationSession::attach(model, std::move(calibration));
  run.require_selection();
}

/// Discards a session that was not finalized when an error leaves the scope.
struct DiscardOnError {
  std::shared_ptr<measure::CalibrationSession>& session;
  ~DiscardOnError() {
    if (session != nullptr) session->discard();
  }
};

/// A language model folder.
void measure_folder(MeasureRun& run) {
  const auto& o = run.options;
  auto model = load_language_model(o.model, run.context, o.attention);
  if (models::is_quantized(o.model))
    throw io::Error(o.model.string() + ": expected a high precision checkpoint, found an fp8 one");
  const auto samples = load_samples(o, o.model, model.model->shape());
  run.sources.check_unchanged();  // what is in memory now is of one model
  watch(run, *model.model);
  run_whole(
      run, samples.count(), /*resumable=*/true,
      [&](std::int64_t first) { return samples.together(first, o.batch_or_default()); },
      [&](std::int64_t first, std::int64_t count) { logits_of(*model.model, samples.batch(first, count), at::kHPU); });
}

/// Of a model that keeps state between calls no snapshots are taken: it would go on from another state.
void measure_script(MeasureRun& run) {
  const auto& o = run.options;
  auto model = load_script(o.model, run.context);
  const ScriptInputs inputs(o.data, model, {o.samples, o.skip, o.batch, o.chunk});
  run.sources.check_unchanged();
  watch(run, model);
  run_whole(
      run, inputs.samples(), !keeps_state(model),
      [&](std::int64_t first) { return std::min(inputs.batch(), inputs.samples() - first); },
      [&](std::int64_t first, std::int64_t count) {
        call_forward(model, inputs.arguments(first, count, at::kHPU, compute_dtype(run.context)), o.model);
      });
}

/// One decoder layer at a time: as --block-wise, --whole or the snapshot to go on from says; else if the model takes
/// over half of the memory.
bool in_blocks(const MeasureOptions& o, const Context& context, const io::Json& stored, std::int64_t memory) {
  if (is_script(o.model)) return false;
  if (o.block_wise || o.whole) return o.block_wise;
  if (o.resume && stored.is_object() && stored.contains("mode")) return stored["mode"] == "block-wise";
  return models::bytes_in_memory(o.model, compute_dtype(context)) > memory / 2;
}

/// What a run must have in common with the one that it goes on from.
io::Json identity_of(const MeasureRun& run, bool blocks) {
  const auto& o = run.options;
  const auto& c = run.calibration;
  io::Json parameters = io::Json::object();
  for (const auto& [name, value] : c.parameters) parameters[name] = value;
  return {{"command", "measure"},
          {"mode", blocks ? "block-wise" : "whole"},
          {"files", run.sources.to_json()},
          {"data",
           {{"samples", o.samples}, {"seq-len", o.seq_len}, {"skip", o.skip}, {"batch", o.batch}, {"chunk", o.chunk}}},
          {"options",
           {{"model", std::filesystem::absolute(o.model).string()},
            {"dtype", run.context.dtype ? name_of(*run.context.dtype) : ""},
            {"attention", o.attention == models::AttentionKind::fused ? "fused" : "eager"},
            {"exclude", o.exclude},
            {"prefix", std::filesystem::absolute(c.prefix).string()},
            {"observer", c.observer},
            {"format", recipes::name_of(c.format)},
            {"fp8_max", c.fp8_max},
            {"inputs", c.inputs},
            {"outputs", c.outputs},
            {"weights", c.weights}}},
          {"observer parameters", std::move(parameters)}};
}

/// "OUT/.inc_output_hooks_maxabs_0_8.resume": of this run's files alone, several ranks share a folder.
std::filesystem::path snapshots_folder(const measure::CalibrationOptions& c) {
  const std::filesystem::path base = measure::StatsName{c.prefix, c.observer, {}, c.rank}.base();
  return base.parent_path() / ("." + base.filename().string() + ".resume");
}

/// What a model that is measured whole takes.
std::int64_t bytes_of_model(const MeasureOptions& o, const Context& context) {
  if (!is_script(o.model)) return models::bytes_in_memory(o.model, compute_dtype(context));
  std::error_code error;
  const auto bytes = std::filesystem::file_size(o.model, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);  // who reads it will say so
}

measure::StatsName stats_name(const MeasureRun& run) {
  return {run.calibration.prefix, run.calibration.observer, {}, run.calibration.rank};
}

/// What decides the numbers of a run, as 16 hexadecimal digits; not where it writes nor how it goes about it. Stands in
/// the measurement's .fingerprint, where --resume knows a finished measurement by it.
std::string mark_of(const MeasureRun& run, const io::Json& identity) {
  io::Json mark = {{"data", identity["data"]},
                   {"options", identity["options"]},
                   {"parameters", identity["observer parameters"]},
                   {"files", io::Json::array()}};
  for (const char* place : {"model", "prefix"}) mark["options"].erase(place);
  if (!is_script(run.options.model))
    mark["data"].erase("batch");  // the same numbers in any, but of a model that keeps state
  const io::Json files = run.sources.to_json();
  for (const auto& [path, file] : files.items())
    mark["files"].push_back({std::filesystem::path(path).filename().string(), file});
  return io::checksum_text(io::checksum(mark.dump(-1, ' ', true, io::Json::error_handler_t::replace)));
}

/// Writes the mark, if the measurement has a fingerprint to write it to.
void mark_finished(const MeasureRun& run, const std::string& mark) {
  const auto path = stats_name(run).fingerprint();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  io::Json fingerprint = io::read_json(path);
  fingerprint["run"] = mark;
  io::write_json(path, fingerprint, -1);
}

/// The measurement that a run like this one finished, still as it was written.
std::optional<measure::MeasurementFile> finished_before(const MeasureRun& run, const std::string& mark) {
  const auto name = stats_name(run);
  std::error_code error;
  if (!std::filesystem::exists(name.fingerprint(), error) || !name.exists()) return std::nullopt;
  const io::Json fingerprint = io::read_json(name.fingerprint());
  if (!fingerprint.is_object() || fingerprint.value("run", io::Json()) != mark) return std::nullopt;
  auto file = measure::read_measurements(name);
  if (fingerprint.value("measurement", io::Json()) != file.fingerprint()) return std::nullopt;
  return file;
}

void report_finished(const MeasureRun& run, const measure::MeasurementFile& file) {
  const auto name = stats_name(run);
  io::Json files = io::Json::array();
  std::error_code error;
  for (const auto& path : {name.json(), name.npz(), name.mod_list(), name.fingerprint(), name.kv_cache()}) {
    if (std::filesystem::exists(path, error)) files.push_back(path.string());
  }
  run.context.result(
      {{"modules", file.modules.size()},
       {"samples", file.num_samples.value_or(0)},
       {"finished_before", true},
       {"resumed", false},
       {"out", files}},
      fmt::format("finished already: {}.* is what a run with these options wrote; nothing was done\n", name.base()));
}

void report(const MeasureRun& run, bool blocks, double seconds, const std::string& mark) {
  const auto& session = *run.session;
  const auto result = session.result();
  const auto files = run.session->finalize();
  mark_finished(run, mark);
  std::int64_t tensors = 0;
  for (const auto& m : result.modules)
    tensors += static_cast<std::int64_t>(m.inputs.size() + (m.outputs ? m.outputs->size() : 0) + (m.weight ? 1 : 0));
  io::Json json = {{"modules", result.modules.size()},
                   {"tensors", tensors},
                   {"samples", session.samples()},
                   {"forward_seconds", run.forward_seconds - session.watch_seconds()},
                   {"measured_forward_seconds", run.forward_seconds},
                   {"seconds", seconds},
                   {"kv_caches", result.kv_cache.size()},
                   {"non_finite", session.non_finite().size()},
                   {"mode", blocks ? "block-wise" : "whole"},
                   {"resumed", !run.progress.is_null()},
                   {"finished_before", false},
                   {"peak_rss_bytes", peak_resident_bytes()},
                   {"out", io::Json::array()}};
  Table table({"measure", ">" + run.options.model.filename().string()});
  table.row({"modules", std::to_string(result.modules.size())});
  table.row({"tensors", std::to_string(tensors)});
  if (!result.kv_cache.empty()) table.row({"key-value caches", std::to_string(result.kv_cache.size())});
  table.row({"samples", std::to_string(session.samples())});
  table.row({"seconds", human_seconds(seconds)});
  if (blocks) table.row({"memory, peak", human_bytes(peak_resident_bytes())});
  for (const auto& file : files) {
    json["out"].push_back(file.string());
    table.row({"out", file.string()});
  }
  run.context.result(json, table.text());
}

void measure(const MeasureOptions& o, Context& context) {
  const std::int64_t limit = limit_of(o), process = process_bytes(),
                     memory = limit > 0 ? limit - process : available_memory();
  const at::NoGradGuard no_grad;
  const Stopwatch watch;
  const Selection selection = selection_of(o);
  if (!measures_as_rank(selection.separate_files, context)) return;
  Snapshots snapshots(snapshots_folder(selection.options), o.snapshot_seconds);
  MeasureRun run{o, context, selection.options, memory, process, snapshots, SourceFiles(o.model, {o.data, o.config})};
  const DiscardOnError guard{run.session};
  const bool blocks = in_blocks(o, context, o.resume ? snapshots.stored_identity() : io::Json(), memory);
  if (!blocks && limit > 0) run.require_memory(bytes_of_model(o, context), "the model");
  const io::Json identity = identity_of(run, blocks);
  const std::string mark = mark_of(run, identity);
  snapshots.identify(identity);
  run.progress = snapshots.begin(o.resume);
  if (o.resume && run.progress.is_null()) {
    if (const auto file = finished_before(run, mark); file.has_value()) return report_finished(run, *file);
  }
  if (!run.progress.is_null()) run.forward_seconds = run.progress.value("forward_seconds", 0.0);
  run.profiler = profiler_of(o.profile, context);
  {
    const runtime::PhaseScope phase("measure");
    (blocks ? measure_blocks : is_script(o.model) ? measure_script : measure_folder)(run);
  }
  if (selection.filter != nullptr) {
    for (const auto& entry : selection.filter->unused_entries()) context.warn(entry.message);
  }
  warn_non_finite(*run.session, context);
  report(run, blocks, watch.seconds(), mark);
  snapshots.remove();
}

}  // namespace

void MeasureRun::require_selection() {
  if (!session->result().selected.empty()) return;
  session->discard();
  throw io::Error(options.model.string() + ": no module is selected to be measured");
}

void MeasureRun::require_memory(std::int64_t needed, const std::string& what) const {
  if (options.memory_limit.empty() || needed <= memory) return;
  constexpr std::int64_t kMB = 1'000'000;
  const std::int64_t more = process / 32;  // by which the next process may be larger: pages of libraries come and go
  const std::int64_t least = (process + more + needed + kMB - 1) / kMB + 1;
  throw UsageError(
      fmt::format("--memory-limit: found '{}', but the program itself takes {} and {} about {}, allowed: {}MB or more",
                  options.memory_limit, human_bytes(process), what, human_bytes(needed), least));
}

namespace {

const Provided g_measure(measure_model, measure);

}  // namespace
}  // namespace fp8::commands
