// SPDX-License-Identifier: Apache-2.0
// modules_of_script().
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "fp8/measure/model/module_tree.h"
#include "fp8/measure/model/script_nodes.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/config/config.h"

namespace fp8::commands {
namespace {

ModelModules read_script(const std::filesystem::path& file) {
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

const Provided g_script(modules_of_script, read_script);

}  // namespace
}  // namespace fp8::commands
