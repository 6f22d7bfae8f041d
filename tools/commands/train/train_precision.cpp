// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <sstream>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/tools/commands/train/train_run.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/modules/extra_state.h"

namespace fp8::commands {
namespace {

constexpr int kMostWarnings = 5;
constexpr float kJump = 4;  // times what the scale covers
constexpr const char* kDefaultKeep[] = {"lm_head", "embed"};
constexpr const char* kAttention = "scaled_dot_product_attention";

/// The lists of a gaudi_config.json in force; null: those that are.
std::unique_ptr<runtime::autocast::ListsGuard> lists_of(const TrainOptions& o, const Context& context) {
  constexpr std::size_t kMost = 3;
  if (!o.autocast_ops) return nullptr;
  auto lists = runtime::autocast::AutocastLists::defaults();
  lists.lower = o.autocast_ops->bf16;
  lists.fp32 = o.autocast_ops->fp32;
  lists.lower_from = lists.fp32_from = "gaudi_config.json";
  // Optimum's attention is products and a softmax, which lists name; here it is one operator, of one dtype.
  const auto has = [](const std::vector<std::string>& list, const char* name) {
    return std::ranges::find(list, name) != list.end();
  };
  if (!has(lists.lower, kAttention) && !has(lists.fp32, kAttention))
    (has(lists.lower, "matmul") || has(lists.lower, "bmm") ? lists.lower : lists.fp32).emplace_back(kAttention);
  const auto unknown = runtime::autocast::check_lists(lists);
  for (std::size_t i = 0; i < std::min(unknown.size(), kMost); ++i) context.warn("gaudi_config.json: " + unknown[i]);
  if (unknown.size() > kMost)
    context.warn(fmt::format("gaudi_config.json: {} more names are no operators either", unknown.size() - kMost));
  return std::make_unique<runtime::autocast::ListsGuard>(std::move(lists));
}

}  // namespace

struct TrainPrecision::Impl {
  Impl(const Context& context_, std::shared_ptr<torch::nn::Module> model_, std::int64_t every)
      : context(context_), model(std::move(model_)), statistics_every(every) {}

  const Context& context;
  std::shared_ptr<torch::nn::Module> model;
  std::int64_t statistics_every;
  std::shared_ptr<runtime::distributed::ProcessGroup> amax_group;
  std::optional<runtime::DeviceKindScope> kind;          ///< of --dialect
  std::unique_ptr<runtime::autocast::ListsGuard> lists;  ///< of --gaudi-config
  std::optional<te::HPUPrecisionPlugin> plugin;          ///< none on the CPU, in f32
  std::optional<configs::RecipeConfig> recipe;           ///< of fp8
  std::size_t converted = 0, kept = 0;
  std::string warm_start;  ///< fingerprint of --measurements; empty: not given
  quant::ConversionReport report;
  std::filesystem::path measured;  ///< folder of the measurement; empty: none
  int warnings = 0;
  bool cpu_amp = false;

  bool fp8() const { return recipe.has_value(); }
  bool counts(std::int64_t step) const { return statistics_every > 0 && (step == 1 || step % statistics_every == 0); }

  te::Fp8AutocastOptions regions(const trainer::ForwardInfo& info) const {
    te::Fp8AutocastOptions options;
    options.seed = context.seed;
    options.group = amax_group;
    options.statistics = info.training && counts(info.step);
    return options;
  }

  /// Reads the options of --precision fp8. Fills `recipe` and `warm_start`.
  te::ConvertOptions conversion(const TrainOptions& o) {
    recipe = configs::recipe_from_argument(o.recipe.empty() ? kDefaultRecipe : o.recipe);
    te::ConvertOptions options;
    options.replace_layers = true;
    options.plan_only = o.plan;
    options.minimize_memory = o.minimize_memory;
    options.recipe = recipe->recipe;
    options.warm_start = o.measurements;
    if (!o.measurements.empty()) warm_start = measure::read_measurements(o.measurements).fingerprint();
    for (const auto& rule : recipe->rules) options.rules.push_back({rule.pattern, rule.recipe});
    options.block = o.keep;
    if (o.keep.empty() && !o.run.model) options.block = {std::begin(kDefaultKeep), std::end(kDefaultKeep)};
    check_keep(o.keep);
    return options;
  }

  quant::ConversionReport convert(const TrainOptions& o) {
    auto report = plugin->convert_modules(*model, conversion(o));
    converted = report.converted.size();
    kept = report.skipped.size();
    if (converted == 0) throw UsageError("--precision fp8: no module is left to run in fp8, see --keep and --recipe");
    for (const auto& warning : report.warnings) context.warn("--precision fp8: " + warning);
    return report;
  }

  /// A misspelt pattern would leave a layer in fp8 that was to stay out of it.
  void check_keep(const std::vector<std::string>& patterns) const {
    try {
      configs::NamePatterns(patterns, "--keep").require_used(model->named_modules().keys());
    } catch (const io::Error& error) {
      throw UsageError(error.what());
    }
  }

  /// Early steps pass the scale a little all the time; a jump is what a user wants to hear of.
  void warn_stale(std::int64_t step, const std::string& module, const te::CastStatistics& s) {
    if (s.worst < kJump || ++warnings > kMostWarnings) return;
    context.warn(fmt::format(
        "step {}: '{}': {} of {} casts met an amax beyond what the delayed scale covers, up to {:.3g} times{}", step,
        module, s.stale, s.casts, s.worst, warnings == kMostWarnings ? " (more of these are in the log only)" : ""));
  }

  void log(io::Json& entry) {
    const auto step = entry["step"].get<std::int64_t>();
    io::Json modules = io::Json::object(), stale = io::Json::object();
    te::CastStatistics sum;
    for (const auto& [name, s] : te::take_statistics(*model)) {
      sum.elements += s.elements;
      sum.saturated += s.saturated;
      sum.underflowed += s.underflowed;
      sum.amax = std::max(sum.amax, s.amax);
      if (s.elements > 0)
        modules[name] = {
            {"elements", s.elements}, {"saturated", s.saturated}, {"underflowed", s.underflowed}, {"amax", s.amax}};
      if (s.stale == 0) continue;
      stale[name] = {{"casts", s.stale}, {"worst", s.worst}};
      warn_stale(step, name, s);
    }
    io::Json fp8 = io::Json::object();
    if (sum.elements > 0)
      fp8 = {{"elements", sum.elements},
             {"saturated", sum.saturated},
             {"underflowed", sum.underflowed},
             {"amax", sum.amax},
             {"modules", std::move(modules)}};
    if (!stale.empty()) fp8["stale"] = std::move(stale);
    if (!fp8.empty()) entry["fp8"] = std::move(fp8);
  }
};

TrainPrecision::TrainPrecision(const TrainOptions& options, const Context& context,
                               std::shared_ptr<torch::nn::Module> model,
                               std::shared_ptr<runtime::distributed::ProcessGroup> amax_group)
    : impl_(std::make_unique<Impl>(context, std::move(model), options.statistics_every)) {
  impl_->amax_group = std::move(amax_group);
  impl_->lists = lists_of(options, context);
  impl_->cpu_amp = options.cpu_amp && options.precision == "bf16-mixed";
  if (options.cpu_amp && context.device != "cpu")
    throw UsageError("--half-precision-backend: found cpu_amp with --device hpu, allowed: hpu_amp");
  if (context.device == "cpu" && options.precision != "32-true" && !impl_->cpu_amp)
    io::fail<UsageError>(
        "--precision: found '{}' with --device cpu, allowed: 32-true, or bf16-mixed with --half-precision-backend "
        "cpu_amp",
        options.precision);
  if (context.dialect) {
    const bool gaudi2 = *context.dialect == kernels::Dialect::gaudi2;  // E4M3 to 240; the others' is OCP's
    impl_->kind.emplace(gaudi2 ? runtime::DeviceKind::gaudi2 : runtime::DeviceKind::gaudi3);
  }
  if (context.device != "cpu") impl_->plugin.emplace(options.precision);
  if (options.precision == "fp8") impl_->report = impl_->convert(options);
}

TrainPrecision::~TrainPrecision() = default;

TrainPrecision::Plan TrainPrecision::plan(const TrainOptions& options, const Context& context,
                                          std::shared_ptr<torch::nn::Module> model) {
  const TrainPrecision precision(options, context, std::move(model));
  const auto& report = precision.impl_->report;
  io::Json modules = io::Json::array(), kept = io::Json::array();
  for (const auto& m : report.converted)
    modules.push_back({{"name", m.name},
                       {"type", m.type},
                       {"scheme", m.scheme},
                       {"bytes", m.bytes_before},
                       {"operand_bytes", m.operand_bytes},
                       {"flops_per_row", m.flops_per_row},
                       {"expected_error", m.expected_error ? io::Json(*m.expected_error) : io::Json(nullptr)}});
  for (const auto& m : report.skipped) kept.push_back({{"name", m.name}, {"reason", m.reason}});
  std::ostringstream text;
  text << quant::ConversionReport{report.converted, report.skipped, {}};  // the warnings stand on stderr
  return {{{"modules", modules},
           {"kept", kept},
           {"warnings", report.warnings},
           {"recipe", configs::to_json(*precision.impl_->recipe)}},
          text.str()};
}

trainer::TrainerOptions TrainPrecision::around(trainer::TrainerOptions options) const {
  if (impl_->cpu_amp)
    options.forward_context = [](const trainer::ForwardInfo&) { return std::make_shared<te::CpuAutocastGuard>(); };
  if (impl_->cpu_amp || !impl_->plugin) return options;
  return te::with_precision(*impl_->plugin, std::move(options),
                            [impl = impl_.get()](const trainer::ForwardInfo& info) { return impl->regions(info); });
}

io::Json TrainPrecision::settings() const {
  if (!impl_->fp8()) return io::Json::object();
  return {{"recipe_values", configs::to_json(*impl_->recipe)},
          {"dialect", kernels::name_of(runtime::device_dialect("train"))},
          {"warm_start", impl_->warm_start.empty() ? io::Json(nullptr) : io::Json(impl_->warm_start)}};
}

StateHooks TrainPrecision::state_hooks() const {
  if (!impl_->fp8()) return {};
  StateHooks hooks;
  hooks.save = [impl = impl_.get()] {
    auto state = te::get_extra_state(*impl->model);
    return trainer::TrainingState{std::move(state.json), std::move(state.tensors)};
  };
  hooks.load = [impl = impl_.get()](const trainer::TrainingState& state) {
    const auto report = te::set_extra_state(*impl->model, {state.json, state.tensors});
    for (const auto& name : report.missing)
      impl->context.warn("the checkpoint has no fp8 state of '" + name + "': its scales start anew");
  };
  return hooks;
}

std::function<void(io::Json&)> TrainPrecision::log_hook() const {
  if (!impl_->fp8()) return {};
  return [impl = impl_.get()](io::Json& entry) { impl->log(entry); };
}

void TrainPrecision::write_measurements(const std::filesystem::path& folder) {
  if (!impl_->fp8()) return;
  const auto amaxes = te::export_amax(*impl_->model);
  if (amaxes.modules.empty()) return;
  measure::write_measurements((folder / "inc_output").string(), amaxes);
  impl_->measured = folder;
}

io::Json TrainPrecision::summary() const {
  if (!impl_->fp8()) return io::Json::object();
  const auto& folder = impl_->measured;
  return {{"modules_fp8", impl_->converted},
          {"modules_kept", impl_->kept},
          {"measurements", folder.empty() ? io::Json(nullptr) : io::Json(folder.string())}};
}

}  // namespace fp8::commands
