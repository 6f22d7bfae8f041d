// SPDX-License-Identifier: Apache-2.0
// WordPiece (BERT): from the left always the longest token, behind the first one with a prefix: "un" "##aff" "##able".
// A word that can't be written so, or of more than max_input_chars_per_word characters, is the unknown-token.
// WordLevel: a word is a token or unknown.
#pragma once
#include "fp8/tools/text/prefix_trie.h"
#include "fp8/tools/text/word_model.h"

namespace fp8::text {

class WordPiece : public WordModel {
 public:
  /// part: the "model" of a tokenizer.json: vocab, unk_token ([UNK]), continuing_subword_prefix (##),
  /// max_input_chars_per_word (100).
  explicit WordPiece(const JsonPart& part);
  void encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch& scratch,
              std::size_t limit) const override;

 private:
  void encode_new(std::string_view word, std::vector<std::int64_t>& pieces) const;

  PrefixTrie trie_;
  std::int32_t unk_ = Vocabulary::kNone, continuing_ = PrefixTrie::kNone;  // node behind the prefix
  std::int64_t most_characters_ = 100;
};

class WordLevel : public WordModel {
 public:
  /// part: vocab, unk_token.
  explicit WordLevel(const JsonPart& part);
  void encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch& scratch,
              std::size_t limit) const override;

 private:
  std::int32_t unk_;
};

}  // namespace fp8::text
