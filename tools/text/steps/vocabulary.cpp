// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/steps/vocabulary.h"

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
  if (too_large || json_->get<std::int64_t>() < low || json_->get<std::int64_t>() > high)
    fail("is " + json_->dump() + ", expected " + allowed);
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

Vocabulary::Vocabulary(const JsonPart& part) {
  if (!part.json().is_object())
    part.fail("is a JSON " + std::string(part.json().type_name()) + ", expected an object token -> id");
  ids_.reserve(part.json().size());
  tokens_.reserve(part.json().size());
  for (const auto& [token, id] : part.json().items()) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= kMaxId;
    if (!fits)
      part.fail(io::message("gives {} the id {}, expected an integer from 0 to {}", io::in_quotes(token),
                            io::in_quotes(id.dump(-1, ' ', true)), kMaxId));
    if (token.size() > kLongest)
      part.fail("has a token of " + std::to_string(token.size()) + " bytes, allowed " + std::to_string(kLongest));
    const auto value = id.get<std::int32_t>();
    if (const std::string* const other = token_of(value))
      part.fail(io::message("gives {} and {} the same id {}", io::in_quotes(*other), io::in_quotes(token), value));
    add(token, value);
  }
}

void Vocabulary::add(const std::string& token, std::int32_t id) {
  const auto entry = ids_.insert_or_assign(token, id).first;
  tokens_[id] = &entry->first;
  max_id_ = std::max(max_id_, id);
}

std::int32_t Vocabulary::known(const JsonPart& part, std::string_view token) const {
  const std::int32_t id = find(token);
  if (id == kNone) part.fail("names the token " + io::in_quotes(token) + ", which model.vocab lacks");
  return id;
}

const std::string* Vocabulary::token_of(std::int64_t id) const {
  if (id < 0 || id > max_id_) return nullptr;
  const auto found = tokens_.find(static_cast<std::int32_t>(id));
  return found == tokens_.end() ? nullptr : found->second;
}

std::array<std::int32_t, 256> Vocabulary::byte_ids() const {
  std::array<std::int32_t, 256> ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    ids[byte] = find(name);
  }
  return ids;
}

PrefixTrie::PrefixTrie(const JsonPart& part, Entries entries) {
  std::size_t bytes = 0;
  for (const auto& [word, value] : entries) {
    if (word.size() > kLongest)
      part.fail("has a token of " + std::to_string(word.size()) + " bytes, allowed " + std::to_string(kLongest));
    bytes += word.size();
  }
  if (bytes > kMost) part.fail("has " + std::to_string(bytes) + " bytes of tokens, allowed " + std::to_string(kMost));
  *this = PrefixTrie(std::move(entries));
}

PrefixTrie::PrefixTrie(Entries entries) {
  std::sort(entries.begin(), entries.end());
  // Of each node of a level: the entries that pass through it, whose first `depth` bytes are its own.
  struct Range {
    std::size_t begin, end;
  };
  std::vector<Range> ranges{{0, entries.size()}}, next;
  nodes_.emplace_back();
  for (std::size_t node = 0, depth = 0; node < nodes_.size(); ++depth, ranges.swap(next), next.clear()) {
    for (const auto& [begin, end] : ranges) {
      std::size_t i = begin;
      for (; i < end && entries[i].first.size() == depth; ++i)
        if (depth > 0) nodes_[node].value = entries[i].second;
      nodes_[node].first = static_cast<std::int32_t>(nodes_.size());
      while (i < end) {
        const char byte = entries[i].first[depth];
        std::size_t last = i;
        while (last < end && entries[last].first[depth] == byte) ++last;
        next.push_back({i, last});
        nodes_.emplace_back();
        nodes_.back().byte = static_cast<unsigned char>(byte);
        ++nodes_[node].children;
        i = last;
      }
      ++node;
    }
  }
  std::fill(std::begin(of_byte_), std::end(of_byte_), kNone);
  for (std::int32_t i = nodes_[kRoot].first; i < nodes_[kRoot].first + nodes_[kRoot].children; ++i)
    of_byte_[nodes_[i].byte] = i;
}

PrefixTrie::Found PrefixTrie::longest(std::string_view text) const {
  Found found;
  std::int32_t node = kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == kNone) break;
    if (value(node) != kNone) found = {i + 1, value(node)};
  }
  return found;
}

std::int32_t PrefixTrie::walk(std::string_view text) const {
  std::int32_t node = kRoot;
  for (std::size_t i = 0; i < text.size() && node != kNone; ++i)
    node = child(node, static_cast<unsigned char>(text[i]));
  return node;
}

}  // namespace fp8::text
