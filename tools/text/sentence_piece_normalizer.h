// SPDX-License-Identifier: Apache-2.0
// sentencepiece's own normalization of a text, in one pass:
//
//   at each place   a user-defined token as it is; else the longest rule of precompiled_charsmap; else one character
//   spaces          with remove_extra_whitespaces none at both ends (keep_first_space: one at the start stays) and one
//                   between words; U+2581 in their place with escape_whitespaces; add_dummy_prefix puts one before the
//                   text (treat_whitespace_as_suffix: behind)
//
// Hugging Face's Precompiled goes by graphemes instead, so that the two differ on some combining marks.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/tools/text/json_part.h"
#include "fp8/tools/text/precompiled.h"
#include "fp8/tools/text/prefix_trie.h"

namespace fp8::text {

class SentencePieceNormalizer {
 public:
  /// part: the five booleans above, precompiled_charsmap (base64, or missing) and user_defined (tokens).
  explicit SentencePieceNormalizer(const JsonPart& part);

  /// text: well-formed UTF-8. Throws io::Error if it makes more than `limit` bytes.
  std::string apply(std::string_view text, std::size_t limit) const;

 private:
  Precompiled::Rule next(std::string_view text) const;

  std::optional<Precompiled> rules_;
  PrefixTrie user_defined_;
  std::string space_;
  bool dummy_prefix_, as_suffix_, remove_extra_, keep_first_;
};

}  // namespace fp8::text
