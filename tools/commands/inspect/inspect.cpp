// SPDX-License-Identifier: Apache-2.0
// fp8 inspect: finds out what PATH is.
#include "fp8/tools/commands/inspect/inspect.h"

#include <fmt/format.h>

#include <system_error>

#include "fp8/quant/forms/checksums.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inspect/inspect_trace.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// The measurement of a folder that is no checkpoint: *_hooks_maxabs.json, else the only *_hooks_*.json.
fs::path find_measurement(const fs::path& folder) {
  std::vector<fs::path> all, plain;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = measure::parse_stats_name(entry.path().string());
    if (!name || entry.path().extension() != ".json") continue;
    all.push_back(entry.path());
    if (name->observer == "maxabs" && !name->is_scales() && !name->rank) plain.push_back(entry.path());
  }
  if (plain.size() == 1) return plain[0];
  if (all.size() == 1) return all[0];
  if (all.empty())
    io::fail<io::Error>(
        "{}: found neither model.safetensors, model.safetensors.index.json, pytorch_model.bin nor *_hooks_*.json",
        folder.string());
  std::sort(all.begin(), all.end());
  io::fail<io::Error>("{}: found {} measurement files, name one: {}, {}{}", folder.string(), all.size(),
                      all[0].filename().string(), all[1].filename().string(), all.size() > 2 ? ", ..." : "");
}

Inspection inspect(const fs::path& path, const InspectDetail& detail) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    io::fail<io::Error>("{}: no such file or folder{}", path.string(), quant::advice_on_name(path));
  if (fs::is_directory(path, ignored)) {
    for (const char* name :
         {io::kWeightsFile, io::kIndexFile, io::kTorchWeightsFile, io::kTorchIndexFile, io::kConfigFile})
      if (fs::exists(fs::symlink_status(path / name, ignored))) return inspect_checkpoint(path, detail);
    for (const char* name : {"model_index.json", "adapter_config.json"})
      if (fs::exists(path / name, ignored)) quant::require_model_folder(path);
    return inspect_measurement(find_measurement(path), detail.all);
  }
  const auto extension = path.extension().string();
  if (extension == ".safetensors" || extension == ".bin" || extension == ".pth" || extension == ".pt")
    return inspect_checkpoint(path, detail);
  if (extension == ".json" || extension == ".npz") return inspect_measurement(path, detail.all);
  io::fail<io::Error>("{}: found a file ending in '{}', allowed: a folder, .safetensors, .bin, .pth, .pt, .json, .npz",
                      path.string(), extension);
}

struct InspectOptions : DamageOptions {
  fs::path path, html, plot;
  std::string module;             ///< whose histogram is drawn
  std::vector<std::string> with;  ///< more training runs
  bool tensors_only = false, plan = false, all = false, verify = false;
};

/// The order differs because the cost of a module's noise depends on how the model uses its output.
constexpr const char* kOrder = "by SQNR, which is not the order of KL divergence: fp8 quantize --budget measures that";

/// Throws for a checkpoint folder whose tensors contradict config.json. A config.json that can't be read is reported
/// elsewhere.
void check_shapes(const InspectOptions& o, const Inspection& inspection) {
  if (o.tensors_only || inspection.json["kind"] != "checkpoint" || !fs::exists(o.path / io::kConfigFile)) return;
  io::Json config;
  try {
    config = io::read_python_json(io::source_file(o.path, io::kConfigFile));
  } catch (const io::Error&) {
    return;
  }
  quant::require_promised_shapes(*inspection.checkpoint, config);
}

/// Throws UsageError for what only a checkpoint's weights are cast by or compared with, where `path` is `what`.
/// compares: that takes a --reference.
void refuse_cast_options(const InspectOptions& o, const Context& context, const std::string& what,
                         bool compares = false) {
  const char* given = !o.data.empty()                     ? "--data"
                      : !o.measurements.empty()           ? "--measurements"
                      : !o.include.empty()                ? "--include"
                      : !o.exclude.empty()                ? "--exclude"
                      : context.dialect.has_value()       ? "--dialect"
                      : !o.reference.empty() && !compares ? "--reference"
                                                          : nullptr;
  if (given != nullptr)
    io::fail<UsageError>("inspect: {} goes with a checkpoint folder, found {} in {}", given, what, o.path.string());
}

void add_damage_text(const InspectOptions& o, const quant::CheckpointDamage& damage, Inspection& inspection) {
  constexpr std::size_t kWorst = 5;
  const auto& modules = damage.modules;
  const std::size_t width = output_width();
  auto& text = inspection.text;
  if (inspection.json["quantization"].is_null() && !modules.empty())
    text += summary_line(o.reference.empty() ? "as fp8" : "beside", one_line(modules.front().scheme), width);
  text += summary_line("damage", damage_sentence(modules), width);
  auto kept = inspection.kept;
  kept.insert(kept.end(), damage.skipped.begin(), damage.skipped.end());
  if (!kept.empty()) text += "\n" + kept_table(kept, modules, width);
  if (modules.empty()) return;
  const auto& worst = modules.front();
  const bool by_sqnr = worst.weight.signal > 0, all = o.all || modules.size() <= kWorst;
  if (!by_sqnr && worst.weight.saturated == 0 && !all) return;
  text += fmt::format("\n{} of {} modules:\n{}", all ? "All" : "The worst five", modules.size(),
                      damage_table(modules, all ? modules.size() : kWorst, width));
  text += by_sqnr ? "(sorted by SQNR; fp8 quantize --budget ranks by KL divergence)\n"
                  : "(by saturation: codes beyond what a scale of amax gives)\n";
}

void refuse_plot(const InspectOptions& o, const char* what) {
  if (!o.plot.empty())
    io::fail<UsageError>("inspect: --plot goes with a checkpoint or a measurement, found {} in {}: see --html", what,
                         o.path.string());
}

/// Adds what casting does to the modules of a checkpoint folder. A form that can't be looked at so is a warning.
void add_damage(const InspectOptions& o, const Context& context, Inspection& inspection) {
  const std::string kind = inspection.json["kind"];
  if (kind != "checkpoint") return refuse_cast_options(o, context, "a " + kind);
  if (o.tensors_only) return refuse_cast_options(o, context, "--tensors-only beside it");
  if (!fs::exists(o.path / io::kConfigFile)) return refuse_cast_options(o, context, "no config.json");
  quant::CheckpointDamage damage;
  try {
    damage = checkpoint_damage(o.path, o, context);
  } catch (const io::Error& error) {
    if (interrupted()) throw Interrupted();
    const bool asked = !o.data.empty() || !o.measurements.empty() || !o.reference.empty() || !o.include.empty() ||
                       !o.exclude.empty() || !o.html.empty() || !o.plot.empty();
    if (asked || context.dialect.has_value()) throw;
    context.warn("no damage report: " + what_of(error));
    return;
  }
  for (const auto& warning : damage.warnings) context.warn(warning);
  if (context.json || !o.html.empty() || !o.plot.empty()) {  // of a hundred thousand modules it is not for nothing
    inspection.json["modules"] = damage_json(damage.modules);
    inspection.json["order"] = kOrder;
    inspection.json["summary"] = damage_sentence(damage.modules);
    inspection.json["skipped"] = io::Json::array();
    for (const auto& list : {damage.skipped, inspection.kept})
      for (const auto& s : list) inspection.json["skipped"].push_back({{"name", s.name}, {"reason", s.reason}});
  }
  if (!context.json) add_damage_text(o, damage, inspection);
}

/// A training run, alone or with others in one picture.
void run_inspect_training(const InspectOptions& o, Context& context) {
  std::vector<fs::path> paths = {o.path};
  if (!o.reference.empty()) paths.push_back(o.reference);
  for (const auto& more : o.with) paths.emplace_back(more);
  auto inspection = inspect_training(paths);
  if (!o.html.empty()) {
    write_training_page(o.html, paths, inspection);
    inspection.json["html"] = o.html.string();
  }
  context.result(inspection.json, inspection.text);
}

void run_inspect_trace(const InspectOptions& o, Context& context) {
  auto inspection = inspect_trace(o.path, !o.html.empty());
  if (!o.html.empty()) {
    write_trace_page(o.html, o.path, inspection);
    inspection.json.erase("timeline");
    inspection.json["html"] = o.html.string();
  }
  context.result(inspection.json, inspection.text);
}

std::string title_of(const InspectOptions& o) {
  return o.path.string() + (o.reference.empty() ? "" : " against " + o.reference.string());
}

/// Returns the hint at the options that show more.
std::string hint_of(const InspectOptions& o, const Inspection& inspection) {
  if (inspection.json["kind"] != "checkpoint") return "\n(--all lists every module, --html FILE draws them)\n";
  if (o.tensors_only || !fs::exists(o.path / io::kConfigFile)) return "\n(--all lists every tensor)\n";
  return "\n(--all lists every tensor and module, --html FILE draws them)\n";
}

void run_verify(const InspectOptions& o, Context& context) {
  refuse_cast_options(o, context, "--verify beside it");
  if (!o.html.empty() || !o.plot.empty() || o.plan || o.tensors_only)
    throw UsageError("inspect: --html, --plot, --plan and --tensors-only do not go with --verify");
  const auto verified = quant::verify_checksums(o.path, interrupted);
  io::Json damage = io::Json::array();
  std::string text = fmt::format("{} files, {} bytes: {}\n", verified.files, verified.bytes,
                                 verified.damage.empty() ? "all as they were written" : "damaged");
  for (const auto& d : verified.damage) {
    text += d.text() + "\n";
    damage.push_back({{"kind", d.kind}, {"file", d.file}, {"tensor", d.tensor}, {"begin", d.begin}, {"end", d.end}});
  }
  context.result({{"kind", "verification"}, {"files", verified.files}, {"bytes", verified.bytes}, {"damage", damage}},
                 text);
  if (!verified.damage.empty())
    io::fail<io::Error>("{}: {} damaged, the first: {}", o.path.string(), verified.damage.size(),
                        verified.damage[0].text());
}

void run_inspect(const InspectOptions& o, Context& context) {
  if (o.verify) return run_verify(o, context);
  if (!o.module.empty() && o.plot.empty()) throw UsageError("inspect: --module goes with --plot FILE");
  if (!o.plot.empty() && o.plot.extension() != ".svg")
    io::fail<UsageError>("--plot: found '{}', allowed: a name ending in .svg", o.plot.string());
  if (o.tensors_only && (!o.html.empty() || !o.plot.empty()))
    throw UsageError("inspect: --html and --plot draw what --tensors-only does not look at");
  if (is_training(o.path)) {
    refuse_plot(o, "a training run");
    refuse_cast_options(o, context, "a training run", /*compares=*/true);
    return run_inspect_training(o, context);
  }
  if (!o.with.empty())
    io::fail<UsageError>("--with: found '{}', but {} is no training run", o.with[0], o.path.string());
  if (is_trace(o.path)) {
    refuse_plot(o, "a trace");
    refuse_cast_options(o, context, "a trace");
    return run_inspect_trace(o, context);
  }
  if (o.plan) {
    if (!o.data.empty()) throw UsageError("inspect: --data does not go with --plan, which runs nothing");
    for (const auto& [given, name] :
         {std::pair{!o.html.empty(), "--html"}, {!o.plot.empty(), "--plot"}, {!o.reference.empty(), "--reference"}})
      if (given) io::fail<UsageError>("inspect: {} does not go with --plan, which draws nothing", name);
    return print_plan(o.path, o, context);
  }
  if (context.device != "hpu")
    io::fail<UsageError>("--device: found '{}', but inspect --data runs the model on: hpu", context.device);
  auto inspection = inspect(o.path, {context.json, !o.tensors_only, o.all});
  check_shapes(o, inspection);
  add_damage(o, context, inspection);
  if (!inspection.all.empty()) inspection.text += "\n" + inspection.all;
  if (!o.all && !context.json) inspection.text += hint_of(o, inspection);
  const io::Json report = o.html.empty() && o.plot.empty() ? io::Json() : report_of(title_of(o), inspection.json);
  if (!o.html.empty()) {
    write_report_page(o.html, report);
    inspection.json["html"] = o.html.string();
  }
  if (!o.plot.empty()) {
    write_output_file(o.plot, svg_of(o.module.empty() ? heat_map(report) : histogram(report, o.module)));
    inspection.json["plot"] = o.plot.string();
  }
  context.result(inspection.json, inspection.text);
}

}  // namespace

Action add_inspect(Options& options) {
  auto values = std::make_shared<InspectOptions>();
  options.path("PATH", values->path, io::Reach::beside,
               "Checkpoint folder, .safetensors or .bin, a measurement or scale file (.json, .npz), the folder of a "
               "training run, or a profiler's trace (.trace.json)",
               Options::Need::required);
  options.output(
      "--html", values->html,
      "Write a page with heat map, histograms and table there; of a training run, one with its loss curve (or "
      "the curve alone: .svg); of a trace, a timeline");
  options.output("--plot", values->plot,
                 "Draw a heat map there, layers by modules (.svg); with --module that module's histogram");
  options.text("--module", values->module, "Whose histogram --plot draws");
  add_data_options(options, *values, Options::Need::optional);
  options.text("--measurements", values->measurements, "Static input scales from a measurement (default: per token)");
  options.reach("--measurements", io::Reach::beside);
  options.path("--reference", values->reference, io::Reach::read,
               "Of a checkpoint: one to compare with, as what it was made of; of a training run: another run");
  options.choice("--scheme", values->scheme, "Weight scales (default: tensor with --measurements, else channel)",
                 choice_of({recipes::Granularity::tensor, recipes::Granularity::channel}));
  options.flag("--weights-only", values->weights_only, "Inputs stay in high precision");
  options.patterns("--include", values->include, "Regular expression: look at these modules too (lm_head, routers)");
  options.patterns("--exclude", values->exclude, "Regular expression: leave these modules out");
  options.list("--with", values->with, "Of a training run: more runs in the same table and picture");
  options.reach("--with", io::Reach::read);
  options.flag("--plan", values->plan,
               "What quantize would put into fp8, what not and why, folded by name; weights are not read");
  options.flag("--all", values->all, "Every tensor and every module, not a summary and the worst five");
  options.flag("--tensors-only", values->tensors_only,
               "No damage report, no search for NaN: headers and scales are read, weights are not");
  options.flag("--verify", values->verify,
               "Of a checkpoint of quantize or convert: read every byte and compare checksums; exit code 1 for damage");
  return [values](Context& context) {
    values->all = values->all || context.verbose;
    run_inspect(*values, context);
  };
}

}  // namespace fp8::commands
