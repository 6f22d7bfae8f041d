// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/steps/json_part.h"

#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {

void JsonPart::fail(const std::string& message) const {
  io::fail<io::Error>("{}: {}{}", file_, path_.empty() ? "" : path_ + " ", message);
}

void JsonPart::unsupported(const std::string& found, const std::string& allowed) const {
  fail("is " + io::in_quotes(found) + ", supported: " + allowed);
}

void JsonPart::unsupported_type(const std::string& allowed) const { type_part().unsupported(type(), allowed); }

void JsonPart::wrong_type(const char* expected) const {
  fail((path_.empty() ? "holds " : "is ") + std::string("a JSON ") + json_->type_name() + ", expected " + expected);
}

JsonPart JsonPart::at(const std::string& key) const {
  if (!json_->is_object()) wrong_type("an object");
  const auto found = json_->find(key);
  if (found == json_->end()) member(key, *json_).fail("is missing");
  return member(key, *found);
}

std::optional<JsonPart> JsonPart::find(const std::string& key) const {
  if (!json_->is_object()) wrong_type("an object");
  const auto found = json_->find(key);
  if (found == json_->end() || found->is_null()) return std::nullopt;
  return member(key, *found);
}

std::vector<JsonPart> JsonPart::elements() const {
  if (!json_->is_array()) wrong_type("an array");
  std::vector<JsonPart> parts;
  parts.reserve(json_->size());
  for (std::size_t i = 0; i < json_->size(); ++i)
    parts.emplace_back((*json_)[i], file_, path_ + "[" + std::to_string(i) + "]");
  return parts;
}

const std::string& JsonPart::string() const {
  if (!json_->is_string()) wrong_type("a string");
  return json_->get_ref<const std::string&>();
}

bool JsonPart::boolean() const {
  if (!json_->is_boolean()) wrong_type("true or false");
  return json_->get<bool>();
}

std::int64_t JsonPart::integer(std::int64_t low, std::int64_t high) const {
  const std::string allowed = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  if (!json_->is_number_integer()) wrong_type(allowed.c_str());
  const bool too_large =
      json_->is_number_unsigned() && json_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (too_large || json_->get<std::int64_t>() < low || json_->get<std::int64_t>() > high) {
    fail("is " + json_->dump() + ", expected " + allowed);
  }
  return json_->get<std::int64_t>();
}

bool JsonPart::boolean_or(const std::string& key, bool otherwise) const {
  const auto part = find(key);
  return part ? part->boolean() : otherwise;
}

const std::string& JsonPart::character() const {
  const std::string& value = string();
  if (value.empty() || decode_at(value, 0).size != value.size())
    fail("is " + io::in_quotes(value) + ", expected one character");
  return value;
}

}  // namespace fp8::text
