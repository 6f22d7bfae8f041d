// SPDX-License-Identifier: Apache-2.0
// How messages write lists, shapes and words, and what a name may consist of. No torch here.
//
//   joined(words)              "tensor, channel, block"     words: a range of texts or of integers
//   joined_first(words, 2)     "tensor, channel, ..."
//   shape_text({2, 3})         "[2, 3]"
//   is_name("kv_cache", "_")   true
//   is_file_name("run.csv")    true; "../run.csv" is a path
#pragma once
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::io {

/// All of them, with `separator` between two. What else an element is written as: joined(std::views::transform(...)).
template <std::ranges::input_range Range>
std::string joined(Range&& words, std::string_view separator = ", ") {
  std::string text;
  bool first = true;
  for (const auto& word : words) {
    if (!first) text += separator;
    first = false;
    if constexpr (std::integral<std::ranges::range_value_t<Range>>)
      text += std::to_string(word);
    else
      text += word;
  }
  return text;
}

/// At most `most` of them, "..." for those that are left out.
inline std::string joined_first(const std::vector<std::string>& words, std::size_t most = 8) {
  return joined(words | std::views::take(static_cast<std::ptrdiff_t>(most))) + (words.size() > most ? ", ..." : "");
}

/// One word for a shell, in single quotes; `quote` is how the shell writes one among them.
inline std::string shell_word(std::string_view text, std::string_view quote = R"('\'')") {
  std::string word = "'";
  for (const char c : text) c == '\'' ? word += quote : word += c;
  return word + "'";
}

inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  return std::string("[").append(joined(shape)).append("]");
}

// Of ASCII letters alone, whatever the locale: all other bytes stay.

constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

inline std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return lower(c); });
  return text;
}
inline std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return upper(c); });
  return text;
}

/// Not empty, and of a to z, 0 to 9 and `others` alone.
constexpr bool is_name(std::string_view text, std::string_view others) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || others.find(c) != std::string_view::npos;
  });
}

/// What a file or folder may be called by someone who does not say where it lies: nothing that leads elsewhere.
constexpr bool is_file_name(std::string_view text) {
  return !text.empty() && text != "." && text != ".." &&
         text.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace fp8::io
