// SPDX-License-Identifier: Apache-2.0
// The families of encoders: a row for each model_type. What a checkpoint's first architecture is for decides its task:
// masked tokens, a class of the whole text, or hidden states alone.
#pragma once
#include <span>

#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/base/model_family.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

struct EncoderFamily {
  const char* model_type;
  const char* type;  ///< what names of classes begin with
  /// Fills the config, whose `type` is set. Throws io::Error.
  void (*read)(const ConfigReader& reader, DecoderConfig& config);
};

std::span<const EncoderFamily> encoder_families();

/// The row for the registry.
ModelFamily model_family(const EncoderFamily& family);

}  // namespace fp8::models
