// SPDX-License-Identifier: Apache-2.0
// fp8 embed: one vector of each text. What sentence-transformers keeps beside a model (modules.json, 1_Pooling) says
// how hidden states become one, and how long texts may be; options go first.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "fp8/quant/model/serve.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/stopwatch.h"
#include "fp8/tools/commands/cli/table.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/evaluate/embed_options.h"
#include "fp8/tools/commands/evaluate/sentence_files.h"
#include "fp8/tools/commands/inputs/environment_config.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/text/data/documents.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {
namespace {

/// What the files beside the model say, and then the options.
SentenceFiles way_of(const EmbedOptions& o, const models::ModelShape& shape) {
  const auto context = shape.context;
  auto way = read_sentence_files(o.model, shape.hidden, context);
  if (o.pooling != Pooling::automatic) way.pooling = o.pooling;
  way.normalize |= o.normalize;
  if (o.seq_len > context)
    throw UsageError(fmt::format("--seq-len: found {}, allowed: up to max_position_embeddings {}", o.seq_len, context));
  if (o.seq_len > 0) way.length = o.seq_len;
  return way;
}

using Texts = std::vector<std::vector<std::int64_t>>;

constexpr std::uint64_t kWholeText = std::numeric_limits<std::uint64_t>::max() / 2;  // bytes

/// Ids of each document behind the prompt, cut at way.length; of .safetensors, of each row as it is.
Texts texts_of(const EmbedOptions& o, const SentenceFiles& way) {
  const auto length = way.length;
  Texts texts;
  const std::string name = text::data_name(o.data);
  if (text::data_kind(o.data) == text::DataKind::tensors) {
    const auto chunks = text::load_chunks(o.data, nullptr, {});
    if (chunks.length > length)
      throw io::Error(fmt::format("{}: rows of {} tokens, allowed: up to {}", name, chunks.length, length));
    for (std::int64_t i = 0; i < chunks.count; ++i)
      texts.emplace_back(chunks.ids.begin() + i * chunks.length, chunks.ids.begin() + (i + 1) * chunks.length);
    return texts;
  }
  const text::Tokenizer tokenizer(o.model);
  const auto add = [&](const text::Document& document) {
    auto ids = tokenizer.encode(way.prompt + document.text, document.special);
    if (ids.empty()) throw io::Error(fmt::format("{}: text {} has no tokens", name, texts.size() + 1));
    if (static_cast<std::int64_t>(ids.size()) > length) {  // what ends a text ends one that is cut too
      const auto last = ids.back();
      ids.resize(static_cast<std::size_t>(length));
      ids.back() = last;
    }
    texts.push_back(std::move(ids));
  };
  text::Documents documents(o.data, o.model, text::RowUse::text, check_interrupted);
  for (text::Document document; documents.read(kWholeText, document); documents.advance())
    if (documents.of_rows() || !document.text.empty()) add(document);
  if (texts.empty()) throw io::Error(name + ": found no text");
  return texts;
}

at::Tensor pooled(const at::Tensor& hidden, const SentenceFiles& way) {
  const auto h = hidden.to(at::kCPU).to(at::kFloat);
  const auto x = way.pooling == Pooling::cls    ? h.select(1, 0)
                 : way.pooling == Pooling::last ? h.select(1, h.size(1) - 1)
                                                : h.mean(1);
  return way.normalize ? x / x.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12) : x;
}

/// [texts, H], f32. Texts of one length share a forward: no padding is ever seen.
at::Tensor embeddings(const EmbedOptions& o, const Context& context, models::LoadedModel& loaded, const Texts& texts,
                      const SentenceFiles& way) {
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return texts[a].size() < texts[b].size(); });
  const auto& shape = loaded.model->shape();
  auto all = at::empty({static_cast<std::int64_t>(texts.size()), shape.hidden}, at::kFloat);
  Progress progress(context, "embed", static_cast<std::int64_t>(texts.size()));
  for (std::size_t first = 0; first < order.size();) {
    check_interrupted();
    const auto length = texts[order[first]].size();
    std::vector<std::int64_t> ids;
    std::size_t end = first;
    for (; end < order.size() && texts[order[end]].size() == length && end - first < static_cast<std::size_t>(o.batch);
         ++end)
      ids.insert(ids.end(), texts[order[end]].begin(), texts[order[end]].end());
    for (const auto id : ids)
      if (id < 0 || id >= shape.vocab)
        throw io::Error(fmt::format("{}: found token id {}, allowed: 0 to {} (vocab_size)", text::data_name(o.data), id,
                                    shape.vocab - 1));
    const auto batch = at::tensor(ids, at::kLong).view({-1, static_cast<std::int64_t>(length)});
    const auto vectors = pooled(loaded.model->hidden(batch.to(resolve_device(context))), way);
    if (!vectors.isfinite().all().item<bool>()) throw io::Error(o.model.string() + ": NaN or infinite hidden states");
    for (std::size_t i = first; i < end; ++i)
      all[static_cast<std::int64_t>(order[i])].copy_(vectors[static_cast<std::int64_t>(i - first)]);
    first = end;
    progress.update(static_cast<std::int64_t>(end));
  }
  return all;
}

void embed(const EmbedOptions& o, Context& context) {
  const at::NoGradGuard no_grad;
  auto loaded = load_language_model(o.model, context, o.attention);
  EnvironmentConfig quant_config(loaded, context);
  quant::serve(*loaded.model);
  const auto way = way_of(o, loaded.model->shape());
  const auto texts = texts_of(o, way);
  const Stopwatch watch;
  quant_config.begin_samples(0, static_cast<std::int64_t>(texts.size()));
  const auto vectors = embeddings(o, context, loaded, texts, way);
  quant_config.finish();
  const double seconds = watch.seconds();
  io::SafetensorsWriter writer(o.out, {{"embeddings", io::DType::F32, vectors.sizes().vec()}});
  writer.write("embeddings", vectors.const_data_ptr());
  writer.commit();
  const char* pooling = way.pooling == Pooling::cls ? "cls" : way.pooling == Pooling::last ? "last" : "mean";
  Table table({"embed", ">" + o.model.filename().string()});
  table.row({"texts", grouped(vectors.size(0))});
  table.row({"width", grouped(vectors.size(1))});
  table.row({"pooling", std::string(pooling) + (way.normalize ? ", normalized" : "")});
  table.row({"seconds", human_seconds(seconds)});
  table.row({"out", o.out.string()});
  context.result({{"texts", vectors.size(0)},
                  {"width", vectors.size(1)},
                  {"pooling", pooling},
                  {"normalized", way.normalize},
                  {"seconds", seconds},
                  {"out", o.out.string()}},
                 table.text());
}

const Provided g_embed(embed_texts, embed);

}  // namespace
}  // namespace fp8::commands
