// SPDX-License-Identifier: Apache-2.0
// The "post_processor" of a tokenizer.json, as far as one text's ids go: what is put before and after them.
// Known: TemplateProcessing (its "single" with one sequence A), BertProcessing and RobertaProcessing (cls A sep),
// ByteLevel (moves offsets only), Sequence, null.
#pragma once
#include <cstdint>
#include <vector>

#include "fp8/tools/text/json_part.h"

namespace fp8::text {

struct PostProcessor {
  std::vector<std::int64_t> before, after;  ///< ids
};

/// Throws io::Error naming the part on an unknown type, a template without exactly one sequence A, a special token that
/// the part does not define.
PostProcessor make_post_processor(const JsonPart& part);

}  // namespace fp8::text
