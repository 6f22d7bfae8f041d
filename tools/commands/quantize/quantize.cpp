// SPDX-License-Identifier: Apache-2.0
// fp8 quantize: checkpoint folder in, fp8 checkpoint folder out, tensor by tensor.

#include <fmt/format.h>

#include "fp8/measure/files/observer_types.h"
#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inspect/cost_page.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/tools/commands/quantize/budget.h"
#include "fp8/tools/commands/quantize/rounding.h"
#include "fp8/tools/commands/quantize/scheme_option.h"

namespace fp8::commands {
namespace {

struct QuantizeOptions {
  BudgetOptions data;
  std::string budget;
  std::filesystem::path model, out, config, html;
  std::string command;  ///< as a page shows it
  std::string measurements;
  std::vector<std::string> include, exclude, ignore, ignore_spelling;
  quant::ExpertForm experts = quant::ExpertForm::each;
  quant::ModuleChoice modules;
  std::optional<Preset> preset;
  std::optional<quant::WeightWord> scheme;
  std::int64_t block = 0;  ///< 0: not given
  std::optional<bool> power_of_two;
  quant::ScaleSearch search = quant::ScaleSearch::amax;
  std::string rounding;  ///< empty: not given
  ShareOptions share;
  std::string form = "compressed-tensors";
  std::optional<recipes::Granularity> kv_scales;
  std::optional<bool> kv_cache;
  bool query_scale = false;
  bool dynamic = false, weights_only = false, overwrite = false, dry_run = false, no_fuse_scales = false,
       allow_nonfinite = false, check = false;
};

/// Sets what the preset is short for. Throws UsageError for an option that says otherwise.
void apply_preset(QuantizeOptions& o) {
  using enum Preset;
  if (!o.preset.has_value()) return;
  const auto& row = *std::ranges::find(enum_names<Preset>, *o.preset, &PresetRow::value);
  const bool dynamic = row.value == FP8_DYNAMIC || row.value == FP8_BLOCK,
             measured = row.value == FP8_STATIC || row.value == FP8_KV;
  const char* other =
      !o.config.empty()                                                       ? "--config"
      : o.dynamic && !dynamic && row.value != FP8_KV                          ? "--dynamic"
      : o.weights_only && row.value != FP8_WEIGHT_ONLY && row.value != FP8_KV ? "--weights-only"
      : o.kv_cache == false && row.value == FP8_KV                            ? "--kv-cache off"
      : row.value == FP8_BLOCK && o.scheme.value_or(quant::WeightWord::block) != quant::WeightWord::block
          ? "another --scheme"
          : nullptr;
  if (other != nullptr)
    io::fail<UsageError>("quantize: --preset {} is {}, {} doesn't go with it", row.name, row.options, other);
  if (measured && o.measurements.empty())
    io::fail<UsageError>("quantize: --preset {} needs --measurements DIR, which fp8 measure writes", row.name);
  o.dynamic = o.dynamic || dynamic;
  o.weights_only = o.weights_only || row.value == FP8_WEIGHT_ONLY;
  if (row.value == FP8_BLOCK) o.scheme = quant::WeightWord::block;
  if (row.value == FP8_KV) o.kv_cache = true;
}

quant::ActivationScaling activations_of(const QuantizeOptions& o) {
  const bool kv_cache = o.kv_cache.value_or(false);
  if (kv_cache && o.measurements.empty() && o.config.empty())
    throw UsageError("quantize: --kv-cache fp8 makes its scales of --measurements DIR, which is not given");
  const bool for_activations = !o.measurements.empty() && !(kv_cache && (o.dynamic || o.weights_only));
  const int given = (for_activations ? 1 : 0) + (o.dynamic ? 1 : 0) + (o.weights_only ? 1 : 0);
  if (given > 1) throw UsageError("quantize: --measurements, --dynamic and --weights-only exclude each other");
  if (!o.config.empty() && (o.dynamic || o.weights_only))
    throw UsageError("quantize: --config decides the scales, --dynamic and --weights-only don't go with it");
  return o.dynamic        ? quant::ActivationScaling::dynamic_token
         : o.weights_only ? quant::ActivationScaling::none
                          : quant::ActivationScaling::static_tensor;
}

/// --ignore lm_head,re:.*gate$ and the like: at commas, but not inside of an expression.
std::vector<std::string> entries_of(const std::vector<std::string>& given) {
  std::vector<std::string> entries;
  for (std::string_view text : given) {
    while (!text.empty()) {
      const std::size_t end = text.starts_with("re:") ? text.size() : std::min(text.find(','), text.size());
      if (end > 0) entries.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  return entries;
}

/// Measurements in the names of the model in memory.
quant::PlanOptions plan_of(const QuantizeOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.spelling = flag_of_option;
  plan.activations = activations_of(o);
  if (o.kv_scales.has_value() && !o.kv_cache.value_or(!o.config.empty()))
    throw UsageError("quantize: --kv-cache auto:head goes with --config, allowed: fp8:head");
  if (o.query_scale && (o.kv_cache != true || !o.config.empty() || o.kv_scales == recipes::Granularity::head))
    throw UsageError("quantize: --kv-cache fp8:query goes with one scale each of keys and values, without --config");
  plan.kv_cache = o.kv_cache;
  plan.query_scale = o.query_scale;
  plan.kv_scales = o.kv_scales.value_or(recipes::Granularity::tensor);
  if (o.scheme != quant::WeightWord::block && (o.block > 0 || o.power_of_two.has_value()))
    throw UsageError("quantize: --block and --scale-format are --scheme block:N and block:e8m0");
  if (o.block > 0) plan.block = {o.block, o.block};
  plan.power_of_two = o.power_of_two.value_or(false);
  if (o.scheme.has_value()) quant::set_weights(plan, *o.scheme);
  plan.search = o.search;
  plan.fuse_scales = !o.no_fuse_scales;
  plan.include = o.include;
  plan.exclude = o.exclude;
  plan.ignore = entries_of(o.ignore);
  plan.experts = o.experts;
  plan.dialect = context.dialect.value_or(kernels::Dialect::ocp);
  if (!o.config.empty()) {
    if (o.scheme.has_value() || !o.include.empty() || !o.exclude.empty() || !o.ignore.empty() ||
        o.search != quant::ScaleSearch::amax) {
      throw UsageError(
          "quantize: --config decides modules and scales, --scheme, --weight-scales, --include, --exclude and --ignore "
          "don't go with it");
    }
    plan.config = configs::read_quant_config(o.config, measure::parse_options());
    if (plan.config->mode != configs::QuantMode::QUANTIZE && plan.config->mode != configs::QuantMode::AUTO)
      io::fail<io::Error>("{}: key 'mode': found {}, expected QUANTIZE", o.config.string(),
                          configs::name_of(plan.config->mode));
    configs::refuse_type_paths(*plan.config);
    plan.dialect = device_dialect(context, "quantize");
    if (plan.config->needs_measurements() || o.kv_cache.value_or(false))
      plan.measurements = measure::measurements_for(*plan.config, o.measurements);
  } else if (!o.measurements.empty()) {
    plan.measurements = measure::read_measurements(o.measurements);
  }
  return plan;
}

/// Adds the verdicts of the programs that read the form.
void add_check(const std::filesystem::path& out, Report& report, const Context& context) {
  report.json["readers"] = io::Json::array();
  for (const auto& verdict : quant::check_readers(out, flag_of_option)) {
    const auto loads = verdict.loads();
    const auto more = verdict.problems.size() <= 1 || context.verbose
                          ? std::string()
                          : fmt::format(" ({} more with --verbose)", verdict.problems.size() - 1);
    report.add_entry("readers",
                     {{"reader", verdict.reader},
                      {"rules", verdict.rules},
                      {"loads", loads.has_value() ? io::Json(*loads) : io::Json()},
                      {"problems", verdict.problems}},
                     {verdict.reader, !loads.has_value() ? "not known: " + verdict.not_known
                                      : *loads           ? fmt::format("rules of {}: accepted", verdict.release)
                                               : fmt::format("rules of {}: refused or misread: {}{}", verdict.release,
                                                             context.verbose ? io::joined(verdict.problems, "; ")
                                                                             : verdict.problems.front(),
                                                             more)});
  }
}

/// All but the budget's choice and how progress is shown.
quant::CheckpointOptions checkpoint_options(const QuantizeOptions& o, const Share& share, Context& context) {
  quant::CheckpointOptions options;
  options.plan = plan_of(o, context);
  check_scheme(o.form, options.plan);
  options.form = o.form;
  options.overwrite = o.overwrite;
  options.allow_nonfinite = o.allow_nonfinite;
  options.modules = o.modules;
  options.ignore = o.ignore_spelling;
  options.dry_run = o.dry_run;
  set_share(options, share);
  options.join = o.share.join;
  options.resume = o.share.resume;
  options.shard_bytes = static_cast<std::uint64_t>(o.share.shard_bytes);
  options.stop = [] { return interrupted(); };
  return options;
}

/// What a run with these options would write.
quant::CheckpointReport dry_run(const QuantizeOptions& o, quant::CheckpointOptions options) {
  options.dry_run = true;
  return quant::quantize_checkpoint(o.model, {}, options);
}

/// True if other processes do the same work.
bool is_shared(const QuantizeOptions& o, const Share& share) {
  return share.shares.has_value() || share.world_size > 1 || o.share.join;
}

/// By the option, else by the config. Throws UsageError for options that it does not go with.
configs::RoundingKeys rounding_of(const QuantizeOptions& o, const quant::PlanOptions& plan) {
  configs::RoundingKeys how = plan.config.has_value() ? plan.config->rounding : configs::RoundingKeys();
  if (!o.rounding.empty()) how.method = o.rounding;
  if (!how.nearest() && o.data.data.empty())
    io::fail<UsageError>(
        "quantize: {} needs --data, texts like those of the users",
        o.rounding.empty() ? io::message("{}: key 'rounding'", plan.config->source) : "--rounding " + how.method);
  if (how.nearest() && o.budget.empty() && !o.data.data.empty())
    throw UsageError("quantize: --data goes with --budget or --rounding gptq");
  return how;
}

/// vLLM gives q, k, v and gate, up one scale per tensor, the largest, and rounds their codes to nearest under that.
void warn_of_own_scales(const QuantizeOptions& o, const quant::CheckpointReport& done, const Context& context) {
  if ((o.no_fuse_scales || !o.config.empty()) &&
      done.quantized.front().second.find("tensor weights") != std::string::npos)
    context.warn(
        "own scales of q, k, v and of gate, up: vLLM rounds their codes again, to one scale, which loses what the "
        "rounding gained");
}

/// Codes that `how` chooses, in files of `folder`.
/// plan: in the names of the model in memory.
std::shared_ptr<quant::RoundedCodes> rounded_codes(const QuantizeOptions& o, const configs::RoundingKeys& how,
                                                   const RoundingFolder& folder, const Share& share,
                                                   const quant::CheckpointOptions& options, quant::PlanOptions plan,
                                                   const Context& context) {
  RoundingOptions rounding;
  rounding.data = o.data;
  rounding.judged = !o.budget.empty();
  rounding.modules = dry_run(o, options).sources;
  rounding.how = how;
  rounding.folder = folder.path();
  rounding.collect = o.share.join && !o.share.wait.has_value();
  if (is_shared(o, share)) {
    rounding.others = share.shares.has_value() ? share.shares->lease : io::LeaseOptions();
    rounding.others->expiry = o.share.lease_seconds;
    rounding.wait = o.share.wait.value_or(0);
  }
  // Only where the writer leaves a finished output as it is, too.
  if (o.share.resume || share.shares.has_value())
    rounding.finished = [&](const io::Json& identity) {
      quant::CheckpointOptions made = options;
      made.rounded = std::make_shared<quant::RoundedCodes>(rounding.folder, identity);
      return o.budget.empty() && quant::is_quantized(o.model, o.out, made);
    };
  plan.kv_cache = false;
  if (!plan.config.has_value()) {  // of the codes: activations, and what is selected, do not count
    plan.weights = plan.weights.value_or(plan.activations == quant::ActivationScaling::static_tensor
                                             ? recipes::Granularity::tensor
                                             : recipes::Granularity::channel);
    plan.activations = quant::ActivationScaling::none;
    plan.measurements.reset();
    plan.include = {".*"}, plan.exclude = {}, plan.ignore = {};
  }
  return round_weights(o.model, plan, rounding, context);
}

/// "output error of 28 modules: 25.9 -> 31.0 dB, 2 kept nearest, 8192 tokens"
void add_rounding(const io::Json& rounding, Report& report) {
  const auto summary = quant::RoundingSummary::of(rounding);
  if (!summary.has_value()) return;
  report.json["rounding"] = rounding;
  report.row({"output error of " + std::to_string(summary->judged) + " modules", summary->text()});
  for (const auto& m : rounding["modules"])
    if (m.contains("nearest_because"))
      report.row({"nearest " + m["name"].get<std::string>(), m["nearest_because"].get<std::string>()});
}

/// "kl=0.01" -> 0.01. Throws UsageError.
double parse_budget(const std::string& text) {
  const auto value = text.starts_with("kl=") ? parse_number(text.substr(3)) : std::nullopt;
  if (!value.has_value() || !(*value > 0))
    io::fail<UsageError>("--budget: found '{}', allowed: kl=X with X > 0, e.g. kl=0.01", text);
  return *value;
}

/// Chooses by --budget what stays in high precision; `rounded` (or null) forgets the codes of that.
BudgetResult keep_within_budget(const QuantizeOptions& o, quant::CheckpointOptions& options,
                                quant::PlanOptions in_memory, quant::RoundedCodes* rounded, Context& context) {
  BudgetOptions data = o.data;
  if (data.data.empty()) take_built_in_text(data, context);
  if (rounded != nullptr)
    data.skip += data.samples;  // it judges on text that the rounding has not seen
  else if (data.seq_len == 0)
    data.seq_len = 256;
  data.rounded = options.rounded;
  data.kl = parse_budget(o.budget);
  const quant::NamesInCheckpoint names_in_file(std::make_shared<const io::Checkpoint>(o.model));
  quant::name_as_in_checkpoint(in_memory, names_in_file);
  // Without what stays in the file whatever the budget, of which it shows less.
  for (const auto& kept : dry_run(o, options).skipped) in_memory.keep.emplace(kept.name, kept.reason);
  quant::Scheme scheme;
  scheme.weights = in_memory.weights.value_or(scheme.weights);
  scheme.block = in_memory.block, scheme.power_of_two = in_memory.power_of_two;
  const quant::ModelNames names(io::read_python_json(io::source_file(o.model, io::kConfigFile)));
  data.weights_only_too = !in_memory.config.has_value() && in_memory.activations != quant::ActivationScaling::none &&
                          quant::form_named(o.form).holds_weights_only_beside(names, scheme);
  BudgetResult budget = meet_budget(o.model, in_memory, data, context);
  if (rounded != nullptr) rounded->erase([&](const std::string& module) { return budget.keep.contains(module); });
  const auto in_file = [&](const std::map<std::string, std::string>& modules) {  // experts are called otherwise there
    std::map<std::string, std::string> found;
    for (const auto& [module, reason] : modules)
      for (const auto& name : names_in_file.of(module)) found[name] = reason;
    return found;
  };
  options.costs = {
      fmt::format("KL divergence from the source: {:.1e} nats a token ({:.1e} with all modules in fp8), on {} "
                  "for `--budget {}`.",
                  budget.kl, budget.kl_of_all, io::joined(text::short_names(data.data)), o.budget)};
  options.plan.keep.merge(in_file(budget.keep));
  options.plan.weights_only = budget.weights_only = in_file(budget.weights_only);
  return budget;
}

/// A module that stays is named with its share of the source where that is much.
std::string share_text(std::uint64_t bytes, std::uint64_t of) {
  const double percent = 100.0 * static_cast<double>(bytes) / static_cast<double>(of);
  return percent < 5 ? "" : fmt::format(": {:.0f} % of the source", percent);
}

void add_modules(Report& report, const quant::CheckpointReport& done, bool dry_run, bool verbose) {
  for (const auto& s : done.skipped)
    report.json["modules_skipped"].push_back({{"name", s.name}, {"reason", s.reason}, {"bytes", s.bytes}});
  for (const auto& line : plan_lines(done, !verbose)) {
    if (!line.scheme.empty() && !dry_run && !verbose) continue;
    const std::string count = line.modules.size() > 1 ? fmt::format(" ({} modules)", line.modules.size()) : "";
    report.row({(line.scheme.empty() ? "kept " : "fp8 ") + line.name + count,
                line.scheme.empty() ? line.reason + share_text(line.bytes, done.source_bytes) : line.scheme});
  }
  if (!dry_run) return;
  report.json["modules"] = io::Json::array();
  for (const auto& [name, scheme] : done.quantized) report.json["modules"].push_back(name);
  for (const auto& [name, what] : done.guesses) {
    report.json["guesses"][name] = what;
    report.row({"taken " + name, what == "Linear" ? "for Linear" : "for none: " + what});
  }
}

Report report_of(const QuantizeOptions& o, const Share& share, const quant::PlanOptions& plan,
                 const quant::CheckpointReport& done, const std::optional<BudgetResult>& budget, double seconds,
                 const Context& context) {
  io::ensure(!done.quantized.empty(), "a quantized module: quantize_checkpoint() refuses a model without one");
  Report report(o.dry_run ? "quantize (dry run)" : "quantize", o.model);
  auto& json = report.json;
  report.add("modules_quantized", "modules quantized", done.quantized.size());
  json["modules_skipped"] = io::Json::array();
  const auto usual = std::ranges::find_if(
      done.quantized, [&](const auto& m) { return !budget.has_value() || !budget->weights_only.contains(m.first); });
  report.add("scheme", "scheme", (usual == done.quantized.end() ? done.quantized.front() : *usual).second);
  report.order({"weights_bytes", "source_bytes"});
  report.add("source_bytes", "source", done.source_bytes, As::bytes);
  report.add("weights_bytes", "weights", done.weights_bytes, As::bytes);
  report.add("seconds", "seconds", seconds, As::seconds);
  json.update({{"peak_rss_bytes", peak_resident_bytes()},
               {"dry_run", o.dry_run},
               {"out", o.out.string()},
               {"units", done.units},
               {"units_kept", done.units_kept},
               {"finished_before", done.finished_before},
               {"rank", share.rank},
               {"world_size", share.world_size}});
  if (done.kv_caches > 0) {
    report.add("kv_cache", "key-value cache", "fp8", fmt::format("fp8 in {} layers", done.kv_caches));
    json["kv_cache_scales"] = name_of(plan.kv_scales);
  }
  add_shares(report, share, done.shares, !done.finished_before && !o.dry_run, o.share.join);
  if (done.finished_before)
    report.row({"finished already", o.out.string() + " is what a run with these options wrote; nothing was done"});
  else if (done.units_kept > 0)
    report.row({"kept of an earlier run", fmt::format("{} of {} parts", done.units_kept, done.units)});
  if (budget.has_value()) {
    report.add("budget", "KL, all in fp8", budget->report, fmt::format("{:.3e}", budget->kl_of_all));
    report.row({"KL, as written", fmt::format("{:.3e} (budget {})", budget->kl, o.budget)});
    for (const auto& [name, reason] : budget->weights_only) report.row({"fp8 " + name, reason});
  }
  add_modules(report, done, o.dry_run, context.verbose);
  return report;
}

void write_page(const QuantizeOptions& o, const std::optional<BudgetResult>& budget, const io::Json& rounding) {
  Cost cost = cost_of(o.out, o.model);
  if (budget.has_value())
    cost.more.emplace_back("KL divergence for --budget",
                           fmt::format("{:.3e} ({:.3e} with all in fp8)", budget->kl, budget->kl_of_all));
  if (const auto summary = quant::RoundingSummary::of(rounding); summary.has_value())
    cost.more.emplace_back("rounding, output SQNR", summary->text());
  write_cost_page(o.html, {o.command, quant::model_name(o.model), {std::move(cost)}});
}

void quantize(const QuantizeOptions& o, Context& context) {
  const Stopwatch watch;
  if (!o.ignore.empty())  // for one version: it was the other option's name
    context.warn("--ignore keeps modules in high precision now; entries for the file's list are --ignore-spelling");
  Share share = find_share(o.share, o.out);
  attach(share, context);
  const bool part = share.shares.has_value() || share.world_size > 1;
  if (o.check && (o.dry_run || (part && !o.share.join)))
    throw UsageError("quantize: --check reads a whole output, not that of --dry-run or one rank's share");
  if (!o.html.empty() && (o.dry_run || (part && !o.share.join)))
    throw UsageError("quantize: --html shows a whole output, not that of --dry-run or one rank's share");
  quant::CheckpointOptions options = checkpoint_options(o, share, context);
  const auto how = rounding_of(o, options.plan);
  const quant::PlanOptions in_memory = options.plan;
  std::vector<std::string> notices;
  if (options.plan.measurements.has_value())
    options.plan.measurements =
        quant::in_names_of_checkpoint(std::move(*options.plan.measurements), io::Checkpoint(o.model), notices);
  std::optional<RoundingFolder> folder;
  std::shared_ptr<quant::RoundedCodes> rounded;
  if (!how.nearest() && (!o.dry_run || !o.budget.empty())) {
    io::refuse_same_path(o.model, o.out);
    if (!o.dry_run && !is_shared(o, share) && !o.share.resume)
      const io::OutputDirectory free(o.out, o.overwrite);  // refused now, not after all the work
    folder.emplace(o.out,
                   o.dry_run             ? RoundingFolder::Use::scratch
                   : is_shared(o, share) ? RoundingFolder::Use::shared
                                         : RoundingFolder::Use::alone,
                   o.share.resume);
    options.rounded = rounded = rounded_codes(o, how, *folder, share, options, in_memory, context);
  }
  std::optional<BudgetResult> budget;
  if (!o.budget.empty()) budget = keep_within_budget(o, options, in_memory, rounded.get(), context);
  Progress progress(context, "quantize");
  progress.announce(peak_resident_bytes);
  options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  const auto done = quant::quantize_checkpoint(o.model, o.out, options);
  const double seconds = watch.seconds();
  const bool joined = done.finished_before || done.shares.joined || (o.share.join && !share.shares.has_value());
  if (folder.has_value()) folder->finish(joined);
  if (rounded != nullptr) warn_of_own_scales(o, done, context);
  for (const auto& warning : notices) context.warn(warning);
  for (const auto& warning : done.warnings) context.warn(warning);
  if (o.kv_scales.has_value() && done.kv_caches == 0)
    context.warn("--kv-cache: head and tensor have no effect, no scales of key-value caches are written");
  Report report = report_of(o, share, options.plan, done, budget, seconds, context);
  if (rounded != nullptr) {
    const io::Checkpoint source(o.model);
    add_rounding(done.finished_before
                     ? io::read_json(o.out / quant::kSidecarName).value(quant::kRoundingKey, io::Json())
                     : rounded->json(&source),
                 report);
  }
  const bool elsewhere = share.shares.has_value() && !done.shares.joined && !done.finished_before;
  if (o.check && !elsewhere) add_check(o.out, report, context);
  if (!o.html.empty() && !elsewhere) {
    write_page(o, budget, report.json.value("rounding", io::Json()));
    report.json["html"] = o.html.string();
  }
  report.print(context);
}

}  // namespace

Action add_quantize(Options& options) {
  auto values = std::make_shared<QuantizeOptions>();
  values->data.seq_len = 0;
  values->data.seq_len_text = "512; 256 with --budget";
  options.model(values->model, "High precision checkpoint folder");
  options.choice<Preset>("--preset", values->preset,
                         "Usual settings by the name that other programs have for them (fp8 help presets)");
  options.path("--out", values->out, io::Reach::replaced, "Folder to write", Options::Need::required);
  options.text("--measurements", values->measurements, "Static scales from a measurement: its folder or prefix");
  options.reach("--measurements", io::Reach::beside);
  options.flag("--dynamic", values->dynamic, "Activation scales per token, computed at each call");
  options.flag("--weights-only", values->weights_only, "Activations stay in high precision");
  add_scheme_option(
      options, {values->scheme, values->block, values->power_of_two, &values->no_fuse_scales},
      "Weight scales (default: tensor with --measurements, else channel); tensor:unfused: own ones for q, k, v and for "
      "gate, up; block: one per square of 128, block:N of N, block:e8m0 powers of two, activations per group; mx: "
      "MXFP8, a power of two per 32 neighbours in a row, of activations too");
  options.choice<quant::ScaleSearch>("--weight-scales", values->search,
                                     "amax: a weight's largest value becomes the largest code; mse: the scale of the "
                                     "least squared error, searched for "
                                     "around that");
  const auto roundings = recipes::rounding_method_names();
  options.choice(
      "--rounding", roundings, [values, roundings](std::size_t i) { values->rounding = roundings[i]; },
      "nearest, or gptq: codes that keep the outputs of a module on --data, where they do it better than the nearest");
  options.path("--config", values->config, io::Reach::config,
               "QUANT_CONFIG JSON: Intel Neural Compressor's methods and lists instead of ours");
  options.one_of({"--preset", "--measurements", "--dynamic", "--weights-only", "--config"});
  const auto forms = quant::form_names();
  options.choice(
      "--format", forms, [values, forms](std::size_t i) { values->form = forms[i]; },
      "Form of the checkpoint: " +
          io::joined(quant::checkpoint_forms() | std::views::transform(&quant::CheckpointForm::help)));
  add_kv_cache_option(options, {values->kv_cache, values->kv_scales, values->query_scale});
  options.patterns("--include", values->include, "Regular expression: quantize these modules too (lm_head, routers)");
  options.patterns("--exclude", values->exclude, "Regular expression: keep these modules in high precision");
  options.choice<quant::ExpertForm>(
      "--experts", values->experts,
      "Experts: each in fp8 with its own scales and name, also where one tensor stacks them (default), or all kept as "
      "they are");
  options.patterns("--linear", values->modules.linear,
                   "Regular expression: these modules are Linear, whatever their names, sizes and places say");
  options.patterns(
      "--keep", values->modules.keep,
      "Regular expression: these modules are no Linear; they stay in high precision and readers are told so");
  options.choice(
      "--towers", {"keep", "fp8"}, [values](std::size_t i) { values->modules.towers = i == 1; },
      "Vision and audio towers and their projectors: in high precision (default), or like the rest");
  options.list("--ignore", values->ignore,
               "Keep modules in high precision as llm-compressor's ignore does: whole names (several with commas), or "
               "re:EXPRESSION, matched from a name's start");
  options.list(
      "--ignore-spelling", values->ignore_spelling,
      "One more entry for the file's list of modules in high precision, as its form spells them (\"re:.*\\.gate$\")");
  options.text("--budget", values->budget,
               "kl=X: keep the most damaged modules in high precision until the KL measured on --data (default a "
               "built-in text) is "
               "at most X");
  add_data_options(options, values->data, Options::Need::optional);
  add_share_options(options, values->share);
  options.flag("--overwrite", values->overwrite, "Replace a non-empty output folder");
  options.flag("--allow-nonfinite", values->allow_nonfinite,
               "Copy tensors with NaN or Inf in high precision, noted in fp8.json, instead of refusing them");
  options.flag("--check", values->check,
               "Read the output again and say of each program that reads its form whether it loads, or what it would "
               "refuse or misread");
  options.flag("--dry-run", values->dry_run, "Print the plan and the bytes, write nothing");
  options.output("--html", values->html,
                 "Write a page there on what the checkpoint saves and what its weights lost, to be shown and printed");
  // A QUANT_CONFIG may ask for rounding.
  options.uses_beside([values] {
    const bool nearest = values->rounding.empty() ? values->config.empty() : values->rounding == recipes::kNearest;
    return divides_work(values->share) || !nearest;
  });
  return [values, &options](Context& context) {
    apply_preset(*values);
    if (!values->html.empty()) values->command = shown_command("quantize", options);
    quantize(*values, context);
  };
}

decltype(meet_budget) meet_budget;

}  // namespace fp8::commands
