// SPDX-License-Identifier: Apache-2.0
// fp8 evaluate: perplexity = exp(mean NLL over tokens 2..L of every chunk), and with a reference model the mean KL
// divergence over all positions and the share of positions with the same most likely token. Of encoders there is no
// perplexity; of those that classify the KL is one of each chunk, of those without a head the cosine of chunks' means.
// Of models that answer a source text all is of the answers, whose first tokens are predicted too. Windows that slide
// over a text (--stride) predict each token once, all of their numbers are of the positions that do.
//
// Of several models one is in memory at a time, beside the reference.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "fp8/configs/configs.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/tools/commands/evaluate/evaluate_report.h"
#include "fp8/tools/commands/evaluate/scoring.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inspect/cost_page.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/work/process.h"

namespace fp8::commands {
namespace {

models::LoadedModel load(const std::filesystem::path& folder, const EvaluateOptions& options, const Context& context) {
  return load_language_model(folder, context, options.attention, options.allow_nonfinite);
}

/// Throws io::Error where logits are not of the same things.
void require_alike(const models::ModelShape& own, const models::ModelShape& other,
                   const std::filesystem::path& reference) {
  if (own.vocab != other.vocab)
    throw io::Error(fmt::format("{}: vocab_size {}, but the model has {}", reference.string(), other.vocab, own.vocab));
  if (own.task != other.task || own.outputs() != other.outputs())
    throw io::Error(fmt::format("{}: its logits are not of what the model's are of", reference.string()));
}

/// What is one file of one model, or a mode that writes such files.
void check_several(const EvaluateOptions& o) {
  if (o.models.size() < 2) return;
  const char* given = !o.dump_logits.empty()                     ? "--dump-logits"
                      : !o.profile.folder.empty()                ? "--profile"
                      : configs::quant_config_from_environment() ? "QUANT_CONFIG"
                                                                 : nullptr;
  if (given != nullptr) io::fail<UsageError>("evaluate: {} goes with one model, found {}", given, o.models.size());
}

/// Texts as the first model's tokenizer cuts them.
class SameTokens {
 public:
  void check(const Samples& samples, const std::filesystem::path& folder, const Context& context) {
    const auto found = samples.fingerprint();
    if (first_.is_null()) first_ = found;
    if (found != first_)
      context.warn(folder.string() + ": its tokens are not the first model's, so that perplexities do not compare");
  }

 private:
  io::Json first_;
};

/// The reference, if there is one, reads the same samples.
void say_forecast_of(const models::LoadedModel& model, const Samples& samples, bool reference, const Context& context) {
  const std::int64_t tokens = samples.column(samples.count()) * (reference ? 2 : 1);
  say_forecast(forward_work("evaluate", *model.model, tokens, samples.longest(), resident_bytes()), model.dtype,
               context);
}

/// One model's numbers. A length that is left open in `options` is filled in by the first model.
io::Json evaluate_one(const std::filesystem::path& folder, EvaluateOptions& options, const Context& context,
                      models::LoadedModel* reference, const EvaluateRanks& ranks, SameTokens& tokens) {
  auto model = load(folder, options, context);
  EnvironmentConfig quant_config(model, context);
  quant::serve(*model.model);
  set_kv_cache(model, options.kv_cache, context);
  const auto& shape = model.model->shape();
  if (reference != nullptr) require_alike(shape, reference->model->shape(), options.reference);
  if (options.seq_len == 0) options.fit_length(shape.context);
  const auto samples = load_samples(options, folder, shape);
  if (options.models.size() > 1) tokens.check(samples, folder, context);
  ranks.check_same(samples, model, reference);
  quant_config.plan_samples(samples.count());
  say_forecast_of(model, samples, reference != nullptr, context);
  const auto evaluation =
      evaluate_on({options, context, folder, model, reference, samples, quant_config, ranks.group()});
  quant_config.finish();
  return numbers_of(options, context, folder, model, samples, evaluation);
}

void write_page(const EvaluateOptions& options, const std::vector<io::Json>& numbers) {
  CostPage page{options.command, options.reference.empty() ? "" : quant::model_name(options.reference)};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Cost cost = cost_of(options.models[i], options.reference);
    cost.numbers = numbers[i];
    for (const auto& [key, name] : {std::pair{"kv_cache", "key-value cache"}, std::pair{"device", "computed on"}})
      if (numbers[i].contains(key)) cost.more.emplace_back(name, numbers[i][key].get<std::string>());
    page.costs.push_back(std::move(cost));
  }
  write_cost_page(options.html, page);
}

void evaluate(const EvaluateOptions& given, Context& context) {
  at::NoGradGuard no_grad;
  check_several(given);
  for (const auto& folder : given.models) quant::require_model_folder(folder);  // before the reference is read
  EvaluateOptions options = given;
  EvaluateRanks ranks;
  if (shares_work()) {
    const bool one_file = !options.dump_logits.empty();
    if (one_file && !is_first("evaluate --dump-logits", context)) return;
    if (!one_file) ranks = EvaluateRanks(options, context);
  }
  std::optional<models::LoadedModel> reference;
  if (!options.reference.empty()) {
    reference = load(options.reference, options, context);
    quant::serve(*reference->model);
  }
  std::vector<io::Json> numbers;
  SameTokens tokens;
  for (const auto& folder : options.models)
    numbers.push_back(evaluate_one(folder, options, context, reference ? &*reference : nullptr, ranks, tokens));
  if (!ranks.first()) return;
  io::Json more = ranks.summary();
  if (!options.html.empty()) {
    write_page(options, numbers);
    more["html"] = options.html.string();
  }
  print_evaluations(options, context, numbers, more);
}

const Provided g_evaluate(evaluate_model, evaluate);

}  // namespace
}  // namespace fp8::commands
