// SPDX-License-Identifier: Apache-2.0
// The modules that fp8 config explain --model shows: from a checkpoint's header, or from a TorchScript file.
#include <set>

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/commands/config/config.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// DIR/config.json; an empty object without one.
io::Json config_of(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / io::kConfigFile, ignored)) return io::Json::object();
  return io::read_python_json(io::source_file(folder, io::kConfigFile));
}

/// By the names that modules have in memory: there the experts of a layer are one module each, whatever a file calls
/// or stacks.
ModelModules modules_of_checkpoint(const fs::path& folder) {
  const io::Checkpoint checkpoint(folder);
  const io::Json config = config_of(folder);
  const quant::CheckpointModules found(checkpoint, config);
  const quant::StackedExperts stacked(checkpoint, config, quant::ExpertForm::each, {});
  ModelModules model;
  model.checkpoint = true;
  std::vector<std::string> names;
  std::set<std::string> experts;
  std::vector<quant::NodeInfo> mixtures;
  const auto add = [&](const std::string& name, const std::string& type) {
    names.push_back(name);
    const auto expert = quant::expert_in_memory(name);
    if (!expert.has_value()) return void(model.weights.emplace_back(name, type));
    if (experts.insert(expert->name).second) model.weights.emplace_back(expert->name, quant::kExpertType);
    if (experts.insert(expert->mixture).second) mixtures.push_back({expert->mixture, quant::kMixtureType});
  };
  for (const auto& m : found.all()) {
    if (!stacked.is_stack(m.tensor)) add(m.name, quant::CheckpointModules::type_of(m));
  }
  for (const auto& m : stacked.modules()) add(m.name, m.type);
  model.nodes = quant::attention_nodes(quant::attention_modules(names));
  model.nodes.insert(model.nodes.end(), mixtures.begin(), mixtures.end());
  return model;
}

}  // namespace

decltype(modules_of_script) modules_of_script;

ModelModules modules_of(const fs::path& model) {
  std::error_code ignored;
  if (!fs::exists(model, ignored)) throw io::Error(model.string() + ": no such file or folder");
  return fs::is_directory(model, ignored) ? modules_of_checkpoint(model) : modules_of_script(model);
}

}  // namespace fp8::commands
