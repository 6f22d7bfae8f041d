// SPDX-License-Identifier: Apache-2.0
// modules_of_script().
#include <torch/csrc/jit/api/module.h>

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/torch_file.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/config/config.h"
#include "fp8/tools/commands/inputs/script_archive.h"

namespace fp8::commands {
namespace {

ModelModules list_script(const std::filesystem::path& file) {
  if (!io::is_torch_file(file))
    throw io::Error(file.string() +
                    ": found no TorchScript module, allowed: a checkpoint folder or a TorchScript file");
  ModelModules model;
  const auto script = read_script_modules(file);
  for (const auto& m : measure::weight_modules(script)) model.weights.emplace_back(m.name, m.type);
  for (const auto& n : measure::op_nodes(script)) model.nodes.push_back({n.name, n.type});
  return model;
}

const Provided g_script(modules_of_script, list_script);

}  // namespace
}  // namespace fp8::commands
