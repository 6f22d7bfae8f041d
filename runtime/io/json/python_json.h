// SPDX-License-Identifier: Apache-2.0
// JSON as Python's json module writes it, of the configs of models: with NaN, Infinity and -Infinity. No torch here.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

/// parse_json() that takes those three words for numbers.
Json parse_python_json(std::string_view text, const std::string& name);
/// read_json() that does.
Json read_python_json(const std::filesystem::path& path);
/// A value as Python would write it, in one line of ASCII, to show it.
std::string python_text(const Json& value);

}  // namespace fp8::io
