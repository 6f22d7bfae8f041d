// SPDX-License-Identifier: Apache-2.0
// A row of the registry (registry.h).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/base/model_config.h"

namespace fp8::models {

struct ModelFamily {
  std::string model_type;
  /// Reads config.json but for the token ids and the dtype, whose keys all families share. Throws io::Error.
  std::function<std::unique_ptr<ModelConfig>(const ConfigReader&)> read_config;
  /// The fresh model of a config that read_config gave.
  std::function<std::shared_ptr<CausalLM>(const ModelConfig&)> make;
  bool trainable = true;   ///< all its operations have derivatives
  bool of_images = false;  ///< it is the language part of models of text and images
};

}  // namespace fp8::models
