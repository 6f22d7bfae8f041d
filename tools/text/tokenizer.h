// SPDX-License-Identifier: Apache-2.0
// Tokenizers read from a Hugging Face tokenizer.json: BPE, WordPiece, Unigram or WordLevel with the steps around them;
// where only other files are there, from those (tokenizer_files.h).
// An unknown part of the file is refused by name. "truncation" and "padding" are not applied (transformers switches
// them off, too).
#pragma once
#include <memory>

#include "fp8/runtime/io/json/json.h"

namespace fp8::text {

class Tokenizer {
 public:
  /// Reads the folder's tokenizer. Throws io::Error naming the file and the part that is missing, wrong or not
  /// supported.
  explicit Tokenizer(const std::filesystem::path& folder);
  /// json: of a tokenizer.json; name: of the file, in messages.
  Tokenizer(const io::Json& json, const std::string& name);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  /// Token ids of a UTF-8 text (invalid bytes become U+FFFD); add_special: what the file's post-processor adds (BOS,
  /// EOS). limit: stops once there are so many ids, which are then the first of all ids (a few more than limit may
  /// come). Thread-safe.
  std::vector<std::int64_t> encode(std::string_view text, bool add_special = true, std::size_t limit = SIZE_MAX) const;
  /// The text of ids, special tokens left out, and ids that no token has (models have more, to round numbers).
  std::string decode(const std::vector<std::int64_t>& ids) const;
  /// The largest id plus one, added tokens included.
  std::int64_t vocab_size() const;

  struct Impl;  ///< the parts of the file

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fp8::text
