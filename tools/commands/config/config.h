// SPDX-License-Identifier: Apache-2.0
// The report of `fp8 config explain` on a QUANT_CONFIG, without and with a model.
#pragma once

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/configs/training/gaudi_config.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/runtime/autocast/lists.h"
#include "fp8/tools/commands/cli/report.h"

namespace fp8::commands {

/// Every key with value, origin and effect; the environment; `problems` as given.
Report explain(const configs::QuantConfig& config, const configs::Environment& environment,
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

/// Reports which modules are selected with which method, which are not and why, and which entries of the config match
/// no module.
Report explain_modules(const configs::QuantConfig& config, const ModelModules& model);

// The files besides QUANT_CONFIG that `fp8 config` knows: recipes, DeepSpeed's JSON, gaudi_config.json and training
// arguments of Optimum Habana.

enum class ConfigKind : std::uint8_t { quant, recipe, deepspeed, gaudi, arguments };
FP8_ENUM_NAMES(ConfigKind, {quant, "quant"}, {recipe, "recipe"}, {deepspeed, "deepspeed"}, {gaudi, "gaudi"},
               {arguments, "arguments"});
using fp8::name_of;

/// The facts that `fp8 doctor` gets from LibTorch.
struct TorchFacts {
  std::string version;
  int threads = 0;
  std::string hpu;                         ///< "available", "not in this build", or "error"
  runtime::autocast::AutocastLists lists;  ///< in force
  std::vector<std::string> problems;       ///< of the files that were named for them, of extensions

  struct Extension {
    std::string file;
    std::vector<std::string> ops, parts;
  };
  std::vector<Extension> extensions;  ///< that --load and FP8_EXTENSIONS name
};

/// Throws io::Error where LibTorch can't be loaded.
extern Late<TorchFacts(const Context& context)> torch_facts;

}  // namespace fp8::commands
