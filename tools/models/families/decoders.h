// SPDX-License-Identifier: Apache-2.0
// The families of decoders: a row for each model_type, with what reads its config.json. Of readers there is one per
// line of descent; a family that combines known parts is a row and a reader of a few lines.
#pragma once
#include <span>

#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/base/model_family.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

struct DecoderFamily {
  const char* model_type;
  const char* type;  ///< what names of classes begin with
  /// Fills the config, whose `type` is set. Throws io::Error.
  void (*read)(const ConfigReader& reader, DecoderConfig& config);
  bool trainable = true;  ///< hpu::mixture_of_experts has no derivative
  const char* head_type = "ForCausalLM";
};

std::span<const DecoderFamily> decoder_families();

/// The row for the registry.
ModelFamily model_family(const DecoderFamily& family);

}  // namespace fp8::models
