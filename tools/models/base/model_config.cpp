// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/base/model_config.h"

namespace fp8::models {
namespace {

constexpr std::size_t kMaxShown = 60;
constexpr std::size_t kMaxTokenIds = 256;

/// A value as JSON on one line, cut where it gets long.
std::string excerpt(const io::Json& value) {
  std::string text = io::python_text(value);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

std::string plain(double value) { return io::Json(value).dump(); }

bool fits(const io::Json& value, std::int64_t low, std::int64_t high) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return false;
  const auto number = value.get<std::int64_t>();
  return number >= low && number <= high;
}

}  // namespace

ConfigReader::ConfigReader(const io::Json& json, std::string name, std::string prefix)
    : json_(json), name_(std::move(name)), prefix_(std::move(prefix)) {
  if (json_.is_object()) return;
  if (prefix_.empty()) fail_with("found " + excerpt(json_) + ", expected a JSON object");
  fail_with("key '" + prefix_.substr(0, prefix_.size() - 1) + "': found " + excerpt(json_) + ", allowed: an object");
}

void ConfigReader::fail_with(const std::string& message) const {
  io::fail<io::Error>("[models] {}: {}", name_, message);
}

void ConfigReader::fail(const std::string& key, const std::string& allowed) const {
  const auto* value = find(key);
  fail_with(io::message("key '{}{}': {}, allowed: {}", prefix_, key,
                        value != nullptr ? "found " + excerpt(*value) : "missing", allowed));
}

const io::Json* ConfigReader::find(const std::string& key) const {
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::is_null(const std::string& key) const {
  const auto it = json_.find(key);
  return it != json_.end() && it->is_null();
}

std::int64_t ConfigReader::integer(const std::string& key, std::int64_t low, std::int64_t high,
                                   std::optional<std::int64_t> fallback) const {
  const auto* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || !fits(*value, low, high))
    fail(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return value->get<std::int64_t>();
}

double ConfigReader::number(const std::string& key, double low, double high, std::optional<double> fallback) const {
  const auto* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  const bool good =
      value != nullptr && value->is_number() && value->get<double>() >= low && value->get<double>() <= high;
  if (!good) fail(key, "a number from " + plain(low) + " to " + plain(high));
  return value->get<double>();
}

bool ConfigReader::boolean(const std::string& key, bool fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::word(const std::string& key, std::initializer_list<const char*> allowed,
                               const char* fallback) const {
  const auto* value = find(key);
  if (value == nullptr && fallback != nullptr) return fallback;
  for (const char* choice : allowed)
    if (value != nullptr && value->is_string() && value->get_ref<const std::string&>() == choice) return choice;
  fail(key, io::joined(allowed));
}

std::vector<std::int64_t> ConfigReader::token_ids(const std::string& key) const {
  const auto* value = find(key);
  if (value == nullptr) return {};
  constexpr auto kMaxId = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int64_t> ids;
  const bool list = value->is_array() && value->size() <= kMaxTokenIds;
  for (const auto& id : list ? *value : io::Json::array({*value})) {
    if (!fits(id, 0, kMaxId)) fail(key, "a token id or a list of token ids");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::optional<std::vector<std::size_t>> ConfigReader::indices(const std::string& key, std::size_t count) const {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string allowed = "a list of integers from 0 to " + std::to_string(count - 1);
  if (!value->is_array() || value->size() > count) fail(key, allowed);
  std::vector<std::size_t> list;
  for (const auto& index : *value) {
    if (!fits(index, 0, static_cast<std::int64_t>(count) - 1)) fail(key, allowed);
    list.push_back(index.get<std::size_t>());
  }
  return list;
}

std::optional<c10::ScalarType> ConfigReader::dtype() const {
  const char* key = find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (find(key) == nullptr) return std::nullopt;
  const auto type = word(key, {"float32", "bfloat16", "float16"});
  return type == "float32" ? c10::kFloat : type == "bfloat16" ? c10::kBFloat16 : c10::kHalf;
}

ConfigReader ConfigReader::object(const std::string& key) const {
  const auto* value = find(key);
  if (value == nullptr) fail(key, "an object");
  return below(key, *value);
}

ConfigReader ConfigReader::below(const std::string& key, const io::Json& object) const {
  return ConfigReader(object, name_, prefix_ + key + ".");
}

}  // namespace fp8::models
