// SPDX-License-Identifier: Apache-2.0
// Strict JSON: UTF-8, no duplicate keys, bounded depth and size, errors with file, line and column. No torch here.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fp8/runtime/io/base/error.h"

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

/// What write_json() writes; `path` stands in messages.
std::string json_text(const std::filesystem::path& path, const Json& value, int indent = 2);

}  // namespace fp8::io
