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

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/evaluate/scoring.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inspect/cost_page.h"

namespace fp8::commands {
namespace {

constexpr char kIntervals[] = "intervals";

/// With the interval of the function's values; f rises.
template <class F>
void add_number(const std::string& key, const Estimate& e, io::Json& numbers, F&& f) {
  numbers[key] = f(e.mean);
  numbers[kIntervals][key] = e.interval ? io::Json{f((*e.interval)[0]), f((*e.interval)[1])} : io::Json();
}

/// From the reference.
void add_distances(const Evaluation& e, io::Json& numbers) {
  const auto at_least_0 = [](double x) { return std::max(x, 0.0); };
  if (e.task == models::Task::embed) {
    const std::vector<double> one(e.cosine.size(), 1);
    return add_number("cosine", estimate(e.cosine, one), numbers, [](double x) { return x; });
  }
  const auto kl = estimate(e.kl, e.rows);
  add_number("kl", kl, numbers, at_least_0);
  numbers["kl"] = kl.mean;  // rounding may leave a model's distance from itself below 0
  add_number("top1_agreement", estimate(e.agree, e.rows), numbers, [](double x) { return std::clamp(x, 0.0, 1.0); });
}

void add_perplexities(const Evaluation& e, bool compared, io::Json& numbers) {
  const auto exp = [](double x) { return std::exp(x); };
  add_number("perplexity", estimate(e.nll, e.predicted), numbers, exp);
  if (!compared) return;
  add_number("reference_perplexity", estimate(e.reference_nll, e.predicted), numbers, exp);
  std::vector<double> more = e.nll;
  for (std::size_t i = 0; i < more.size(); ++i) more[i] -= e.reference_nll[i];
  add_number("perplexity_change", estimate(more, e.predicted), numbers, [](double x) { return std::expm1(x); });
}

void print_one(const EvaluateOptions& options, const Context& context, const io::Json& numbers, const io::Json& more) {
  const bool answers = numbers.contains("source_tokens"), intervals = numbers["chunks"] > 1;
  Report report("evaluate", options.models.front(),
                intervals ? std::vector<std::string>{"95 % interval"} : std::vector<std::string>());
  for (const auto& q : kQualityNumbers)
    if (numbers.contains(q.key)) report.add(q.key, q.label, numbers[q.key], q.text(numbers), q.interval(numbers));
  report.add("tokens", answers ? "tokens of answers" : "tokens", numbers["tokens"], As::grouped);
  if (answers) report.add("source_tokens", "tokens of sources", numbers["source_tokens"], As::grouped);
  report.add("chunks",
             answers                      ? "answers"
             : numbers.contains("stride") ? "windows"
                                          : "chunks",
             numbers["chunks"], chunks_text(numbers));
  report.add("data", "data", numbers["data"], data_text(numbers));
  report.add("dtype", "dtype", numbers["dtype"], As::plain);
  report.add("weights_bytes", "weights", numbers["weights_bytes"], As::bytes);
  if (numbers.contains("kv_cache")) {
    const auto scales = numbers.find("kv_cache_scales");
    report.add("kv_cache", "key-value cache", numbers["kv_cache"],
               numbers["kv_cache"].get<std::string>() +
                   (scales == numbers.end() ? "" : ", " + scales->get<std::string>() + " scales"));
  }
  report.add("seconds", "seconds", numbers["seconds"], As::seconds);
  report.add("tokens_per_second", "tokens per second", numbers["tokens_per_second"],
             grouped(std::llround(numbers["tokens_per_second"].get<double>())));
  report.json = numbers;
  report.json.update(more);
  report.print(context);
}

/// {"models": [...], ...}: the numbers first, then their intervals, for which a terminal has the least room. What is
/// the same of all models stands beside the list.
void print_several(const EvaluateOptions& options, const Context& context, const std::vector<io::Json>& numbers,
                   const io::Json& more) {
  const auto& first = numbers.front();
  std::vector<const QualityNumber*> columns;
  for (const auto& q : kQualityNumbers)
    if (first.contains(q.key) && std::string_view(q.key) != "reference_perplexity") columns.push_back(&q);
  std::vector<std::string> headers = {"model"};
  for (const auto* q : columns) headers.push_back(">" + std::string(q->column));
  headers.emplace_back(">weights");
  for (const auto* q : columns) headers.push_back(std::string(q->column) + "\n95 % interval");
  Report report(std::move(headers));
  report.order({"models"});
  report.json["models"] = io::Json::array();
  if (first.contains("reference_perplexity")) {
    const auto& q = quality_number("reference_perplexity");
    std::vector<std::string> cells(2 + 2 * columns.size());
    cells[0] = quant::model_name(options.reference) + " (reference)";
    cells[1] = q.text(first);
    cells[2 + columns.size()] = q.interval(first);
    report.row(std::move(cells));
  }
  for (const auto& n : numbers) {
    std::vector<std::string> cells = {n["model"].get<std::string>()};
    for (const auto* q : columns) cells.push_back(q->text(n));
    cells.push_back(human_bytes(n["weights_bytes"].get<std::int64_t>()));
    for (const auto* q : columns) cells.push_back(q->interval(n));
    report.add_entry("models", n, std::move(cells));
  }
  for (const char* key : {"data", "chunks", "seq_len", "stride", "tokens", "device", "reference"})
    if (first.contains(key)) report.json[key] = first[key];
  report.json.update(more);
  report.below = fmt::format("\n{}: {}, {}\n", data_text(first), chunks_text(first), first["dtype"].get<std::string>());
  report.print(context);
}

/// What --json says of one model; keys without a value where the model or the options have none.
io::Json numbers_of(const EvaluateOptions& options, const Context& context, const std::filesystem::path& folder,
                    const models::LoadedModel& model, const Samples& samples, const Evaluation& e) {
  const bool answers = e.task == models::Task::answer, compared = !options.reference.empty();
  io::Json numbers;
  for (const char* key : {"model", "reference", "perplexity", "tokens", "chunks", "seq_len", "data"}) numbers[key] = {};
  numbers[kIntervals] = io::Json::object();
  if (e.predicts()) add_perplexities(e, compared, numbers);
  if (compared) add_distances(e, numbers);
  numbers.update({{"model", quant::model_name(folder)},
                  {"tokens", e.tokens},
                  {"chunks", e.chunks},
                  {"seq_len", answers ? options.seq_len : samples.longest()},
                  {"data", text::short_names(options.data)},
                  {"weights_bytes", models::weights_bytes(model)},
                  {"dtype", models::name_of_dtype(model.dtype)},
                  {"device", context.device},
                  {"seconds", e.seconds},
                  {"forward_seconds", e.forward_seconds},
                  {"tokens_per_second", static_cast<double>(e.tokens) / std::max(e.forward_seconds, 1e-9)}});
  if (options.stride > 0) numbers["stride"] = options.stride;
  if (answers) numbers["source_tokens"] = samples.sources();
  if (e.predicts()) {
    const auto kv_cache = kv_cache_of(model);
    numbers["kv_cache"] = kv_cache.holds;
    if (!kv_cache.scales.empty()) numbers["kv_cache_scales"] = kv_cache.scales;
  }
  if (compared)
    numbers["reference"] = quant::model_name(options.reference);
  else
    numbers.erase("reference");
  if (!e.predicts()) numbers.erase("perplexity");
  numbers[kIntervals]["level"] = 0.95;
  return numbers;
}

models::LoadedModel load(const std::filesystem::path& folder, const EvaluateOptions& options, const Context& context) {
  return load_language_model(folder, context, options.attention, options.allow_nonfinite);
}

/// Throws io::Error where logits are not of the same things.
void require_alike(const models::ModelShape& own, const models::ModelShape& other,
                   const std::filesystem::path& reference) {
  if (own.vocab != other.vocab)
    io::fail<io::Error>("{}: vocab_size {}, but the model has {}", reference.string(), other.vocab, own.vocab);
  if (own.task != other.task || own.outputs() != other.outputs())
    io::fail<io::Error>("{}: its logits are not of what the model's are of", reference.string());
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
  if (numbers.size() == 1) return print_one(options, context, numbers.front(), more);
  print_several(options, context, numbers, more);
}

const Provided g_evaluate(evaluate_model, evaluate);

}  // namespace

}  // namespace fp8::commands
