// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/evaluate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "fp8/quant/forms/model_source.h"
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

/// The numbers first, then their intervals, for which a terminal has the least room. What is the same of all models
/// stands beside the list.
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

}  // namespace

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

void print_evaluations(const EvaluateOptions& options, const Context& context, const std::vector<io::Json>& numbers,
                       const io::Json& more) {
  if (numbers.size() == 1) return print_one(options, context, numbers.front(), more);
  print_several(options, context, numbers, more);
}

}  // namespace fp8::commands
