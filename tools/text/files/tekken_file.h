// SPDX-License-Identifier: Apache-2.0
// Tokenizers of Mistral's tekken.json, as the JSON of a tokenizer.json (tokenizer_files.h). Ranks as tiktoken's, with
// the expression beside them:
//
//   config          pattern, default_vocab_size V, default_num_special_tokens S, version
//   vocab           [{rank, token_bytes (base64), token_str}], rank i at index i; the first V - S are used
//   special_tokens  [{rank, token_str, is_control}], missing up to version v7; those up to S are <SPECIAL_rank>
//   ids             special ones 0 .. S-1, the others S + rank
//
// A text begins with <s>. As in other tokenizers special tokens are found in texts (mistral-common's take them apart).
#pragma once
#include "fp8/tools/text/files/vocab_files.h"

namespace fp8::text {

/// Throws io::Error naming the file, the key and what is wrong.
io::Json from_tekken(const NamedBytes& file, const TokenSettings& settings);

}  // namespace fp8::text
