// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::io {
namespace {

std::string shown(const Json& value) {
  return value.is_null() ? "nothing" : printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 80);
}

std::optional<Difference> find_difference(const Json& was, const Json& is, const std::string& path) {
  if (was == is) return std::nullopt;
  if (!was.is_object() || !is.is_object()) return Difference{path, shown(was), shown(is)};
  const std::string before = path.empty() ? "" : path + ": ";
  for (const auto& [key, value] : was.items()) {
    if (auto found = find_difference(value, is.value(key, Json()), before + printable(key))) return found;
  }
  for (const auto& [key, value] : is.items()) {
    if (auto found = find_difference(was.value(key, Json()), value, before + printable(key))) return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Difference> first_difference(const Json& was, const Json& is) { return find_difference(was, is, ""); }

std::string difference(const Json& was, const Json& is) {
  const auto found = first_difference(was, is);
  return found.has_value() ? "'" + found->path + "' was " + found->was + ", is " + found->is : "";
}

}  // namespace fp8::io
