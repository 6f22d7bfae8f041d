// SPDX-License-Identifier: Apache-2.0
// See word_model.h.
#include "fp8/tools/text/word_model.h"

#include "fp8/tools/text/bpe.h"
#include "fp8/tools/text/unigram.h"
#include "fp8/tools/text/word_piece.h"

namespace fp8::text {

const std::vector<std::int64_t>* WordModel::Scratch::met(std::string_view word) const {
  const auto found = words_.find(word);
  return found == words_.end() ? nullptr : &found->second;
}

void WordModel::Scratch::remember(std::string_view word, std::vector<std::int64_t> ids) {
  constexpr std::size_t kLongest = 64;  // bytes; longer words seldom come again
  constexpr std::size_t kMost = 1 << 16;
  if (word.size() <= kLongest && words_.size() < kMost) words_.emplace(word, std::move(ids));
}

std::unique_ptr<WordModel> make_word_model(const JsonPart& part) {
  const std::string type = part.find("type") ? part.type() : "BPE";
  if (type == "BPE") return std::make_unique<Bpe>(part);
  if (type == "WordPiece") return std::make_unique<WordPiece>(part);
  if (type == "Unigram") return std::make_unique<Unigram>(part);
  if (type == "WordLevel") return std::make_unique<WordLevel>(part);
  part.unsupported_type("BPE, WordPiece, Unigram, WordLevel");
}

}  // namespace fp8::text
