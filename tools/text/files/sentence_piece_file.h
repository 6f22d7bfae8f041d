// SPDX-License-Identifier: Apache-2.0
// Tokenizers of sentencepiece models (tokenizer.model, spiece.model, spm.model, sentencepiece.bpe.model), as the JSON
// of a tokenizer.json (tokenizer_files.h). Texts between special tokens get the ids that sentencepiece gives; of Llama
// and its like "legacy" and "add_prefix_space" of tokenizer_config.json say where a space is put before them, as for
// transformers. Where "legacy" is missing it is true.
#pragma once
#include "fp8/tools/text/files/vocab_files.h"

namespace fp8::text {

/// Throws io::Error naming the file and what is wrong (sentence_piece_model.h).
io::Json from_sentence_piece(const NamedBytes& file, const TokenSettings& settings);

}  // namespace fp8::text
