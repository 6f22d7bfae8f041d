// SPDX-License-Identifier: Apache-2.0
// The families that answer a source text: a row for each model_type.
#pragma once
#include <span>

#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/base/model_family.h"
#include "fp8/tools/models/decoder/encoder_decoder.h"

namespace fp8::models {

struct Seq2SeqFamily {
  const char* model_type;
  const char* type;  ///< what names of classes begin with
  /// Fills the config, whose `type`s are set. Throws io::Error.
  void (*read)(const ConfigReader& reader, EncoderDecoderConfig& config);
};

std::span<const Seq2SeqFamily> seq2seq_families();

/// The row for the registry.
ModelFamily model_family(const Seq2SeqFamily& family);

}  // namespace fp8::models
