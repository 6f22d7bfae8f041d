// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: a word's characters, then repeatedly the adjacent pair of lowest rank (leftmost first) becomes
// one token.
//
//   a character outside the vocabulary  becomes <0xNN> tokens (byte_fallback), else unk_token (neighbours become one
//                                       with fuse_unk), else nothing
//   a word that is in the vocabulary    is that token (with ignore_merges)
//   continuing_subword_prefix           stands before each character but the first ("##b"), end_of_word_suffix behind
//                                       the last ("b</w>")
//
// Instead of merges a model may have ranks, as files of tiktoken and sentencepiece do: any two neighbours that make a
// token of a rank are joined, the lowest rank first, of one rank leftmost first.
//
// O(n log n) in the word's length. Long words are first cut between two characters that no merge joins (no merge has a
// left side that ends in the one and a right side that starts with the other): merges never cross such a place, so the
// result is the same.
#pragma once
#include "fp8/tools/text/word_model.h"

namespace fp8::text {

class Bpe : public WordModel {
 public:
  /// part: the "model" of a tokenizer.json; its dropout is not applied (it is for training). With "ranks" in the place
  /// of "merges" (of each id; -1: joined with nothing, made of nothing) it may have "user_defined", tokens that are
  /// found in the text as they are. Throws io::Error on ids that are negative, huge or given twice, and on merges that
  /// name unknown tokens.
  explicit Bpe(const JsonPart& part);
  ~Bpe() override;

  std::unique_ptr<WordModel::Scratch> scratch() const override;
  void encode(std::string_view word, std::vector<std::int64_t>& ids, WordModel::Scratch& scratch,
              std::size_t limit) const override;

 private:
  struct Scratch;
  struct Model;
  std::unique_ptr<Model> model_;
};

}  // namespace fp8::text
