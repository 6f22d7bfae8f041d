// SPDX-License-Identifier: Apache-2.0
// fp8 embed: one vector of each text. What sentence-transformers keeps beside a model (modules.json, 1_Pooling) says
// how hidden states become one, and how long texts may be; options go first.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <numeric>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inputs/model_input.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using models::ConfigReader;

struct SentenceFiles {
  Pooling pooling = Pooling::mean;
  bool normalize = false;
  std::int64_t length = 0;  ///< of the longest text that is seen whole, in tokens
  std::string prompt = {};
};

constexpr std::array kModules = {"Transformer", "Pooling", "Normalize"};
constexpr std::pair<const char*, Pooling> kModes[] = {
    {"mean", Pooling::mean}, {"cls", Pooling::cls}, {"lasttoken", Pooling::last}};
constexpr std::pair<const char*, Pooling> kModeKeys[] = {{"pooling_mode_mean_tokens", Pooling::mean},
                                                         {"pooling_mode_cls_token", Pooling::cls},
                                                         {"pooling_mode_lasttoken", Pooling::last}};

/// Returns the folder of a module's files, relative to the model's.
std::string path_of(const fs::path& file, const io::Json& module) {
  const ConfigReader reader(module, file.string());
  const auto* path = reader.find("path");
  const fs::path below = path != nullptr && path->is_string() ? path->get<std::string>() : "1_Pooling";
  bool climbs = below.is_absolute();
  for (const auto& part : below) climbs |= part == "..";
  if ((path != nullptr && !path->is_string()) || climbs) reader.fail("path", "a folder below the model's");
  return below.string();
}

/// Gives back the folder of the pooling's config.json.
std::string read_modules(const fs::path& file, SentenceFiles& found) {
  std::string folder = "1_Pooling";
  const auto modules = io::read_python_json(file);
  if (!modules.is_array()) io::fail<io::Error>("{}: expected a list of modules", file.string());
  std::size_t next = 0;
  for (const auto& module : modules) {
    const auto* value = module.is_object() && module.contains("type") ? &module["type"] : nullptr;
    const std::string type = value != nullptr && value->is_string() ? value->get<std::string>() : "";
    const std::string name = type.substr(type.rfind('.') + 1);
    while (next < kModules.size() && name != kModules[next]) ++next;
    if (next == kModules.size())
      io::fail<io::Error>(
          "{}: found module \"{}\", allowed: Transformer, Pooling, Normalize, one of each in that order", file.string(),
          io::printable(type));
    if (name == "Pooling") folder = path_of(file, module);
    found.normalize |= name == "Normalize";
    ++next;
  }
  return folder;
}

Pooling pooling_of(const ConfigReader& reader) {
  if (const auto* mode = reader.find("pooling_mode")) {
    const auto& one = mode->is_array() && mode->size() == 1 ? mode->front() : *mode;
    for (const auto& [name, pooling] : kModes)
      if (one == name) return pooling;
    reader.fail("pooling_mode", "mean, cls or lasttoken");
  }
  for (const char* other :
       {"pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"})
    if (reader.boolean(other, false)) reader.fail(other, "false (built are cls, mean and last token)");
  auto found = Pooling::automatic;
  for (const auto& [key, pooling] : kModeKeys) {
    if (!reader.boolean(key, false)) continue;
    if (found != Pooling::automatic) reader.fail(key, "false where another pooling_mode is true");
    found = pooling;
  }
  return found == Pooling::automatic ? Pooling::mean : found;
}

void read_pooling(const fs::path& file, std::int64_t hidden, SentenceFiles& found) {
  const auto json = io::read_python_json(file);
  const ConfigReader reader(json, file.string());
  for (const char* key : {"word_embedding_dimension", "embedding_dimension"})
    if (reader.integer(key, 1, std::numeric_limits<std::int64_t>::max(), hidden) != hidden)
      reader.fail(key, "the model's hidden size " + std::to_string(hidden));
  found.pooling = pooling_of(reader);
  if (!reader.boolean("include_prompt", true) && !found.prompt.empty())
    reader.fail("include_prompt", "true where there is a default prompt");
}

std::string prompt_of(const fs::path& file) {
  const auto json = io::read_python_json(file);
  const ConfigReader reader(json, file.string());
  const auto* name = reader.find("default_prompt_name");
  if (name == nullptr) return "";
  const auto* prompts = reader.find("prompts");
  const bool known =
      name->is_string() && prompts != nullptr && prompts->is_object() && prompts->contains(name->get<std::string>());
  const auto* prompt = known ? &(*prompts)[name->get<std::string>()] : nullptr;
  if (prompt == nullptr || !prompt->is_string()) reader.fail("default_prompt_name", "the name of a text in prompts");
  return prompt->get<std::string>();
}

/// Returns the tokenizer's model_max_length, at most `context`: a tokenizer without a limit has a huge number there.
std::int64_t length_of_tokenizer(const fs::path& file, std::int64_t context) {
  constexpr double kNoLimit = 1e40;
  if (!io::is_there(file)) return context;
  const auto json = io::read_python_json(io::source_file(file.parent_path(), file.filename()));
  const ConfigReader reader(json, file.string());
  const auto most = static_cast<double>(context);
  return static_cast<std::int64_t>(std::min(most, reader.number("model_max_length", 1, kNoLimit, most)));
}

/// hidden, context: of the model. Without files: the mean of texts of up to `context` tokens. Throws io::Error.
SentenceFiles read_sentence_files(const fs::path& folder, std::int64_t hidden, std::int64_t context) {
  SentenceFiles found{.length = length_of_tokenizer(folder / "tokenizer_config.json", context)};
  std::string pooling = "1_Pooling";
  const auto file_named = [&](const fs::path& name) {
    return io::is_there(folder / name) ? io::source_file(folder, name) : fs::path();
  };
  if (const auto file = file_named("modules.json"); !file.empty()) pooling = read_modules(file, found);
  if (const auto file = file_named("config_sentence_transformers.json"); !file.empty()) found.prompt = prompt_of(file);
  if (const auto file = file_named(pooling + "/config.json"); !file.empty()) read_pooling(file, hidden, found);
  if (const auto file = file_named("sentence_bert_config.json"); !file.empty()) {
    const auto json = io::read_python_json(file);
    const ConfigReader reader(json, file.string());
    found.length = reader.integer("max_seq_length", 1, context, found.length);
    if (reader.boolean("do_lower_case", false))
      reader.fail("do_lower_case", "false: what lowers cases is tokenizer.json");
  }
  return found;
}

/// Returns the settings of the files beside the model, overridden by the options.
SentenceFiles way_of(const EmbedOptions& o, const models::ModelShape& shape) {
  const auto context = shape.context;
  auto way = read_sentence_files(o.model, shape.hidden, context);
  if (o.pooling != Pooling::automatic) way.pooling = o.pooling;
  way.normalize |= o.normalize;
  if (o.seq_len > context)
    io::fail<UsageError>("--seq-len: found {}, allowed: up to max_position_embeddings {}", o.seq_len, context);
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
      io::fail<io::Error>("{}: rows of {} tokens, allowed: up to {}", name, chunks.length, length);
    for (std::int64_t i = 0; i < chunks.count; ++i)
      texts.emplace_back(chunks.ids.begin() + i * chunks.length, chunks.ids.begin() + (i + 1) * chunks.length);
    return texts;
  }
  const text::Tokenizer tokenizer(o.model);
  const auto add = [&](const text::Document& document) {
    auto ids = tokenizer.encode(way.prompt + document.text, document.special);
    if (ids.empty()) io::fail<io::Error>("{}: text {} has no tokens", name, texts.size() + 1);
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
  if (texts.empty()) io::fail<io::Error>("{}: found no text", name);
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
                      const SentenceFiles& way, EnvironmentConfig& quant_config) {
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return texts[a].size() < texts[b].size(); });
  const auto& shape = loaded.model->shape();
  auto all = at::empty({static_cast<std::int64_t>(texts.size()), shape.hidden}, at::kFloat);
  Progress progress(context, "embed", static_cast<std::int64_t>(texts.size()));
  progress.announce(peak_resident_bytes);
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
        io::fail<io::Error>("{}: found token id {}, allowed: 0 to {} (vocab_size)", text::data_name(o.data), id,
                            shape.vocab - 1);
    quant_config.begin_samples(static_cast<std::int64_t>(first), static_cast<std::int64_t>(end - first));
    const auto batch = at::tensor(ids, at::kLong).view({-1, static_cast<std::int64_t>(length)});
    const auto vectors = pooled(loaded.model->hidden(batch.to(resolve_device(context))), way);
    if (!vectors.isfinite().all().item<bool>())
      io::fail<io::Error>("{}: NaN or infinite hidden states", o.model.string());
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
  quant_config.plan_samples(static_cast<std::int64_t>(texts.size()));
  const auto vectors = embeddings(o, context, loaded, texts, way, quant_config);
  quant_config.finish();
  const double seconds = watch.seconds();
  io::SafetensorsWriter writer(o.out, {{"embeddings", io::DType::F32, vectors.sizes().vec()}});
  writer.write("embeddings", vectors.const_data_ptr());
  writer.commit();
  const char* pooling = way.pooling == Pooling::cls ? "cls" : way.pooling == Pooling::last ? "last" : "mean";
  Report report("embed", o.model);
  report.add("texts", "texts", vectors.size(0), As::grouped);
  report.add("width", "width", vectors.size(1), As::grouped);
  report.add("pooling", "pooling", pooling, std::string(pooling) + (way.normalize ? ", normalized" : ""));
  report.json["normalized"] = way.normalize;
  report.add("seconds", "seconds", seconds, As::seconds);
  report.add("out", "out", o.out.string());
  report.print(context);
}

const Provided g_embed(embed_texts, embed);

}  // namespace
}  // namespace fp8::commands
