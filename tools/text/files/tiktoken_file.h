// SPDX-License-Identifier: Apache-2.0
// Tokenizers of tiktoken's files (Llama 3's tokenizer.model, qwen.tiktoken, cl100k_base.tiktoken), as the JSON of a
// tokenizer.json (tokenizer_files.h).
//
//   one token a line: its bytes in base64, a space, its rank, which is also its id
//
// Any two neighbours whose bytes together are a token are joined, those of the lowest rank first. The file has no
// expression to split texts: its name and tokenizer_class tell which one it is.
#pragma once
#include "fp8/tools/text/files/vocab_files.h"

namespace fp8::text {

/// file: its name's last part tells the expression. Throws io::Error naming the file, the line and what is wrong.
io::Json from_tiktoken(const NamedBytes& file, const TokenSettings& settings);

}  // namespace fp8::text
