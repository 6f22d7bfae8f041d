// SPDX-License-Identifier: Apache-2.0
// The "added_tokens" of a tokenizer.json: tokens found in the text itself before the model sees it ("<s>",
// "<|endoftext|>").
//
// Those with normalized = false are searched in the text as given, the others (in their normalized form) in what the
// normalizer makes of each stretch between. Leftmost match first, of those the longest. lstrip / rstrip: the match
// takes white space to its left / right along; single_word: no match next to a word character.
#pragma once
#include <unordered_set>

#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/steps/vocabulary.h"

namespace fp8::text {

/// A piece of text, or the added token found there.
struct Segment {
  std::size_t begin = 0, end = 0;  ///< bytes
  std::int64_t id = -1;            ///< -1: text
};

class AddedTokens {
 public:
  static constexpr std::size_t kMaxBytes = PrefixTrie::kLongest;  ///< of one token
  static constexpr std::size_t kMaxAllBytes = 4096 * 1024;        ///< of all tokens

  AddedTokens();
  /// part: the array. A token that model.vocab has keeps the vocabulary's id, as for Hugging Face. normalizer: may be
  /// empty.
  AddedTokens(const JsonPart& part, const Vocabulary& vocabulary, const Normalizer& normalizer);

  /// Cuts `text`, as given (normalized = false) or normalized (true), in order and without empty pieces of text. \pre
  /// well-formed UTF-8.
  std::vector<Segment> cut(std::string_view text, bool normalized) const;

  /// The text an id decodes to (the normalized form where one was searched), or null.
  const std::string* text_of(std::int64_t id) const;
  /// The id of a token's content, or -1.
  std::int64_t id_of(const std::string& content) const;
  /// True if a special token is spelled so: decoding leaves it out.
  bool is_special(const std::string& token) const { return special_.count(token) > 0; }
  std::int64_t max_id() const { return max_id_; }

 private:
  struct Token {
    std::string text;
    std::int64_t id = -1;
    bool lstrip = false, rstrip = false, single_word = false;
  };
  bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) const;

  std::vector<Token> tokens_;
  PrefixTrie tries_[2];  // [normalized]: of indices of tokens_
  std::unordered_map<std::int64_t, std::size_t> by_id_;
  std::unordered_map<std::string, std::int64_t> ids_;
  std::unordered_set<std::string> special_;
  std::int64_t max_id_ = -1;
  Pattern word_character_;
};

}  // namespace fp8::text
