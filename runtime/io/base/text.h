// SPDX-License-Identifier: Apache-2.0
// How messages write lists, shapes and words, and what a name may consist of. No torch here.
//
//   joined(words)              "tensor, channel, block"     words: a range of texts or of integers
//   joined_first(words, 2)     "tensor, channel, ..."
//   words("add  sub")          {"add", "sub"}
//   shape_text({2, 3})         "[2, 3]"
//   is_name("kv_cache", "_")   true
//   is_file_name("run.csv")    true; "../run.csv" is a path
#pragma once
#include <algorithm>
#include <ranges>
#include <span>
#include <vector>

#include "fp8/runtime/io/base/file.h"

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

/// The words of a text, between its spaces and line ends.
inline std::vector<std::string> words(std::string_view text) {
  constexpr std::string_view kBetween = " \n";
  std::vector<std::string> found;
  for (std::size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    found.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return found;
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

/// True for the name of a file or folder without a path: nothing that leads elsewhere.
constexpr bool is_file_name(std::string_view text) {
  return !text.empty() && text != "." && text != ".." &&
         text.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. No torch here.
//
//   0xxxxxxx | 110xxxxx 10xxxxxx | 1110xxxx 10xxxxxx 10xxxxxx | 11110xxx 10xxxxxx 10xxxxxx 10xxxxxx

/// Bytes of the character that starts at text[at] (1 to 4), or 0 if there is no valid one. at < text.size().
std::size_t utf8_length(std::string_view text, std::size_t at);

/// The code point of the valid character of `length` bytes that starts at text[at].
std::uint32_t utf8_decode(std::string_view text, std::size_t at, std::size_t length);

/// Appends the character of `code` (<= 0x10FFFF, not a surrogate).
void utf8_append(std::string& out, std::uint32_t code);

bool is_utf8(std::string_view text);

inline bool is_ascii(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

/// Code points, first to last.
struct CodeRange {
  std::uint32_t first, last;
};
/// ranges: ascending.
inline bool is_in(std::span<const CodeRange> ranges, std::uint32_t code) {
  const auto range = std::ranges::lower_bound(ranges, code, {}, &CodeRange::last);
  return range != ranges.end() && code >= range->first;
}

/// Appends `value` in so many hexadecimal digits.
inline void append_hex(std::string& out, std::uint64_t value, int digits) {
  while (digits-- > 0) out += "0123456789abcdef"[value >> 4 * digits & 15];
}

/// True if a terminal draws this code point and does nothing else: false for Unicode's categories Cc, Cf, Zl and Zp,
/// which give it orders, turn the direction of what follows, or take no room.
bool is_drawn(std::uint32_t code);

/// Appends "\u202e" for a code point, as JSON spells it: two of them above U+FFFF.
void append_escaped(std::string& out, std::uint32_t code);

// Spelling help: the allowed word that is nearest to what was found, by edit distance.

/// Least number of insertions, deletions and replacements of one byte, and of exchanges of two neighbours of which no
/// other touches either, that make `a` to `b` ("optimal string alignment"; ASCII case is ignored).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [&](std::size_t i, std::size_t j) { return lower(a[i]) == lower(b[j]); };
  // Of the first i - 2, i - 1 and i bytes of `a`, to each beginning of `b`.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j - 1] + (same(i - 1, j - 1) ? 0 : 1), above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// The nearest of `allowed` (the first of equals); "" if there is none. Only the first 64 bytes of `found` are looked
/// at.
inline std::string closest(std::string_view found, const std::vector<std::string>& allowed) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& word : allowed) {
    const std::size_t distance = edit_distance(found.substr(0, 64), word);
    if (best.empty() || distance < best_distance) best = word, best_distance = distance;
  }
  return best;
}

/// "the nearest is 'word'", of names of which there is one at least.
inline std::string the_nearest(std::string_view found, const std::vector<std::string>& allowed) {
  return "the nearest is " + in_quotes(closest(found, allowed));
}

}  // namespace fp8::io
