// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: a word's characters, then repeatedly the adjacent pair of lowest rank (leftmost first) becomes
// one token.
//
//   a character outside the vocabulary  becomes <0xNN> tokens (byte_fallback), else unk_token (neighbours become one
//                                       with fuse_unk), else nothing
//   a word that is in the vocabulary    is that token (with ignore_merges)
//
// O(n log n) in the word's length. Long words are first cut between two characters that no merge joins (no merge has a
// left side that ends in the one and a right side that starts with the other): merges never cross such a place, so the
// result is the same.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/tools/text/json_part.h"

namespace fp8::text {

class Bpe {
 public:
  /// Largest id that is accepted (a vocabulary of 16 777 216 tokens).
  static constexpr std::int64_t kMaxId = (1 << 24) - 1;

  /// part: the "model" of a tokenizer.json. Throws io::Error on another model, options that are not supported (dropout,
  /// continuing_subword_prefix, end_of_word_suffix), ids that are negative, huge or given twice, merges that name
  /// unknown tokens.
  explicit Bpe(const JsonPart& part);
  ~Bpe();
  Bpe(Bpe&&) noexcept;

  /// Working memory of one text's encoding, with the words met before; not to be shared by threads.
  class Scratch {
   public:
    Scratch();
    ~Scratch();

   private:
    friend class Bpe;
    struct Data;
    std::unique_ptr<Data> data_;
  };

  /// Appends the ids of one word (well-formed UTF-8, less than 2^31 bytes), until `ids` has at least `limit`.
  void encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch& scratch, std::size_t limit) const;

  /// The id of a token, or -1.
  std::int64_t id_of(std::string_view token) const;
  /// The token of an id, or null.
  const std::string* token_of(std::int64_t id) const;
  std::int64_t max_id() const;

 private:
  struct Model;
  std::unique_ptr<Model> model_;
};

}  // namespace fp8::text
