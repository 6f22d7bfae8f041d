// SPDX-License-Identifier: Apache-2.0
// Tokenizers read from a Hugging Face tokenizer.json: BPE with metaspace and byte fallback (Llama 2), byte-level BPE with the
// GPT-2 or Llama-3 split patterns, bytes. Anything else in the file is refused by name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::text {

class Tokenizer {
 public:
  /// Reads DIR/tokenizer.json. Throws io::Error naming the file and the part that is missing, wrong or not supported.
  explicit Tokenizer(const std::filesystem::path& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  /// Token ids of a UTF-8 text (invalid bytes become U+FFFD); add_special: what the file's post-processor adds (BOS, EOS).
  std::vector<std::int64_t> encode(std::string_view text, bool add_special = true) const;
  /// The text of ids, special tokens left out. Throws on an id outside the vocabulary.
  std::string decode(const std::vector<std::int64_t>& ids) const;
  std::int64_t vocab_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fp8::text
