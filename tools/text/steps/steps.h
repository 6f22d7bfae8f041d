// SPDX-License-Identifier: Apache-2.0
// The "normalizer" of a tokenizer.json: text -> text, before anything is split. Known: BertNormalizer, Lowercase,
// Strip, StripAccents, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, ByteLevel, Sequence, null; and
// SentencePiece, which tokenizer_files.h writes.
#pragma once
#include <memory>

#include "fp8/tools/text/steps/vocabulary.h"

namespace fp8::text {

/// Well-formed UTF-8 in and out. Empty: nothing to do.
using Normalizer = std::function<std::string(std::string)>;

/// Throws io::Error naming the part on an unknown type and on a chain of more than 64 steps; the function throws
/// io::Error where the chain makes more of a text than steps.h allows.
Normalizer make_normalizer(const JsonPart& part);

// The "pre_tokenizer" of a tokenizer.json: text -> words, which the model then treats one by one. Known:
// ByteLevel, Metaspace, Split, Digits, BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit,
// FixedLength, Sequence, null (the whole text is one word).

/// Takes one word; first: it starts where the whole text, normalized, starts. Returns false to have no more.
using WordSink = std::function<bool(std::string_view word, bool first)>;

/// Hands the words of `text` (not empty, well-formed UTF-8) to `sink`, in order, none empty. Returns false where the
/// sink did.
using PreTokenizer = std::function<bool(std::string_view text, bool first, const WordSink& sink)>;

/// Throws io::Error naming the part on an unknown type or behaviour.
PreTokenizer make_pre_tokenizer(const JsonPart& part);

/// The expression that Hugging Face's ByteLevel splits at (GPT-2's).
extern const char* const kGpt2Pattern;

// The "decoder" of a tokenizer.json: tokens -> the pieces of a text, which are then joined.
// Known: ByteLevel, WordPiece, BPEDecoder, CTC, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence; null joins the
// tokens by spaces.

using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

/// Throws io::Error naming the part on an unknown type.
Decoder make_decoder(const JsonPart& part);

// How far a tokenizer.json may take a text. Its steps replace, prepend and spell out bytes; a chain of them multiplies
// what each does, so limits hold for the whole chain: the bytes that any step of it makes, and the number of steps.

/// The most bytes that steps may make of a text of `size` bytes: 16 times its size, and a little more for what they put
/// before it. A text comes in pieces, cut at its added tokens, so that what is allowed for each adds up.
inline std::size_t most_bytes_of(std::size_t size) {
  return size > (~std::size_t{0} >> 5) ? ~std::size_t{0} : 16 * size + 256;
}

/// Throws io::Error where `size` is over the limit. step: who makes it, "replacing by 'x'".
inline void check_bytes(std::size_t size, std::size_t limit, const std::string& step) {
  if (size > limit) io::fail<io::Error>("{} makes too long a text: over {} bytes", step, limit);
}

/// Throws io::Error naming `part` where it is a chain of more than 64 steps, those of Sequences inside of Sequences
/// counted. list: the key of a Sequence's steps.
inline void check_steps(const JsonPart& part, const char* list) {
  constexpr std::size_t kMost = 64;
  const auto count = [list](const auto& self, const JsonPart& step) -> std::size_t {
    if (step.type() != "Sequence") return 1;
    std::size_t steps = 0;
    for (const JsonPart& inner : step.at(list).elements()) steps += self(self, inner);
    return steps;
  };
  const std::size_t steps = count(count, part);
  if (steps > kMost) part.fail("has " + std::to_string(steps) + " steps, allowed " + std::to_string(kMost));
}

// The patterns of a tokenizer.json, {"String": "..."} or {"Regex": "..."}, searched in UTF-8 text.
//
// Hugging Face runs them with Oniguruma's Ruby syntax, here PCRE2 (UTF + UCP) runs them. Where the two differ the
// expression is rewritten (`\s` is White_Space, `\w` has the marks, `^ $` meet every line, [a[bc]] is [abc]) or refused
// by name: `\h`, `\S` or `\W` or a negated set or `&&` inside [...], `{n,m}+`, inline options other than i. So what is
// accepted means the same, but for characters that are later than PCRE2's tables (its 10.42: Unicode 14).

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
