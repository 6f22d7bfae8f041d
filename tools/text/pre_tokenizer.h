// SPDX-License-Identifier: Apache-2.0
// The "pre_tokenizer" of a tokenizer.json: text -> words, which the model then treats one by one. Known:
// ByteLevel, Metaspace, Split, Digits, BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit,
// FixedLength, Sequence, null (the whole text is one word).
#pragma once
#include <functional>
#include <string_view>

#include "fp8/tools/text/json_part.h"

namespace fp8::text {

/// Takes one word; first: it starts where the whole text, normalized, starts. Returns false to have no more.
using WordSink = std::function<bool(std::string_view word, bool first)>;

/// Hands the words of `text` (not empty, well-formed UTF-8) to `sink`, in order, none empty. Returns false where the
/// sink did.
using PreTokenizer = std::function<bool(std::string_view text, bool first, const WordSink& sink)>;

/// Throws io::Error naming the part on an unknown type or behaviour.
PreTokenizer make_pre_tokenizer(const JsonPart& part);

/// What Hugging Face's ByteLevel splits at (GPT-2's expression).
extern const char* const kGpt2Pattern;

}  // namespace fp8::text
