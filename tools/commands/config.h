// SPDX-License-Identifier: Apache-2.0
// What `fp8 config explain` makes of a QUANT_CONFIG, without and with a model.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fp8/configs/configs.h"
#include "fp8/runtime/io/json.h"

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

/// Of a checkpoint folder (modules that hold weights; classes by name and shape, as fp8 quantize reads them) or a
/// TorchScript file. Throws io::Error.
Modules modules_of(const std::filesystem::path& model);

/// Who is selected and with which method, who is not and why, and which entries of the config mean no module.
Explanation explain_modules(const configs::QuantConfig& config, const Modules& modules);

}  // namespace fp8::commands
