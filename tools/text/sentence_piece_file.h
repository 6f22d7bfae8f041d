// SPDX-License-Identifier: Apache-2.0
// Tokenizers of sentencepiece models (tokenizer.model, spiece.model, spm.model, sentencepiece.bpe.model), as the JSON
// of a tokenizer.json (tokenizer_files.h). Texts between special tokens get the ids that sentencepiece gives.
#pragma once
#include "fp8/tools/text/vocab_files.h"

namespace fp8::text {

/// Throws io::Error naming the file and what is wrong (sentence_piece_model.h).
io::Json from_sentence_piece(const NamedBytes& file, const TokenSettings& settings);

}  // namespace fp8::text
