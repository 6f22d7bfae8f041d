// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/scoring.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/tools/commands/work/snapshots.h"

namespace fp8::commands {

std::vector<double> cosines(const at::Tensor& hidden, const at::Tensor& reference) {
  const auto a = hidden.to(at::kDouble).mean(1), b = reference.to(at::kDouble).mean(1);
  const auto norms = (a.square().sum(-1) * b.square().sum(-1)).sqrt();
  const auto cosine = at::where(norms.eq(0), at::ones_like(norms), (a * b).sum(-1) / norms).contiguous();
  const auto* values = cosine.const_data_ptr<double>();
  return {values, values + cosine.numel()};
}

namespace {

namespace distributed = runtime::distributed;
namespace fs = std::filesystem;

/// A measurement's files: those of a folder, or whose paths begin so.
std::vector<fs::path> files_at(const fs::path& prefix) {
  std::vector<fs::path> files;
  std::error_code error;
  const bool folder = fs::is_directory(prefix, error);
  const auto beginning = folder ? "" : prefix.filename().string();
  for (fs::directory_iterator it(folder ? prefix : fs::absolute(prefix).parent_path(), error), end; !error && it != end;
       it.increment(error))
    if (it->path().filename().string().starts_with(beginning)) files.push_back(it->path());
  return files;
}

/// QUANT_CONFIG, and what it takes its scales from; null: not set.
io::Json quant_config_facts() {
  const auto path = configs::quant_config_from_environment();
  if (!path.has_value()) return nullptr;
  io::Json json = io::read_json(*path);
  if (!json.is_object()) return json;
  const auto stats = json.find("dump_stats_path");
  if (stats == json.end() || !stats->is_string()) return json;
  const fs::path prefix = stats->get<std::string>();
  *stats = SourceFiles({}, files_at(prefix)).ends();
  return json;
}

/// Returns the facts that all ranks must share before they read a model; the paths of its files may differ.
io::Json facts_of(const EvaluateOptions& o, const Context& context) {
  const auto files_of = [](const fs::path& model) {
    return model.empty() ? io::Json() : SourceFiles(model, {}).ends();
  };
  io::Json models = io::Json::array();
  for (const auto& model : o.models) models.push_back(files_of(model));
  return {
      {"model", models.size() == 1 ? models[0] : models},
      {"reference", files_of(o.reference)},
      {"data",
       {{"samples", o.samples}, {"seq-len", o.seq_len}, {"skip", o.skip}, {"batch", o.batch}, {"stride", o.stride}}},
      {"device", context.device},
      {"dtype", context.dtype ? io::Json(name_of(*context.dtype)) : io::Json()},
      {"dialect", context.dialect ? io::Json(kernels::name_of(*context.dialect)) : io::Json()},
      {"attention", o.attention == models::AttentionKind::fused ? "fused" : "eager"},
      {"kv-cache", name_of(o.kv_cache.mode)},
      {"kv-cache-scales", o.kv_cache.scales ? io::Json(name_of(*o.kv_cache.scales)) : io::Json()},
      {"measurements",
       o.kv_cache.measurements.empty() ? io::Json() : SourceFiles({}, files_at(o.kv_cache.measurements)).ends()},
      {"QUANT_CONFIG", quant_config_facts()}};
}

}  // namespace

EvaluateRanks::EvaluateRanks(const EvaluateOptions& options, Context& context) {
  auto meeting = distributed::group_options_from_environment();
  meeting.timeout = std::chrono::seconds(options.rank_timeout);
  said_by_ = meeting.said_by;
  if (meeting.rank > 0) context.quiet = true;
  group_ = distributed::make_gloo_group(meeting);
  distributed::check_same(with_program(facts_of(options, context)), *group_, "evaluate");
}

void EvaluateRanks::check_same(const Samples& samples, const models::LoadedModel& model,
                               const models::LoadedModel* reference) const {
  if (group_ == nullptr) return;
  const io::Json facts = {
      {"samples", samples.fingerprint()},
      {"weights", weights_checksum(*model.model)},
      {"reference's weights", reference ? io::Json(weights_checksum(*reference->model)) : io::Json()}};
  distributed::check_same(facts, *group_, "evaluate");
}

io::Json EvaluateRanks::summary() const {
  if (group_ == nullptr) return io::Json::object();
  return {{"ranks", group_->size()}, {"ranks_said_by", said_by_}};
}

double student_t(std::int64_t freedom) {
  constexpr double kNormal = 1.959963984540054;  // the same quantile of the normal distribution
  constexpr double kFew[] = {12.706204736174694, 4.302652729749464, 3.182446305284263};
  if (freedom <= std::ssize(kFew)) return kFew[freedom - 1];
  // Abramowitz and Stegun 26.7.5.
  const double n = static_cast<double>(freedom), z = kNormal, z2 = z * z;
  const double g1 = (z2 + 1) * z / 4, g2 = ((5 * z2 + 16) * z2 + 3) * z / 96,
               g3 = (((3 * z2 + 19) * z2 + 17) * z2 - 15) * z / 384,
               g4 = ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) * z / 92160;
  return z + (g1 + (g2 + (g3 + g4 / n) / n) / n) / n;
}

Estimate estimate(const std::vector<double>& sums, const std::vector<double>& counts) {
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  Estimate e{std::accumulate(sums.begin(), sums.end(), 0.0) / all};
  const std::size_t chunks = sums.size();
  if (chunks < 2) return e;
  double squares = 0;
  for (std::size_t i = 0; i < chunks; ++i) squares += std::pow(sums[i] - e.mean * counts[i], 2);
  const double c = static_cast<double>(chunks);
  e.error = std::sqrt(c / (c - 1) * squares) / all;
  const double reach = student_t(static_cast<std::int64_t>(chunks) - 1) * *e.error;
  e.interval = {e.mean - reach, e.mean + reach};
  return e;
}

namespace {

constexpr std::int64_t kMaxLogits = std::int64_t{1} << 28;  // of a forward; f32: 1 GiB
/// Of those that are there at once: a chunk of 2048 tokens takes no more memory than eight of 256.
constexpr std::int64_t kMaxJudged = std::int64_t{1} << 26;

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

/// The shape of all logits: answers differ in length, and windows are judged in part; they stand one after the other.
std::vector<std::int64_t> logits_shape(const models::ModelShape& shape, const Samples& samples,
                                       const EvaluateOptions& options) {
  if (shape.task == models::Task::answer || options.stride > 0) return {samples.rows(), shape.outputs()};
  return {samples.count(), shape.task == models::Task::classify ? 1 : samples.longest(), shape.outputs()};
}

/// The scores of each chunk, from any process.
class Scores {
 public:
  explicit Scores(std::int64_t chunks) : table_(at::zeros({chunks, kColumns}, at::kDouble)) {}

  /// Of rows of chunks from `first` on. tokens: of those rows, as score_chunks() takes ids. Hidden states without a
  /// reference add nothing but their not being finite.
  void add(const Evaluation& of, std::int64_t first, const at::Tensor& logits, const at::Tensor& tokens,
           const at::Tensor& expected) {
    auto rows = table_.accessor<double, 2>();
    const bool embeds = of.task == models::Task::embed;
    if (!of.predicts() && !logits.isfinite().all().item<bool>()) rows[first][kNll] = std::nan("");
    if (embeds && expected.defined())
      for (std::int64_t i = first; const double cosine : cosines(logits, expected)) rows[i++][kCosine] = cosine;
    if (embeds) return;
    const auto ids = of.predicts() ? tokens : at::Tensor();
    for (std::int64_t i = first; const auto& score : score_chunks(logits, ids, expected)) {
      rows[i][kNll] += score.nll;
      rows[i][kKl] += score.kl;
      rows[i++][kAgree] += static_cast<double>(score.agree);
    }
    if (!of.predicts() || !expected.defined()) return;
    for (std::int64_t i = first; const auto& score : score_chunks(expected, ids, {}))
      rows[i++][kReferenceNll] += score.nll;
  }
  bool are_finite(std::int64_t first, std::int64_t count) const {
    return table_.narrow(0, first, count).isfinite().all().item<bool>();
  }
  /// Every process gets those of all: each row is one's, and the others' bits of it are 0.
  void exchange(runtime::distributed::ProcessGroup& group) {
    group.all_reduce(table_.view(at::kLong), runtime::distributed::ReduceOp::sum);
  }
  void give(Evaluation& to) const {
    for (const auto& [column, list] :
         {std::pair{kNll, &to.nll}, std::pair{kReferenceNll, &to.reference_nll}, std::pair{kKl, &to.kl},
          std::pair{kAgree, &to.agree}, std::pair{kCosine, &to.cosine}}) {
      const auto values = table_.select(1, column).contiguous();
      list->assign(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
    }
  }

 private:
  enum Column : std::int64_t { kNll, kReferenceNll, kKl, kAgree, kCosine, kColumns };
  at::Tensor table_;
};

/// One forward of both models, judged slice by slice.
class JudgedForward {
 public:
  JudgedForward(const Scoring& s, const SampleBatch& part) : s_(s), part_(part) {
    const auto device = resolve_device(s.context);
    const auto ids = part.ids.to(device);
    hidden_ = rows_of(*s.model.model, ids);
    if (s.reference != nullptr) expected_ = rows_of(*s.reference->model, ids);
  }

  /// Adds to the scores and to `evaluation.forward_seconds`.
  void judge(std::int64_t first, Scores& scores, Evaluation& evaluation, std::optional<LogitsFile>& dump) {
    const std::int64_t rows = hidden_.size(1);
    const bool whole = evaluation.task == models::Task::embed || evaluation.task == models::Task::classify;
    const std::int64_t most =
        whole ? rows : std::max<std::int64_t>(kMaxJudged / (hidden_.size(0) * s_.model.model->shape().outputs()), 1);
    for (std::int64_t row = 0; row < rows; row += most) {
      const std::int64_t count = std::min(most, rows - row);
      const Stopwatch head;
      const auto logits = s_.model.model->logits(models::columns_of(hidden_, row, count)).to(at::kCPU);
      seconds_ += head.seconds();
      at::Tensor expected;
      if (s_.reference != nullptr)
        expected = s_.reference->model->logits(models::columns_of(expected_, row, count)).to(at::kCPU);
      if (dump) dump->append(logits);
      const auto tokens =
          whole ? part_.tokens : part_.tokens.narrow(1, row, std::min(count + 1, part_.tokens.size(1) - row));
      scores.add(evaluation, first, logits, tokens, expected);
    }
    evaluation.forward_seconds += seconds_;
  }

 private:
  /// The head's input of what is judged.
  at::Tensor rows_of(models::CausalLM& model, const at::Tensor& ids) {
    const Stopwatch forward;
    const auto h = model.head_input(ids, part_.source);
    if (&model == s_.model.model.get()) seconds_ += forward.seconds();
    return s_.options.stride == 0 ? h : h.narrow(1, part_.seen, part_.tokens.size(1) - 1);
  }

  const Scoring& s_;
  const SampleBatch& part_;
  at::Tensor hidden_, expected_;
  double seconds_ = 0;
};

/// Runs the forwards of this process.
void score_range(const Scoring& s, const Forwards& forwards, SampleRange range, Scores& scores,
                 Evaluation& evaluation) {
  std::optional<LogitsFile> dump;
  if (!s.options.dump_logits.empty())
    dump.emplace(s.options.dump_logits, logits_shape(s.model.model->shape(), s.samples, s.options));
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
    JudgedForward(s, part).judge(first, scores, evaluation, dump);
    if (!scores.are_finite(first, count))
      io::fail<io::Error>("{}: NaN or infinite logits in chunks {} to {}", s.folder.string(), first, first + count - 1);
    progress.update(first + count - range.first);
    stage.step();
  }
  if (dump) dump->commit();
}

}  // namespace

Evaluation evaluate_on(const Scoring& s) {
  const auto& samples = s.samples;
  const auto& shape = s.model.model->shape();
  Evaluation evaluation{shape.task, samples.count(), samples.rows()};
  for (std::int64_t i = 0; i < samples.count(); ++i) {
    evaluation.rows.push_back(shape.task == models::Task::classify ? 1.0 : static_cast<double>(samples.rows(i)));
    evaluation.predicted.push_back(static_cast<double>(samples.predicted(i)));
  }
  const std::int64_t batch = s.options.batch > 0 ? s.options.batch : default_batch(samples.longest()),
                     step = std::clamp<std::int64_t>(kMaxLogits / (samples.longest() * shape.outputs()), 1, batch);
  const Forwards forwards(samples.count(), [&](std::int64_t first) { return samples.together(first, step); });
  Scores scores(samples.count());
  const Stopwatch watch;
  const SampleRange range =
      s.group != nullptr ? forwards.share(s.group->rank(), s.group->size()) : forwards.share(0, 1);
  score_range(s, forwards, range, scores, evaluation);
  if (s.group != nullptr) {
    scores.exchange(*s.group);
    auto slowest = static_cast<float>(evaluation.forward_seconds);
    s.group->all_reduce_max(&slowest, 1);
    evaluation.forward_seconds = slowest;
  }
  evaluation.seconds = watch.seconds();
  scores.give(evaluation);
  return evaluation;
}

}  // namespace fp8::commands
