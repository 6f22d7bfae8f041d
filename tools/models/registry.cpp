// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/registry.h"

#include <algorithm>
#include <mutex>
#include <ranges>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/models/decoder/description.h"
#include "fp8/tools/models/families/families.h"
#include "fp8/tools/models/families/keys.h"

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

/// What ModelRegistrations added; each row belongs to one that lives.
struct Registered {
  std::mutex mutex;
  std::vector<ModelFamily> rows;
};

Registered& registered() {
  static Registered table;
  return table;
}

bool has_type(const std::vector<ModelFamily>& rows, const std::string& model_type) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.model_type == model_type; });
}

/// What answers to a source text begin with. As in transformers bos_token_id stands in for decoder_start_token_id.
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
  for (const auto& family : families) {
    if (family.model_type == type->get_ref<const std::string&>()) return family;
  }
  constexpr std::size_t kMaxShown = 60;
  std::vector<std::string> names;
  for (const auto& family : families) names.emplace_back(family.model_type);
  const auto& found = type->get_ref<const std::string&>();
  const std::string nearest = io::closest(found, names);
  constexpr std::size_t kMisspelt = 2;
  const bool near = found.size() > 2 * kMisspelt && io::edit_distance(found.substr(0, 64), nearest) <= kMisspelt;
  reader.fail_with("model_type " +
                   io::printable(type->dump(-1, ' ', true, io::Json::error_handler_t::replace), kMaxShown) +
                   " is not supported, " + (near ? "did you mean '" + nearest + "'? " : "") + "allowed: " + allowed +
                   "; " + kWhatStillWorks);
}

}  // namespace

std::vector<ModelFamily> model_families() {
  auto rows = built_in_families();
  const std::lock_guard<std::mutex> lock(registered().mutex);
  rows.insert(rows.end(), registered().rows.begin(), registered().rows.end());
  return rows;
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

ModelRegistration::ModelRegistration(ModelFamily family) : model_type_(family.model_type) {
  if (model_type_.empty() || !family.read_config || !family.make) {
    throw std::invalid_argument("model_type " + io::in_quotes(model_type_) +
                                ": model_type, read_config or make is empty");
  }
  const std::lock_guard<std::mutex> lock(registered().mutex);
  auto& rows = registered().rows;
  if (has_type(built_in_families(), model_type_) || has_type(rows, model_type_))
    throw std::invalid_argument("model_type " + io::in_quotes(model_type_) + " is taken");
  rows.push_back(std::move(family));
}

ModelRegistration::~ModelRegistration() {
  const std::lock_guard<std::mutex> lock(registered().mutex);
  std::erase_if(registered().rows, [&](const auto& row) { return row.model_type == model_type_; });
}

}  // namespace fp8::models
