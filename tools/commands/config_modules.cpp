// SPDX-License-Identifier: Apache-2.0
// The modules that fp8 config explain --model shows: from a checkpoint's header, or from a TorchScript file.
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <set>

#include "fp8/measure/module_tree.h"
#include "fp8/measure/script_nodes.h"
#include "fp8/quant/expert_names.h"
#include "fp8/quant/formats/checkpoint_folder.h"
#include "fp8/quant/plan_kv.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/io/safetensors.h"
#include "fp8/tools/commands/config.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end;
}

/// A tied lm_head has no tensor of its own, and is a module all the same.
bool has_tied_head(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "config.json", ignored)) return false;
  const io::Json config = io::read_json(folder / "config.json");
  return config.is_object() && config.value("tie_word_embeddings", io::Json(false)) == io::Json(true);
}

ModelModules modules_of_checkpoint(const fs::path& folder) {
  const io::Checkpoint checkpoint(folder);
  ModelModules model;
  model.checkpoint = true;
  Modules& modules = model.weights;
  std::vector<std::string> names;
  std::set<std::string> experts;
  std::vector<quant::NodeInfo> mixtures;
  for (const auto& tensor : checkpoint.names()) {
    const auto& info = checkpoint.info(tensor);
    if (!ends_with(tensor, kWeight) || info.shape.size() < 2) continue;
    const std::string name = tensor.substr(0, tensor.size() - kWeight.size());
    names.push_back(name);
    const auto expert = quant::expert_in_memory(name);
    if (!expert.has_value()) {
      modules.emplace_back(name, quant::type_of_weight(name, info.shape));
      continue;
    }
    if (experts.insert(expert->name).second) modules.emplace_back(expert->name, quant::kExpertType);
    if (experts.insert(expert->mixture).second) mixtures.push_back({expert->mixture, quant::kMixtureType});
  }
  if (has_tied_head(folder) && !checkpoint.contains("lm_head.weight")) modules.emplace_back("lm_head", "Linear");
  model.nodes = quant::attention_nodes(quant::attention_modules(names));
  model.nodes.insert(model.nodes.end(), mixtures.begin(), mixtures.end());
  return model;
}

ModelModules modules_of_script(const fs::path& file) {
  ModelModules model;
  try {
    const auto script = torch::jit::load(file.string(), at::Device(at::kCPU));
    for (const auto& m : measure::weight_modules(script)) model.weights.emplace_back(m.name, m.type);
    for (const auto& n : measure::op_nodes(script)) model.nodes.push_back({n.name, n.type});
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw io::Error(file.string() + ": found no TorchScript module (" + io::printable(text.substr(0, text.find('\n'))) +
                    "), allowed: a checkpoint folder or a TorchScript file");
  }
  return model;
}

}  // namespace

ModelModules modules_of(const fs::path& model) {
  std::error_code ignored;
  if (!fs::exists(model, ignored)) throw io::Error(model.string() + ": no such file or folder");
  return fs::is_directory(model, ignored) ? modules_of_checkpoint(model) : modules_of_script(model);
}

}  // namespace fp8::commands
