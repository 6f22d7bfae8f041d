// SPDX-License-Identifier: Apache-2.0
// The "model" of a tokenizer.json: words -> ids. BPE, WordPiece, Unigram and WordLevel are such models.
#pragma once
#include <memory>

#include "fp8/tools/text/steps/vocabulary.h"

namespace fp8::text {

class WordModel {
 public:
  /// Working memory of one text's encoding, with the words of it so far; not to be shared by threads.
  struct Scratch {
    virtual ~Scratch() = default;

    /// Appends the ids of a word that remember() was given; false for another.
    bool recall(std::string_view word, std::vector<std::int64_t>& ids) const;
    void remember(std::string_view word, std::vector<std::int64_t> ids);

   private:
    StringMap<std::vector<std::int64_t>> words_;
  };

  virtual ~WordModel() = default;
  virtual std::unique_ptr<Scratch> scratch() const { return std::make_unique<Scratch>(); }

  /// Appends the ids of one word (well-formed UTF-8, less than 2^31 bytes), until `ids` has at least `limit`. scratch:
  /// of this model. Throws io::Error where a word needs an unknown-token that the model has not.
  virtual void encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch& scratch,
                      std::size_t limit) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Vocabulary vocabulary_;
};

/// part: the "model" of a tokenizer.json, a BPE where it names no type. Throws io::Error naming what is missing, wrong
/// or not known.
std::unique_ptr<WordModel> make_word_model(const JsonPart& part);

// WordPiece (BERT): from the left always the longest token, behind the first one with a prefix: "un" "##aff" "##able".
// A word that can't be written so, or of more than max_input_chars_per_word characters, is the unknown-token.
// WordLevel: a word is a token or unknown.

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

// Unigram (SentencePiece; Kudo, "Subword Regularization", 2018): of all ways to write a word as tokens the one of the
// largest sum of scores (log probabilities), found by Viterbi.
//
//   score(character without a token)  the least score of all tokens - 10
//   such characters                   neighbours become one piece, which is its bytes <0xNN> (byte_fallback) or unknown

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
