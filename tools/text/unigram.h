// SPDX-License-Identifier: Apache-2.0
// Unigram (SentencePiece; Kudo, "Subword Regularization", 2018): of all ways to write a word as tokens the one of the
// largest sum of scores (log probabilities), found by Viterbi.
//
//   score(character without a token)  the least score of all tokens - 10
//   such characters                   neighbours become one piece, which is its bytes <0xNN> (byte_fallback) or unknown
#pragma once
#include <array>

#include "fp8/tools/text/prefix_trie.h"
#include "fp8/tools/text/word_model.h"

namespace fp8::text {

class Unigram : public WordModel {
 public:
  /// part: the "model" of a tokenizer.json: vocab ([[token, score], ...], ids in this order), unk_id, byte_fallback.
  /// With "kinds", sentencepiece's type of each token (SentencePieceModel::Kind), scores are added up as that does: in
  /// f32, with the normal tokens' scores alone, and user-defined tokens always win.
  explicit Unigram(const JsonPart& part);
  std::unique_ptr<WordModel::Scratch> scratch() const override;
  void encode(std::string_view word, std::vector<std::int64_t>& ids, WordModel::Scratch& scratch,
              std::size_t limit) const override;

 private:
  struct Scratch;
  class Writer;
  void read_kinds(const JsonPart& part);
  double score_of(std::int32_t id, std::size_t bytes) const;
  void add_ends(std::string_view word, std::size_t position, std::size_t size, Scratch& data) const;

  std::vector<double> scores_;
  std::vector<std::int8_t> kinds_;  // empty: all are normal ones
  PrefixTrie trie_;
  std::array<std::int32_t, 256> byte_ids_{};
  double unk_score_ = 0, max_score_ = 0;
  std::int32_t unk_ = Vocabulary::kNone;
  bool byte_fallback_ = false;
};

}  // namespace fp8::text
