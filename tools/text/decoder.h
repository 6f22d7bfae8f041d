// SPDX-License-Identifier: Apache-2.0
// The "decoder" of a tokenizer.json: tokens -> the pieces of a text, which are then joined.
// Known: ByteLevel, WordPiece, BPEDecoder, CTC, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence; null joins the
// tokens by spaces.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "fp8/tools/text/json_part.h"

namespace fp8::text {

using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

/// Throws io::Error naming the part on an unknown type.
Decoder make_decoder(const JsonPart& part);

}  // namespace fp8::text
