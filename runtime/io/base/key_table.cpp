// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/key_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {
namespace {

using Document = nlohmann::ordered_json;

constexpr std::pair<const char*, bool Allowed::*> kAlternatives[] = {{"null", &Allowed::null},
                                                                     {"auto", &Allowed::automatic},
                                                                     {"boolean", &Allowed::also_boolean},
                                                                     {"[]", &Allowed::nothing_in_it}};

/// One row, and the group that it stands in: an empty object for none.
class RowReader {
 public:
  RowReader(const Document& row, const Document& group) : row_(row), group_(group) {}

  KeyRow read() const {
    const auto use = parse_enum<KeyUse>(member("use") != nullptr ? text("use") : "read");
    ensure(use.has_value(), "a table's use: read, ignored or refused");
    return {text("name"), allowed(), *use, text("note"), text("flag"), text("standard")};
  }

 private:
  const Document* member(const char* key) const {
    for (const Document* json : {&row_, &group_})
      if (const auto found = json->find(key); found != json->end()) return &*found;
    return nullptr;
  }

  const char* text(const char* key) const {
    const Document* found = member(key);
    return found != nullptr ? found->get_ref<const std::string&>().c_str() : "";
  }

  Allowed allowed() const {
    const auto kind = parse_enum<KeyKind>(text("kind"));
    ensure(kind.has_value(), "a table's kind: one of KeyKind");
    const bool bounded = *kind == KeyKind::integer || *kind == KeyKind::number;
    Allowed allowed{*kind};
    if (bounded) allowed.low = -allow::kNoLimit, allowed.high = allow::kNoLimit;
    if (const Document* range = member("range"); range != nullptr && !bounded) {
      allowed.words = text("range");
    } else if (range != nullptr) {
      if (!range->at(0).is_null()) allowed.low = range->at(0).get<double>();
      if (!range->at(1).is_null()) allowed.high = range->at(1).get<double>();
    }
    allowed.any_case = member("any_case") != nullptr;
    if (const Document* alternatives = member("or"); alternatives != nullptr)
      for (const auto& [word, flag] : kAlternatives) allowed.*flag = has(*alternatives, word);
    return allowed;
  }

  static bool has(const Document& list, const char* word) {
    return std::find(list.begin(), list.end(), Document(word)) != list.end();
  }

  const Document &row_, &group_;
};

}  // namespace

KeyTables::KeyTables(std::string_view text) {
  const auto json = std::make_shared<const Document>(Document::parse(text));
  const Document alone = Document::object();
  for (const auto& [table, list] : json->items()) {
    std::vector<KeyRow>& rows = tables_[table];
    for (const Document& item : list) {
      if (const auto group = item.find("rows"); group == item.end())
        rows.push_back(RowReader(item, alone).read());
      else
        for (const Document& row : *group) rows.push_back(RowReader(row, item).read());
    }
  }
  json_ = json;
}

}  // namespace fp8::io
