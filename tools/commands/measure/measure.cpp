// SPDX-License-Identifier: Apache-2.0
// fp8 measure: the model runs on calibration data with watchers on its weights; amax of inputs, outputs and weights go
// to files in Intel Neural Compressor's form.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "fp8/quant/forms/form.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

/// Which modules, what of them, and where to: the config's word, or everything into OUT/inc_output*.
struct Selection {
  measure::CalibrationOptions options;
  std::shared_ptr<configs::ModuleFilter> filter = nullptr;  ///< null without a config
  bool separate_files = true;                               ///< each of several ranks has its own
  std::function<void()> check_patterns = nullptr;           ///< of MeasureRun
};

/// --exclude, which means modules by the names of the checkpoint.
class Exclusion {
 public:
  explicit Exclusion(const MeasureOptions& o) : patterns_(o.exclude, "--exclude") {
    if (!patterns_.empty() && !is_script(o.model)) names_.emplace(std::make_shared<const io::Checkpoint>(o.model));
  }
  bool holds(const std::string& module) {
    if (patterns_.empty()) return false;
    const auto names = names_.has_value() ? names_->all_of(module) : std::vector<std::string>{module};
    seen_.insert(seen_.end(), names.begin(), names.end());
    return std::ranges::any_of(names, [&](const auto& name) { return patterns_.matches(name); });
  }
  /// Throws io::Error for a pattern that means no module of the model, nor of its files.
  void require_used() const {
    auto names = seen_;
    if (names_.has_value()) std::ranges::move(names_->everything(), std::back_inserter(names));
    patterns_.require_used(names);
  }

 private:
  configs::NamePatterns patterns_;
  std::optional<quant::NamesInCheckpoint> names_;  ///< none: TorchScript, whose modules have one name each
  std::vector<std::string> seen_;
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
  const auto exclude = std::make_shared<Exclusion>(o);
  s.options.select = [configured = s.options.select, exclude, script = is_script(o.model)](const std::string& name,
                                                                                           const std::string& type) {
    if (exclude->holds(name)) return false;
    return configured ? configured(name, type)
                      : type == "Linear" || type == "Conv2d" || is_mixture(type) || (script && holds_product(type));
  };
  // With a config INC's lists say whether key-value caches are measured, and where that stands.
  if (o.config.empty() && !is_script(o.model))
    s.options.kv_cache = [exclude](const std::string& name) { return !exclude->holds(name); };
  s.check_patterns = [exclude] { exclude->require_used(); };
  s.options.prefix = (o.out / prefix).string();
  return s;
}

/// Runs forward(first, count) over the samples, together(first) at a time. What was seen before Ctrl-C is written, then
/// Interrupted is thrown. resumable: snapshots are taken.
template <class Together, class Forward>
void run_whole(MeasureRun& run, SampleRange samples, bool resumable, Together together, Forward forward) {
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
  Progress progress(run.context, "measure", samples.count);
  const std::int64_t start = run.progress.is_null() ? 0 : run.progress.value("next_sample", std::int64_t{0});
  std::int64_t forwards = 0;
  for (std::int64_t first = start; first < samples.count; ++forwards) first += together(samples.first + first);
  const runtime::ProfiledStage stage(run.profiler.get(), "measure", forwards);
  for (std::int64_t first = start; first < samples.count;) {
    const bool kept = session.samples() > 0 && !run.share.shares.has_value();
    if (kept && !run.keeps) run.keeps.emplace();
    if (interrupted()) {
      if (kept) session.finalize(), note_backup(session.backup(), run.context);
      if (resumable && (kept || run.snapshots.saved())) snapshot(first);
      throw Interrupted(run.kept_after(first, kept));
    }
    const std::int64_t count = together(samples.first + first);
    session.begin_samples(first, count);
    timed_forward(run, [&] { forward(samples.first + first, count); });
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
  run.session->plan_samples(run.planned);
  run.require_selection();
}

/// A language model folder.
void measure_folder(MeasureRun& run) {
  const auto& o = run.options;
  auto model = load_language_model(o.model, run.context, o.attention);
  if (models::is_quantized(o.model))
    io::fail<io::Error>("{}: expected a high precision checkpoint, found an fp8 one", o.model.string());
  const bool again = std::ranges::find(o.data, std::filesystem::path(text::kStandardInput)) == o.data.end();
  const auto samples = load_samples(o, o.model, model.model->shape());
  run.sources.check_unchanged();  // what is in memory now is of one model
  const std::int64_t logits = o.batch_or_default() * samples.longest() * model.model->shape().outputs();
  say_forecast(forward_work("measure", *model.model, samples.column(samples.count()), samples.longest(),
                            resident_bytes() + logits * static_cast<std::int64_t>(c10::elementSize(model.dtype))),
               model.dtype, run.context);
  const auto together = [&](std::int64_t first) { return samples.together(first, o.batch_or_default()); };
  for_samples(run, Forwards(samples.count(), together), [&](MeasureRun& part, SampleRange range) {
    watch(part, *model.model);
    run_whole(part, range, /*resumable=*/again, together, [&](std::int64_t first, std::int64_t count) {
      logits_of(*model.model, samples.batch(first, count), at::kHPU);
    });
  });
}

/// Of a model that keeps state between calls no snapshots are taken: it would go on from another state.
void measure_script(MeasureRun& run) {
  const auto& o = run.options;
  auto model = load_script(o.model, run.context);
  const ScriptInputs inputs(one_file(o.data), model, {o.samples, o.skip, o.batch, o.chunk});
  run.sources.check_unchanged();
  const bool state = keeps_state(model);
  if (state && (run.shares != nullptr || run.share.world_size > 1))
    io::fail<io::Error>(
        "{}: the model keeps state from one call to the next, so that its samples can't be shared out; measure it with "
        "one process (--rank 0/1)",
        o.model.string());
  const auto together = [&](std::int64_t first) { return std::min(inputs.batch(), inputs.samples() - first); };
  for_samples(run, Forwards(inputs.samples(), together), [&](MeasureRun& part, SampleRange range) {
    watch(part, model);
    run_whole(part, range, !state, together, [&](std::int64_t first, std::int64_t count) {
      call_forward(model, inputs.arguments(first, count, at::kHPU, compute_dtype(run.context)), o.model);
    });
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

/// "OUT/.inc_output_hooks_maxabs_0_8.resume": of this run's files alone, several ranks share a folder.
std::filesystem::path snapshots_folder(const measure::CalibrationOptions& c) {
  const std::filesystem::path base = measure::StatsName{c.prefix, c.observer, {}, c.rank}.base();
  return base.parent_path() / ("." + base.filename().string() + ".resume");
}

/// Returns the bytes of a model that is measured whole.
std::int64_t bytes_of_model(const MeasureOptions& o, const Context& context) {
  if (!is_script(o.model)) return models::bytes_in_memory(o.model, compute_dtype(context));
  std::error_code error;
  const auto bytes = std::filesystem::file_size(o.model, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);  // its reader reports the error
}

/// mode: "whole", "block-wise" or "pipeline".
void report(MeasureRun& run, const std::string& mode, double seconds) {
  run.keeps.emplace();
  const auto& session = *run.session;
  const auto result = session.result();
  const auto files = run.session->finalize();
  note_backup(session.backup(), run.context);
  mark_finished(stats_name(run), run.mark);
  run.keeps.reset();
  std::int64_t tensors = 0;
  for (const auto& m : result.modules)
    tensors += static_cast<std::int64_t>(m.inputs.size() + (m.outputs ? m.outputs->size() : 0) + (m.weight ? 1 : 0));
  Report report("measure", run.options.model);
  report.add("modules", "modules", result.modules.size());
  report.add("tensors", "tensors", tensors);
  if (!result.kv_cache.empty()) report.row({"key-value caches", std::to_string(result.kv_cache.size())});
  const std::string shortage = result.shortage();
  report.add(
      "samples", "samples", session.samples(),
      (shortage.empty() ? std::to_string(session.samples()) : shortage + " asked for,") + size_note(run.options));
  report.json.update({{"seq_len", is_script(run.options.model) ? io::Json() : io::Json(run.options.seq_len)},
                      {"data", text::data_name(run.options.data)},
                      {"built_in_data", run.options.data[0] == text::kBuiltInText},
                      {"forward_seconds", run.forward_seconds - session.watch_seconds()},
                      {"measured_forward_seconds", run.forward_seconds}});
  report.add("seconds", "seconds", seconds, As::seconds);
  report.json.update({{"kv_caches", result.kv_cache.size()},
                      {"non_finite", session.non_finite().size()},
                      {"mode", mode},
                      {"resumed", !run.progress.is_null()},
                      {"finished_before", false},
                      {"peak_rss_bytes", peak_resident_bytes()},
                      {"out", io::Json::array()}});
  if (mode == "block-wise") report.row({"memory, peak", human_bytes(peak_resident_bytes())});
  if (!run.ranks.is_null()) report.json["ranks"] = run.ranks;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const auto& one = run.ranks[rank];
    report.row({fmt::format("rank {}, layers {} to {}", rank, one["layers"][0].get<std::int64_t>(),
                            one["layers"][1].get<std::int64_t>() - 1),
                human_bytes(one["peak_rss_bytes"].get<std::int64_t>())});
  }
  for (const auto& file : files) report.add_entry("out", file.string(), {"out", file.string()});
  report.print(run.context);
}

/// A rank that there are no samples for.
void report_empty(const MeasureRun& run) {
  run.context.warn(
      fmt::format("rank {} of {} has no samples: there are fewer forwards than ranks (a smaller --batch "
                  "makes more)",
                  run.share.rank, run.share.world_size));
  io::Json out = io::Json::array();
  for (const auto& path : write_empty(run)) out.push_back(path.string());
  run.context.result({{"modules", 0}, {"samples", 0}, {"finished_before", false}, {"resumed", false}, {"out", out}},
                     "no samples for this rank\n");
}

/// Looks at the samples that this process has.
void look(MeasureRun& run, bool blocks, std::int64_t limit) {
  if (!blocks && limit > 0) run.require_memory(bytes_of_model(run.options, run.context), "the model");
  run.profiler = profiler_of(run.options.profile, run.context);
  const runtime::PhaseScope phase("measure");
  (blocks ? measure_blocks : is_script(run.options.model) ? measure_script : measure_folder)(run);
}

void measure_alone(MeasureRun& run, bool blocks, std::int64_t limit, const Stopwatch& watch) {
  run.snapshots.identify(identity_of(run, blocks));
  run.progress = run.snapshots.begin(run.options.resume);
  if (run.options.resume && run.progress.is_null())
    if (const auto file = finished_before(run); file.has_value()) return report_finished(run, *file);
  if (!run.progress.is_null()) run.forward_seconds = run.progress.value("forward_seconds", 0.0);
  look(run, blocks, limit);
  if (run.session == nullptr) return report_empty(run);
  warn_non_finite(*run.session, run.context, run.first_sample);
  report(run, blocks ? "block-wise" : "whole", watch.seconds());
  run.snapshots.remove();
}

void measure_on_ranks(MeasureRun& run, const Stopwatch& watch) {
  run.profiler = profiler_of(run.options.profile, run.context);
  const runtime::PhaseScope phase("measure");
  measure_in_pipeline(run, [&] {
    warn_non_finite(*run.session, run.context);
    report(run, "pipeline", watch.seconds());
  });
}

void measure(const MeasureOptions& given, Context& context) {
  const MeasureOptions o = sized(given);
  const std::int64_t limit = limit_of(o), process = process_bytes(),
                     memory = limit > 0 ? limit - process : available_memory();
  const at::NoGradGuard no_grad;
  const Stopwatch watch;
  Selection selection = selection_of(o);
  const auto share = o.pipeline ? std::optional(Share())  // each has all of the samples
                                : share_of_measuring(o, selection.options, selection.separate_files, context);
  if (!share.has_value()) return;
  if (share->shares.has_value() || o.share.world_size == 1 || o.pipeline) selection.options.rank.reset();
  if (share->world_size > 1 && !share->shares.has_value())
    selection.options.rank = configs::Rank{static_cast<int>(share->rank), static_cast<int>(share->world_size)};
  Snapshots snapshots(snapshots_folder(selection.options), o.snapshot_seconds);
  std::vector<std::filesystem::path> sources = o.data;
  sources.push_back(o.config);
  MeasureRun run{o, context, selection.options, memory, process, snapshots, SourceFiles(o.model, sources)};
  const DiscardOnError guard{run.session};
  run.share = *share;
  run.check_patterns = selection.check_patterns;
  run.mark = mark_of(run, run.share);
  run.work = {
      {"command", "measure"}, {"version", FP8_VERSION}, {"batch", o.batch_or_default()}, {"causes", causes_of(run)}};
  if (o.share.join && !o.share.wait.has_value()) return join_measurements(run);
  const bool blocks = !o.pipeline && in_blocks(o, context, o.resume ? snapshots.stored_identity() : io::Json(), memory);
  if (o.pipeline) {
    measure_on_ranks(run, watch);
  } else if (run.share.shares.has_value()) {
    measure_in_shares(run, [&](MeasureRun& all) { look(all, blocks, limit); });
  } else {
    try {
      measure_alone(run, blocks, limit, watch);
    } catch (const Interrupted& stopped) {
      if (stopped.says_what_is_kept) throw;
      throw Interrupted(snapshots.saved() ? run.kept_after(0, false) : "before a sample was through: nothing is kept");
    }
  }
  if (selection.filter != nullptr)
    for (const auto& entry : selection.filter->unused_entries()) context.warn(entry.message);
}

const Provided g_measure(measure_model, measure);

}  // namespace

std::string MeasureRun::kept_after(std::int64_t samples, bool files) const {
  std::string text;
  if (share.shares.has_value()) return "in a share, which is left to others; the same command takes up what is left";
  if (files)
    text = fmt::format("after {} of {} samples: {} has them", samples, planned, stats_name(*this).json().string());
  else if (snapshots.saved())
    text = "between two snapshots: the last is kept";
  if (snapshots.saved()) text += "; the same command with --resume goes on";
  return text;
}

void MeasureRun::require_selection() {
  try {
    if (check_patterns) check_patterns();
  } catch (const io::Error&) {
    session->discard();
    throw;
  }
  if (!session->result().selected.empty()) return;
  session->discard();
  io::fail<io::Error>("{}: no module is selected to be measured", options.model.string());
}

void MeasureRun::require_memory(std::int64_t needed, const std::string& what) const {
  if (options.memory_limit.empty() || needed <= memory) return;
  constexpr std::int64_t kMB = 1'000'000;
  const std::int64_t more = process / 32;  // by which the next process may be larger: pages of libraries come and go
  const std::int64_t least = (process + more + needed + kMB - 1) / kMB + 1;
  io::fail<UsageError>(
      "--memory-limit: found '{}', but the program itself takes {} and {} about {}, allowed: {}MB or more",
      options.memory_limit, human_bytes(process), what, human_bytes(needed), least);
}

}  // namespace fp8::commands
