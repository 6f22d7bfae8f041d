// SPDX-License-Identifier: Apache-2.0
// The patterns of a tokenizer.json, {"String": "..."} or {"Regex": "..."}, searched in UTF-8 text.
//
// Hugging Face runs them with Oniguruma's Ruby syntax, here PCRE2 (UTF + UCP) runs them. Where the two differ the
// expression is rewritten (`\s` is White_Space, `\w` has the marks, `^ $` meet every line, [a[bc]] is [abc]) or refused
// by name: `\h`, `\S` or `\W` or a negated set or `&&` inside [...], `{n,m}+`, inline options other than i. So what is
// accepted means the same, but for characters that are later than PCRE2's tables (its 10.42: Unicode 14).
#pragma once
#include <memory>
#include <string_view>

#include "fp8/tools/text/steps/json_part.h"

namespace fp8::text {

/// A stretch [begin, end) of bytes of a text, matched or between matches.
struct Stretch {
  std::size_t begin = 0, end = 0;
  bool match = false;
};

class Pattern {
 public:
  /// part: an object with the one member String or Regex. Throws io::Error naming it.
  static Pattern from_json(const JsonPart& part);
  /// A regular expression in the syntax above. part: named in errors.
  static Pattern regex(const std::string& expression, const JsonPart& part);
  static Pattern literal(std::string text);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Matches and what lies between them, in order, covering `text` (well-formed UTF-8); a match may be empty.
  /// Thread-safe. Throws io::Error where matching takes more than PCRE2's limits allow (catastrophic backtracking).
  std::vector<Stretch> split(std::string_view text) const;
  /// `text` with each match replaced by `content`. Throws io::Error if that makes more than `limit` bytes.
  std::string replace(std::string_view text, std::string_view content, std::size_t limit) const;
  /// True if `text` has a match.
  bool found_in(std::string_view text) const;

 private:
  struct Regex;
  Pattern();
  bool find(std::string_view text, std::size_t from, Stretch& match) const;
  template <class F>
  void for_each_stretch(std::string_view text, F&& f) const;

  std::string literal_;
  std::unique_ptr<Regex> regex_;
};

}  // namespace fp8::text
