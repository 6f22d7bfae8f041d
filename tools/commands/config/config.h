// SPDX-License-Identifier: Apache-2.0
// The report of `fp8 config explain` on a QUANT_CONFIG, without and with a model.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fp8/configs/configs.h"
#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/configs/training/gaudi_config.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/runtime/autocast/lists.h"
#include "fp8/runtime/io/base/enum_names.h"
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

/// The kind whose keys most of the file's are, quant where none is; gaudi_config.json by its name.
ConfigKind kind_of(const io::Json& json, const std::filesystem::path& file);

/// Of every kind but quant. source: the file.
configs::Findings check_kind(ConfigKind kind, const io::Json& json, const std::string& source,
                             const configs::DeepSpeedUse& use);

/// Every key with value and effect, what the whole comes to, and `findings`. Of every kind but quant.
Report explain_kind(ConfigKind kind, const io::Json& json, const std::string& source, const configs::DeepSpeedUse& use,
                    const configs::Findings& findings);

/// Writes the two lists of a gaudi_config.json into a folder, named as its variables say; nothing if it has none.
/// Throws io::Error for one that is there already, without `overwrite`.
void write_op_lists(const io::Json& json, const std::filesystem::path& folder, bool overwrite);

/// fp8 config deepspeed: DeepSpeed's JSON of a strategy that is called so, or whose arguments stand in a file.
/// settings: "stage=3", over those.
io::Json deepspeed_of(const std::filesystem::path& strategy, const std::vector<std::string>& settings);

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
