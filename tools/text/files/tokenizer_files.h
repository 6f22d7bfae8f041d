// SPDX-License-Identifier: Apache-2.0
// Which files of a folder make its tokenizer. The first of these that is there:
//
//   tokenizer.json                                             as it is
//   tekken.json                                                Mistral's ranks (tekken_file.h)
//   tokenizer.model, spiece.model, spm.model,                  sentencepiece (sentence_piece_file.h), the first one and
//   sentencepiece.bpe.model, tiktoken.model, *.tiktoken        the last two tiktoken's ranks (tiktoken_file.h)
//   vocab.json with merges.txt, vocab.txt                      plain vocabularies (vocab_files.h)
//
// Special tokens and options then come from tokenizer_config.json and its neighbours (token_settings.h).
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::text {

/// A tokenizer as the JSON of a tokenizer.json.
struct TokenizerFile {
  io::Json json;
  std::string name;  ///< of the file, fit for messages
};

/// Throws io::Error naming the file, the key or line, what was found and what is allowed, or the folder that has none.
TokenizerFile read_tokenizer(const std::filesystem::path& folder);

}  // namespace fp8::text
