// SPDX-License-Identifier: Apache-2.0
// Token ids in, whole pieces of UTF-8 out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fp8/tools/text/tokenizer.h"

namespace fp8::commands {

/// Decoding a token alone loses the space before it and breaks characters of several tokens, so each piece is what
/// decoding a window of ids gives beyond decoding the same window without the new ids; a piece that ends in U+FFFD
/// waits for the rest of its bytes.
class TextStream {
 public:
  /// prompt: the ids before the first appended one.
  TextStream(const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt);
  /// The text that became whole with this id; may be empty.
  std::string append(std::int64_t id);
  /// What is left, whole or not.
  std::string finish();

 private:
  std::string take(bool final);

  const text::Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;  ///< the window: `known_` ids whose text was given out, then the others
  std::size_t known_;
};

}  // namespace fp8::commands
