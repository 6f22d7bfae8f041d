// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/registry.h"

#include <system_error>

#include "fp8/tools/models/families/families.h"

namespace fp8::models {
namespace {

const std::vector<ModelFamily>& built_in_families() {
  static const auto rows = [] {
    std::vector<ModelFamily> all;
    for (const auto& family : decoder_families()) all.push_back(model_family(family));
    for (const auto& family : language_parts()) all.push_back(model_family(family));
    for (const auto& family : encoder_families()) all.push_back(model_family(family));
    for (const auto& family : seq2seq_families()) all.push_back(model_family(family));
    return all;
  }();
  return rows;
}

using Families = io::Registry<ModelFamily>;

Families& family_table() {
  static auto& table = *new Families(built_in_families(), &ModelFamily::model_type);
  return table;
}

Families::Entry entry_of(ModelFamily family) {
  const std::string type = family.model_type, where = "model_type " + io::in_quotes(type);
  if (type.empty() || !family.read_config || !family.make)
    io::fail<std::invalid_argument>("{}: model_type, read_config or make is empty", where);
  return {family_table(), type, std::make_shared<const ModelFamily>(std::move(family)), where + " is taken"};
}

/// Reads the tokens that an answer to a source text begins with. As in transformers bos_token_id stands in for
/// decoder_start_token_id.
void read_answer_tokens(const ConfigReader& reader, ModelShape& shape) {
  if (shape.task != Task::answer) return;
  const auto read = [&](const char* key, std::optional<std::int64_t>& id) {
    if (reader.find(key) != nullptr) id = reader.integer(key, 0, shape.vocab - 1);
  };
  read("decoder_start_token_id", shape.start);
  read("forced_bos_token_id", shape.forced_first);
  if (!shape.start && !shape.bos.empty() && shape.bos.front() < shape.vocab) shape.start = shape.bos.front();
}

constexpr const char* kWhatStillWorks =
    "on files of any model: fp8 quantize --dynamic, convert and inspect; on TorchScript: fp8 measure and run; in "
    "Python: the transformer_engine package";

ModelFamily family_of(const ConfigReader& reader) {
  const auto families = model_families();
  const std::string allowed = io::joined(families | std::views::transform(&ModelFamily::model_type));
  const auto* type = reader.find("model_type");
  if (type == nullptr || !type->is_string()) reader.fail("model_type", allowed);
  for (const auto& family : families)
    if (family.model_type == type->get_ref<const std::string&>()) return family;
  constexpr std::size_t kMaxShown = 60;
  std::vector<std::string> names;
  for (const auto& family : families) names.emplace_back(family.model_type);
  const auto& found = type->get_ref<const std::string&>();
  const std::string nearest = io::closest(found, names);
  constexpr std::size_t kMisspelt = 2;
  const bool near = found.size() > 2 * kMisspelt && io::edit_distance(found.substr(0, 64), nearest) <= kMisspelt;
  reader.fail_with(io::message("model_type {} is not supported, {}allowed: {}; {}",
                               io::printable(type->dump(-1, ' ', true, io::Json::error_handler_t::replace), kMaxShown),
                               near ? "did you mean '" + nearest + "'? " : "", allowed, kWhatStillWorks));
}

}  // namespace

std::vector<ModelFamily> model_families() {
  std::vector<ModelFamily> families;
  for (const auto& row : family_table().rows()) families.push_back(*row.row);
  return families;
}

FamilyConfig parse_config(const io::Json& json, const std::string& name) {
  const ConfigReader reader(json, name);
  FamilyConfig config{family_of(reader), nullptr};
  config.values = config.family.read_config(reader);
  const auto* stack = dynamic_cast<const DecoderConfig*>(config.values.get());
  families::refuse_shared_keys(reader, stack == nullptr || stack->causal);
  auto& shape = config.values->shape;
  if (reader.find("bos_token_id") != nullptr) shape.bos = reader.token_ids("bos_token_id");
  if (reader.find("eos_token_id") != nullptr) shape.eos = reader.token_ids("eos_token_id");
  read_answer_tokens(reader, shape);
  if (const auto dtype = reader.dtype()) config.values->dtype = dtype;
  return config;
}

FamilyConfig read_config(const std::filesystem::path& folder, io::Json* json) {
  const auto path = folder / io::kConfigFile;
  auto content = io::read_python_json(io::source_file(folder, io::kConfigFile));
  auto config = parse_config(content, path.string());
  const auto generation = folder / "generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    const auto more = io::read_python_json(io::source_file(folder, generation.filename()));
    const ConfigReader reader(more, generation.string());
    auto ids = reader.token_ids("eos_token_id");
    if (!ids.empty()) config.values->shape.eos = std::move(ids);
    read_answer_tokens(reader, config.values->shape);
  }
  if (json != nullptr) *json = std::move(content);
  return config;
}

ModelRegistration::ModelRegistration(ModelFamily family) : entry_(entry_of(std::move(family))) {}

}  // namespace fp8::models
