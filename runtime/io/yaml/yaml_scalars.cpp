// SPDX-License-Identifier: Apache-2.0
// The types of YAML 1.1 (yaml.org/type), as PyYAML resolves them:
//
//   null   ~ null Null NULL, nothing          bool  true yes on, false no off, each as written, Capital or UPPER
//   int    12 -12 1_000 0x1F 0o17 017 0b101   float 1.5 1. .5 1.5e+3 .inf -.inf .nan, and of YAML 1.2: 1e-3
//
// but not its numbers to the base of 60 (1:30 is text).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/yaml/yaml.h"

namespace fp8::io {
namespace {

/// One of three spellings of `word`: word, Word, WORD; a dot in front of it counts as no letter.
bool spells(std::string_view text, std::string_view word) {
  if (!std::ranges::equal(text, word, {}, [](char c) { return io::lower(c); })) return false;
  if (text[0] == '.') text.remove_prefix(1);
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto rest = text.substr(1);
  return std::ranges::none_of(rest, upper) || (upper(text[0]) && std::ranges::all_of(rest, upper));
}

std::optional<Json> integer(std::string_view digits, bool negative, int base) {
  std::string clean;
  for (const char c : digits)
    if (c != '_') clean += c;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), value, base);
  if (clean.empty() || error != std::errc() || end != clean.data() + clean.size()) return std::nullopt;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (negative && value <= kMost) return -static_cast<std::int64_t>(value);
  if (!negative) return value <= kMost ? Json(static_cast<std::int64_t>(value)) : Json(value);
  return std::nullopt;
}

std::optional<Json> number(const std::string& text) {
  std::string_view rest = text;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty()) return std::nullopt;
  if (spells(rest, ".inf"))
    return negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (is_digit(rest[0])) {
    for (const auto& [prefix, base] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}})
      if (rest.starts_with(prefix)) return integer(rest.substr(2), negative, base);
    if (std::ranges::all_of(rest, [&](char c) { return is_digit(c) || c == '_'; }))
      return integer(rest, negative, rest.size() > 1 && rest[0] == '0' ? 8 : 10);  // "08" is text
  }
  // Of a float: digits, one dot, one exponent. from_chars knows "inf" and hexadecimal digits, too.
  if (!std::ranges::any_of(rest, is_digit) || (!is_digit(rest[0]) && rest[0] != '.')) return std::nullopt;
  std::string clean;
  for (const char c : rest)
    if (c != '_') clean += c;
  double value = 0;
  const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), value);
  if (error != std::errc() || end != clean.data() + clean.size()) return std::nullopt;
  return negative ? -value : value;
}

}  // namespace

Json scalar_of(const std::string& text) {
  if (text.empty() || text == "~" || spells(text, "null")) return nullptr;
  for (const char* word : {"true", "yes", "on"})
    if (spells(text, word)) return true;
  for (const char* word : {"false", "no", "off"})
    if (spells(text, word)) return false;
  if (spells(text, ".nan") || text == ".NaN") return std::numeric_limits<double>::quiet_NaN();
  if (const auto value = number(text)) return *value;
  return text;
}

}  // namespace fp8::io
