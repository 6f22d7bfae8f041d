// SPDX-License-Identifier: Apache-2.0
// What `fp8 config explain` makes of a QUANT_CONFIG, without and with a model.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fp8/configs/configs.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/cli/late.h"

namespace fp8::commands {

struct Explanation {
  io::Json json;
  std::string text;  ///< ends with a newline
};

/// Every key with value, origin and effect; the environment; `problems` as given.
Explanation explain(const configs::QuantConfig& config, const configs::Environment& environment,
                    const std::vector<std::string>& problems);

/// A model's modules as a config sees them: (full name, class name).
using Modules = std::vector<std::pair<std::string, std::string>>;

struct ModelModules {
  Modules weights;  ///< modules that hold one
  std::vector<quant::NodeInfo>
      nodes;  ///< modules without one; of a checkpoint those of attention, in every way to write it
  bool checkpoint = false;
};

/// Of a checkpoint folder (classes by name and shape, as fp8 quantize reads them; nodes and experts as evaluate and
/// generate run them) or a TorchScript file. Throws io::Error.
ModelModules modules_of(const std::filesystem::path& model);

/// Of a TorchScript file: LibTorch reads it. Throws io::Error.
extern Late<ModelModules(const std::filesystem::path& file)> modules_of_script;

/// Who is selected and with which method, who is not and why, and which entries of the config mean no module.
Explanation explain_modules(const configs::QuantConfig& config, const ModelModules& model);

}  // namespace fp8::commands
