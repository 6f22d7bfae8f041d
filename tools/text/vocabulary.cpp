// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/vocabulary.h"

#include <algorithm>
#include <cstdio>

#include "fp8/runtime/io/base/file.h"

namespace fp8::text {

Vocabulary::Vocabulary(const JsonPart& part) {
  if (!part.json().is_object())
    part.fail("is a JSON " + std::string(part.json().type_name()) + ", expected an object token -> id");
  ids_.reserve(part.json().size());
  tokens_.reserve(part.json().size());
  for (const auto& [token, id] : part.json().items()) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= kMaxId;
    if (!fits) {
      part.fail("gives " + io::in_quotes(token) + " the id " + io::in_quotes(id.dump(-1, ' ', true)) +
                ", expected an integer from 0 to " + std::to_string(kMaxId));
    }
    if (token.size() > kLongest)
      part.fail("has a token of " + std::to_string(token.size()) + " bytes, allowed " + std::to_string(kLongest));
    const auto value = id.get<std::int32_t>();
    if (const std::string* const other = token_of(value)) {
      part.fail("gives " + io::in_quotes(*other) + " and " + io::in_quotes(token) + " the same id " +
                std::to_string(value));
    }
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

}  // namespace fp8::text
