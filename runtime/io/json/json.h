// SPDX-License-Identifier: Apache-2.0
// Strict JSON: UTF-8, no duplicate keys, bounded depth and size, errors with file, line and column. No torch here.
#pragma once
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "fp8/runtime/io/base/text.h"

namespace fp8::io {

using Json = nlohmann::ordered_json;  // key order is kept: config.json is carried through unchanged

/// Parses `text`; `name` stands in messages: "config.json:3:7: duplicate key 'mode'" (line and column count from 1,
/// columns in characters). Throws io::Error. Depth <= 64, at most 2^24 values, numbers within the range of a double.
Json parse_json(std::string_view text, const std::string& name);

/// Reads and parses a file of at most 256 MiB.
Json read_json(const std::filesystem::path& path);

/// Writes atomically (temporary name, fsync, rename), indented by `indent` (-1: one line), with a newline at the end.
/// Floats are written shortest-round-trip; NaN, infinities and strings that are not UTF-8 are an io::Error.
void write_json(const std::filesystem::path& path, const Json& value, int indent = 2);

/// The text that write_json() writes; `path` stands in messages.
std::string json_text(const std::filesystem::path& path, const Json& value, int indent = 2);

// Strict JSON member by member, for headers and indexes of a million tensors. No torch here.

/// Parses as parse_json() does, but hands over the members of one object one by one in the order of the text and never
/// holds them together: those of the object under the top-level key `within`, or (within empty) of the text's own
/// object. The result lacks them. The caller looks for duplicate keys in that object (parse_json() then tells where).
/// An object that is missing, or something else in its place, is no error here. A member has at most 2^20 values.
Json parse_json_members(std::string_view text, const std::string& name, std::string_view within,
                        const std::function<void(std::string&& key, Json&& value)>& member);

// JSON as Python's json module writes it, of the configs of models: with NaN, Infinity and -Infinity. No torch here.

/// parse_json() that takes those three words for numbers.
Json parse_python_json(std::string_view text, const std::string& name);
/// read_json() that does.
Json read_python_json(const std::filesystem::path& path);
/// A value as Python would write it, in one line of ASCII, to show it.
std::string python_text(const Json& value);

// Numbers that may be NaN or infinite, which JSON has no form for. No torch here.

inline Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// The shortest text that reads back as `value`, "2.0" of 2; "nan", "inf", "-inf".
inline std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return Json(value).dump();
}

/// A value that reads back as it was: "nan", "inf" and "-inf" as texts.
inline Json number_or_text(double value) { return std::isfinite(value) ? Json(value) : Json(number_text(value)); }

/// Of what number_or_null() or number_or_text() gave. Throws Json::exception for anything else.
inline double number_or_nan(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value == "inf" || value == "-inf") return value == "inf" ? kInfinity : -kInfinity;
  return value.is_null() || value == "nan" ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace fp8::io
