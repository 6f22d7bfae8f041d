// SPDX-License-Identifier: Apache-2.0
// fp8 evaluate: perplexity = exp(mean NLL over tokens 2..L of every chunk), and with a reference model the mean KL
// divergence over all positions and the share of positions with the same most likely token. Of encoders there is no
// perplexity; of those that classify the KL is one of each chunk, of those without a head the cosine of chunks' means.
// Of models that answer a source text all is of the answers, whose first tokens are predicted too.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/evaluate/score.h"
#include "fp8/tools/commands/options/model_options.h"
#include "fp8/tools/commands/work/process.h"

namespace fp8::commands {
namespace {

struct Totals {
  models::Task task = models::Task::causal;
  double nll = 0, kl = 0, cosine = 0, seconds = 0, forward_seconds = 0;
  std::int64_t agree = 0, chunks = 0, tokens = 0, predicted = 0;
  /// Returns the number of rows that kl and agree are sums over.
  std::int64_t rows() const { return task == models::Task::classify ? chunks : tokens; }
  double perplexity() const { return std::exp(nll / static_cast<double>(predicted)); }
};

/// Logits are of the next token, so that texts have a probability.
bool predicts(models::Task task) { return task == models::Task::causal || task == models::Task::answer; }

/// Receives the f32 logits of consecutive chunks.
class LogitsFile {
 public:
  LogitsFile(const std::filesystem::path& path, std::vector<std::int64_t> shape)
      : writer_(path, {{"logits", io::DType::F32, std::move(shape)}}) {}

  void append(const at::Tensor& logits) {
    const auto wide = logits.to(at::kFloat).contiguous();
    writer_.write("logits", wide.const_data_ptr(), offset_, wide.nbytes());
    offset_ += wide.nbytes();
  }
  void commit() { writer_.commit(); }

 private:
  io::SafetensorsWriter writer_;
  std::uint64_t offset_ = 0;
};

/// Chunks per forward: as asked, but at most 1 GiB of f32 logits.
std::int64_t chunks_per_forward(std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  constexpr std::int64_t kMaxLogits = std::int64_t{1} << 28;
  return std::clamp<std::int64_t>(kMaxLogits / (length * vocabulary), 1, batch);
}

/// The shape of all logits: answers differ in length and stand one after the other.
std::vector<std::int64_t> logits_shape(const models::ModelShape& shape, const Samples& samples) {
  if (shape.task == models::Task::answer) return {samples.rows(), shape.outputs()};
  return {samples.count(), shape.task == models::Task::classify ? 1 : samples.longest(), shape.outputs()};
}

/// The scores of each chunk, from any process: chunks are summed in their order, so the sums do not depend on the
/// number of processes.
class Scores {
 public:
  explicit Scores(std::int64_t chunks) : table_(at::zeros({chunks, 4}, at::kDouble)) {}

  /// Of chunks from `first` on; ids: SampleBatch::tokens. Hidden states without a reference add nothing but their not
  /// being finite.
  void add(models::Task task, std::int64_t first, const at::Tensor& logits, const at::Tensor& ids,
           const at::Tensor& expected) {
    auto rows = table_.accessor<double, 2>();
    const bool predicted = predicts(task), embeds = task == models::Task::embed;
    if (!predicted && !logits.isfinite().all().item<bool>()) rows[first][kNll] = std::nan("");
    if (embeds && expected.defined())
      for (std::int64_t i = first; const double cosine : cosines(logits, expected)) rows[i++][kCosine] = cosine;
    if (embeds) return;
    for (std::int64_t i = first; const auto& score : score_chunks(logits, predicted ? ids : at::Tensor(), expected)) {
      rows[i][kNll] = score.nll;
      rows[i][kKl] = score.kl;
      rows[i++][kAgree] = static_cast<double>(score.agree);
    }
  }
  bool are_finite(std::int64_t first, std::int64_t count) const {
    return table_.narrow(0, first, count).isfinite().all().item<bool>();
  }
  /// Every process gets those of all: each row is one's, and the others' bits of it are 0.
  void exchange(runtime::distributed::ProcessGroup& group) {
    group.all_reduce(table_.view(at::kLong), runtime::distributed::ReduceOp::sum);
  }
  void sum(Totals& totals) const {
    const auto rows = table_.accessor<double, 2>();
    for (std::int64_t i = 0; i < rows.size(0); ++i) {
      totals.nll += rows[i][kNll];
      totals.kl += rows[i][kKl];
      totals.cosine += rows[i][kCosine];
      totals.agree += static_cast<std::int64_t>(rows[i][kAgree]);
    }
  }

 private:
  enum Column { kNll, kKl, kCosine, kAgree };
  at::Tensor table_;
};

/// The models, samples and processes of an evaluation.
struct Scoring {
  const EvaluateOptions& options;
  const Context& context;
  models::LoadedModel& model;
  models::LoadedModel* reference;  ///< may be null
  const Samples& samples;
  EnvironmentConfig& quant_config;
  runtime::distributed::ProcessGroup* group;  ///< null: this process alone
};

/// Runs the forwards of this process.
void score_range(const Scoring& s, const Forwards& forwards, SampleRange range, Scores& own, Scores& other,
                 Totals& totals) {
  const auto device = resolve_device(s.context);
  const auto& shape = s.model.model->shape();
  std::optional<LogitsFile> dump;
  if (!s.options.dump_logits.empty()) dump.emplace(s.options.dump_logits, logits_shape(shape, s.samples));
  Progress progress(s.context, "evaluate", std::max<std::int64_t>(range.count, 1));
  const auto profiler = profiler_of(s.options.profile, s.context);
  const runtime::PhaseScope phase("evaluate");
  const auto starts = forwards.starts(range);
  const runtime::ProfiledStage stage(profiler.get(), "evaluate", static_cast<std::int64_t>(starts.size()) - 1);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    check_interrupted();
    const std::int64_t first = starts[i], count = starts[i + 1] - first;
    const auto part = s.samples.batch(first, count);
    s.quant_config.begin_samples(first, count);
    const Stopwatch forward;
    const auto logits = logits_of(*s.model.model, part, device).to(at::kCPU);
    totals.forward_seconds += forward.seconds();
    const auto expected =
        s.reference != nullptr ? logits_of(*s.reference->model, part, device).to(at::kCPU) : at::Tensor();
    if (dump) dump->append(logits);
    own.add(totals.task, first, logits, part.tokens, expected);
    if (s.reference != nullptr) other.add(totals.task, first, expected, part.tokens, {});
    if (!own.are_finite(first, count))
      throw io::Error(fmt::format("{}: NaN or infinite logits in chunks {} to {}", s.options.model.string(), first,
                                  first + count - 1));
    progress.update(first + count - range.first);
    stage.step();
  }
  if (dump) dump->commit();
}

/// Perplexity, KL and agreement of the model, and perplexity of the reference, over all chunks.
std::pair<Totals, Totals> score_models(const Scoring& s) {
  const auto& samples = s.samples;
  const auto& shape = s.model.model->shape();
  Totals own, other;
  own.task = other.task = shape.task;
  own.chunks = other.chunks = samples.count();
  own.tokens = other.tokens = samples.rows();
  own.predicted = other.predicted = samples.predicted();
  const auto step = chunks_per_forward(s.options.batch, samples.longest(), shape.outputs());
  const Forwards forwards(samples.count(), [&](std::int64_t first) { return samples.together(first, step); });
  Scores scores(samples.count()), scores_of_other(samples.count());
  const Stopwatch watch;
  const SampleRange range =
      s.group != nullptr ? forwards.share(s.group->rank(), s.group->size()) : forwards.share(0, 1);
  score_range(s, forwards, range, scores, scores_of_other, own);
  if (s.group != nullptr) {
    scores.exchange(*s.group);
    if (s.reference != nullptr) scores_of_other.exchange(*s.group);
    auto slowest = static_cast<float>(own.forward_seconds);
    s.group->all_reduce_max(&slowest, 1);
    own.forward_seconds = slowest;
  }
  own.seconds = watch.seconds();
  scores.sum(own);
  scores_of_other.sum(other);
  return {own, other};
}

/// From the reference.
void add_distances(const Totals& own, Report& report) {
  if (own.task == models::Task::embed) {
    const double cosine = own.cosine / static_cast<double>(own.chunks);
    return report.add("cosine", "cosine to the reference", cosine, fmt::format("{:.6f}", cosine));
  }
  const auto rows = static_cast<double>(own.rows()), agree = static_cast<double>(own.agree);
  report.add("kl", "KL to the reference", own.kl / rows, fmt::format("{:.4e}", own.kl / rows));
  report.add("top1_agreement", "top-1 agreement", agree / rows, fmt::format("{:.2f} %", 100.0 * agree / rows));
}

void print(const EvaluateOptions& options, const Context& context, const models::LoadedModel& model,
           const Samples& samples, const Totals& own, const Totals& other, const io::Json& of_ranks) {
  const auto bytes = models::weights_bytes(model);
  const double speed = static_cast<double>(own.tokens) / std::max(own.forward_seconds, 1e-9);
  const bool predicted = predicts(own.task), answers = own.task == models::Task::answer;
  const auto kv_cache = kv_cache_of(model);
  Report report("evaluate", options.model);
  auto& json = report.json;
  report.order({"perplexity", "tokens", "chunks", "seq_len", "weights_bytes", "dtype", "device", "seconds",
                "forward_seconds", "tokens_per_second"});
  json.update({{"chunks", own.chunks},
               {"seq_len", answers ? options.seq_len : samples.longest()},
               {"dtype", models::name_of_dtype(model.dtype)},
               {"device", context.device},
               {"forward_seconds", own.forward_seconds}});
  json.update(of_ranks);
  if (answers) report.order({"source_tokens"});
  if (predicted) report.order({"kv_cache"});
  if (predicted && !kv_cache.scales.empty()) json["kv_cache_scales"] = kv_cache.scales;
  const auto add_perplexity = [&](const char* key, const char* label, double perplexity) {
    if (predicted) report.add(key, label, perplexity, fmt::format("{:.6f}", perplexity));
  };
  add_perplexity("perplexity", "perplexity", own.perplexity());
  if (!options.reference.empty()) {
    add_perplexity("reference_perplexity", "reference perplexity", other.perplexity());
    add_distances(own, report);
  }
  report.add("tokens", answers ? "tokens of answers" : "tokens", own.tokens, As::grouped);
  if (answers) report.add("source_tokens", "tokens of sources", samples.sources(), As::grouped);
  report.add("weights_bytes", "weights", bytes, As::bytes);
  if (predicted) report.add("kv_cache", "key-value cache", kv_cache.holds, kv_cache.text());
  report.add("seconds", "seconds", own.seconds, As::seconds);
  report.add("tokens_per_second", "tokens per second", speed, grouped(std::llround(speed)));
  report.print(context);
}

void evaluate(const EvaluateOptions& options, Context& context) {
  at::NoGradGuard no_grad;
  EvaluateRanks ranks;
  if (shares_work()) {
    const bool one_file = !options.dump_logits.empty();
    if (one_file && !is_first("evaluate --dump-logits", context)) return;
    if (!one_file) ranks = EvaluateRanks(options, context);
  }
  auto model = load_language_model(options.model, context, options.attention, options.allow_nonfinite);
  EnvironmentConfig quant_config(model, context);
  quant::serve(*model.model);
  set_kv_cache(model, options.kv_cache, context);
  std::optional<models::LoadedModel> reference;
  if (!options.reference.empty()) {
    reference = load_language_model(options.reference, context, options.attention, options.allow_nonfinite);
    quant::serve(*reference->model);
    const auto &own = model.model->shape(), &other = reference->model->shape();
    if (own.vocab != other.vocab)
      throw io::Error(
          fmt::format("{}: vocab_size {}, but the model has {}", options.reference.string(), other.vocab, own.vocab));
    if (own.task != other.task || own.outputs() != other.outputs())
      throw io::Error(fmt::format("{}: its logits are not of what the model's are of", options.reference.string()));
  }
  const auto samples = load_samples(options, options.model, model.model->shape());
  ranks.check_same(samples, model, reference ? &*reference : nullptr);
  quant_config.plan_samples(samples.count());
  const auto [own, other] =
      score_models({options, context, model, reference ? &*reference : nullptr, samples, quant_config, ranks.group()});
  quant_config.finish();
  if (ranks.first()) print(options, context, model, samples, own, other, ranks.summary());
}

const Provided g_evaluate(evaluate_model, evaluate);

}  // namespace
}  // namespace fp8::commands
