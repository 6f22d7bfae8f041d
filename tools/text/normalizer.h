// SPDX-License-Identifier: Apache-2.0
// The "normalizer" of a tokenizer.json: text -> text, before anything is split. Known: BertNormalizer, Lowercase,
// Strip, StripAccents, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, ByteLevel, Sequence, null; and
// SentencePiece, which sentence_piece_file.h writes.
#pragma once
#include <functional>
#include <string>

#include "fp8/tools/text/json_part.h"

namespace fp8::text {

/// Well-formed UTF-8 in and out. Empty: nothing to do.
using Normalizer = std::function<std::string(std::string)>;

/// Throws io::Error naming the part on an unknown type and on a chain of more than 64 steps; the function throws
/// io::Error where the chain makes more of a text than growth.h allows.
Normalizer make_normalizer(const JsonPart& part);

}  // namespace fp8::text
