// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/words/word_model.h"

namespace fp8::text {

bool WordModel::Scratch::recall(std::string_view word, std::vector<std::int64_t>& ids) const {
  const auto found = words_.find(word);
  if (found == words_.end()) return false;
  ids.insert(ids.end(), found->second.begin(), found->second.end());
  return true;
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

namespace {

std::string string_or(const JsonPart& part, const char* key, const char* otherwise) {
  const auto value = part.find(key);
  return value ? value->string() : otherwise;
}

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

WordPiece::WordPiece(const JsonPart& part)
    : WordModel(Vocabulary(part.at("vocab"))), trie_(part.at("vocab"), vocabulary_.entries()) {
  unk_ = vocabulary_.known(part, string_or(part, "unk_token", "[UNK]"));
  continuing_ = trie_.walk(string_or(part, "continuing_subword_prefix", "##"));
  if (const auto most = part.find("max_input_chars_per_word")) most_characters_ = most->integer(0, INT32_MAX);
}

void WordPiece::encode_new(std::string_view word, std::vector<std::int64_t>& pieces) const {
  pieces.assign(1, unk_);
  if (std::count_if(word.begin(), word.end(), starts_character) > most_characters_) return;
  std::vector<std::int64_t> found;
  for (std::size_t begin = 0; begin < word.size();) {
    std::int32_t node = begin == 0 ? PrefixTrie::kRoot : continuing_, longest = PrefixTrie::kNone;
    std::size_t end = begin;
    for (std::size_t i = begin; i < word.size() && node != PrefixTrie::kNone; ++i) {
      node = trie_.child(node, static_cast<unsigned char>(word[i]));
      if (node == PrefixTrie::kNone || trie_.value(node) == PrefixTrie::kNone) continue;
      longest = trie_.value(node);
      end = i + 1;
    }
    if (longest == PrefixTrie::kNone) return;
    found.push_back(longest);
    begin = end;
  }
  pieces = std::move(found);
}

void WordPiece::encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch& scratch, std::size_t) const {
  if (scratch.recall(word, ids)) return;
  std::vector<std::int64_t> pieces;
  encode_new(word, pieces);
  ids.insert(ids.end(), pieces.begin(), pieces.end());
  scratch.remember(word, std::move(pieces));
}

WordLevel::WordLevel(const JsonPart& part)
    : WordModel(Vocabulary(part.at("vocab"))), unk_(vocabulary_.known(part, string_or(part, "unk_token", "<unk>"))) {}

void WordLevel::encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch&, std::size_t) const {
  const std::int32_t id = vocabulary_.find(word);
  ids.push_back(id == Vocabulary::kNone ? unk_ : id);
}

}  // namespace fp8::text
