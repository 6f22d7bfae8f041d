// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/score.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "fp8/configs/configs.h"
#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/tools/commands/work/snapshots.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kSliceElements = 1 << 20;  // rows are scored in slices, so that f64 copies stay small

/// Rows [begin, end) of one chunk. logits and reference [L, V], ids [L].
void score_rows(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference, std::int64_t begin,
                std::int64_t end, ChunkScore& score) {
  const auto rows = logits.narrow(0, begin, end - begin);
  // The last row may predict a token outside the chunk.
  const auto predicting = ids.defined() ? std::min(end, ids.size(0) - 1) - begin : 0;
  if (predicting > 0) {
    const auto log_p = at::log_softmax(rows.narrow(0, 0, predicting).to(at::kFloat), -1);
    const auto targets = ids.narrow(0, begin + 1, predicting).unsqueeze(1);
    score.nll -= log_p.gather(1, targets).sum(at::kDouble).item<double>();
  }
  if (!reference.defined()) return;
  const auto other = reference.narrow(0, begin, end - begin);
  const auto p = at::log_softmax(other.to(at::kDouble), -1), q = at::log_softmax(rows.to(at::kDouble), -1);
  score.kl += (p.exp() * (p - q)).sum().item<double>();
  score.agree += rows.argmax(-1).eq(other.argmax(-1)).sum().item<std::int64_t>();
}

}  // namespace

std::vector<ChunkScore> score_chunks(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference) {
  std::vector<ChunkScore> scores(static_cast<std::size_t>(logits.size(0)));
  const auto length = logits.size(1);
  const auto step = std::max<std::int64_t>(1, kSliceElements / logits.size(2));
  for (std::int64_t b = 0; b < logits.size(0); ++b)
    for (std::int64_t begin = 0; begin < length; begin += step)
      score_rows(logits[b], ids.defined() ? ids[b] : at::Tensor(), reference.defined() ? reference[b] : at::Tensor(),
                 begin, std::min(length, begin + step), scores[static_cast<std::size_t>(b)]);
  return scores;
}

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

}  // namespace fp8::commands
