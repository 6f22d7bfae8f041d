// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/json/difference.h"

namespace fp8::io {
namespace {

std::string shown(const Json& value) {
  return value.is_null() ? "nothing" : printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 80);
}

/// Path and values of the first leaf that differs.
bool find_difference(const Json& was, const Json& is, const std::string& path, std::string& text) {
  if (was == is) return false;
  if (!was.is_object() || !is.is_object()) {
    text = "'" + path + "' was " + shown(was) + ", is " + shown(is);
    return true;
  }
  const std::string before = path.empty() ? "" : path + ": ";
  for (const auto& [key, value] : was.items()) {
    if (find_difference(value, is.value(key, Json()), before + printable(key), text)) return true;
  }
  for (const auto& [key, value] : is.items()) {
    if (find_difference(was.value(key, Json()), value, before + printable(key), text)) return true;
  }
  return false;
}

}  // namespace

std::string difference(const Json& was, const Json& is) {
  std::string text;
  find_difference(was, is, "", text);
  return text;
}

}  // namespace fp8::io
