// SPDX-License-Identifier: Apache-2.0
// Tokenizers of plain vocabularies, as the JSON of a tokenizer.json (tokenizer_files.h):
//
//   vocab.txt                 one token a line, its id the line's number from 0: WordPiece as BERT has it
//   vocab.json + merges.txt   {token: id}, and one merge "LEFT RIGHT" a line: BPE over bytes, as GPT-2, RoBERTa and
//                             BART, CLIP or Qwen have it (which one: tokenizer_class, else model_type)
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp8/tools/text/files/token_settings.h"

namespace fp8::text {

/// The bytes of a file, with its name for messages.
struct NamedBytes {
  std::string name;
  std::string_view bytes;
};

/// Throw io::Error naming the file, the line and what is wrong.
io::Json from_vocab_txt(const NamedBytes& file, const TokenSettings& settings);
io::Json from_vocab_and_merges(const NamedBytes& vocab, const NamedBytes& merges, const TokenSettings& settings);

/// The lines of a vocabulary, their ends (\n or \r\n) left out. Throws io::Error where there are none, more than 2^21,
/// or one is not UTF-8.
std::vector<std::string> vocabulary_lines(const NamedBytes& file);

}  // namespace fp8::text
