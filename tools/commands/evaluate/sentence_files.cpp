// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/sentence_files.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/models/base/model_config.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using models::ConfigReader;

constexpr std::array kModules = {"Transformer", "Pooling", "Normalize"};
constexpr std::pair<const char*, Pooling> kModes[] = {
    {"mean", Pooling::mean}, {"cls", Pooling::cls}, {"lasttoken", Pooling::last}};
constexpr std::pair<const char*, Pooling> kModeKeys[] = {{"pooling_mode_mean_tokens", Pooling::mean},
                                                         {"pooling_mode_cls_token", Pooling::cls},
                                                         {"pooling_mode_lasttoken", Pooling::last}};

/// Where a module's files are, below the model's folder.
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
  if (!modules.is_array()) throw io::Error(file.string() + ": expected a list of modules");
  std::size_t next = 0;
  for (const auto& module : modules) {
    const auto* value = module.is_object() && module.contains("type") ? &module["type"] : nullptr;
    const std::string type = value != nullptr && value->is_string() ? value->get<std::string>() : "";
    const std::string name = type.substr(type.rfind('.') + 1);
    while (next < kModules.size() && name != kModules[next]) ++next;
    if (next == kModules.size())
      throw io::Error(file.string() + ": found module \"" + io::printable(type) +
                      "\", allowed: Transformer, Pooling, Normalize, one of each in that order");
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

/// What the tokenizer says: a number far beyond all models where it knows no limit.
std::int64_t length_of_tokenizer(const fs::path& file, std::int64_t context) {
  constexpr double kNoLimit = 1e40;
  if (!io::is_there(file)) return context;
  const auto json = io::read_python_json(io::source_file(file.parent_path(), file.filename()));
  const ConfigReader reader(json, file.string());
  const auto most = static_cast<double>(context);
  return static_cast<std::int64_t>(std::min(most, reader.number("model_max_length", 1, kNoLimit, most)));
}

}  // namespace

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

}  // namespace fp8::commands
