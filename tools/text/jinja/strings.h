// SPDX-License-Identifier: Apache-2.0
// Python's strings, counted in code points. All texts are well-formed UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::text::jinja {

class Machine;

std::size_t character_count(std::string_view text);
/// The byte where `what` last stands in `text`, or npos.
std::size_t find_last(Machine& m, std::string_view text, std::string_view what);

/// What str.isspace() takes, and so strip() and split().
bool is_space(std::uint32_t code_point);
/// Without spaces, or without the characters of `which` unless it is null, at its begin and at its end.
std::string_view stripped(std::string_view text, bool begin, bool end);
std::string_view stripped(Machine& m, std::string_view text, bool begin, bool end, const std::string* which);

/// repr() of a string.
std::string quoted(Machine& m, std::string_view text);
/// As json.dumps() writes a string.
std::string json_quoted(Machine& m, std::string_view text, bool ascii);

/// upper(), lower(), capitalize(), title(). Throws for other than ASCII letters, whose cases are a table of their own.
std::string upper_case(Machine& m, std::string_view text);
std::string lower_case(Machine& m, std::string_view text);
std::string capitalized(Machine& m, std::string_view text);
std::string title_case(Machine& m, std::string_view text);

/// str.replace(); count < 0: all.
std::string replaced(Machine& m, std::string_view text, std::string_view old, std::string_view with,
                     std::int64_t count = -1);
/// Views of `text`. str.split() and rsplit() without a separator and with one; most < 0: all.
using Parts = std::vector<std::string_view>;
Parts split_at_spaces(Machine& m, std::string_view text, std::int64_t most, bool from_right);
Parts split_at(Machine& m, std::string_view text, std::string_view separator, std::int64_t most, bool from_right);
/// str.splitlines()
Parts split_lines(Machine& m, std::string_view text, bool keep_ends);

}  // namespace fp8::text::jinja
