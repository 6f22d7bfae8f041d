// SPDX-License-Identifier: Apache-2.0
// The "model" of a tokenizer.json: words -> ids. BPE, WordPiece, Unigram and WordLevel are such models.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/tools/text/json_part.h"
#include "fp8/tools/text/vocabulary.h"

namespace fp8::text {

class WordModel {
 public:
  /// Working memory of one text's encoding, with the words met before; not to be shared by threads.
  struct Scratch {
    virtual ~Scratch() = default;

    /// The ids of a word met before, or null.
    const std::vector<std::int64_t>* met(std::string_view word) const;
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

}  // namespace fp8::text
