// SPDX-License-Identifier: Apache-2.0
// Models of text and images: their language part, on text alone. config.json has it in "text_config" or, in older
// files, at its top; DecoderConfig::fit finds what its tensors begin with. What belongs to the image stays where it is.
#pragma once
#include <cstdint>
#include <span>

#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/base/model_family.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

/// Whose tie_word_embeddings counts, the whole model's or its part's; missing, each is what its class in transformers
/// has.
enum class TiedBy : std::uint8_t { whole, part, either, nobody };

struct LanguagePart {
  const char* model_type;
  const char* type;       ///< what names of classes begin with
  const char* text_type;  ///< model_type of the part where it does not say
  TiedBy tied_by;
  bool tied = false;  ///< the whole model's where it does not say
};

std::span<const LanguagePart> language_parts();

/// The row for the registry.
ModelFamily model_family(const LanguagePart& family);

}  // namespace fp8::models
