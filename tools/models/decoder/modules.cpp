// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/modules.h"

namespace fp8::models {

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string leaf_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path, const std::string& type) {
  if (path.empty()) return root;
  torch::nn::Module& parent = module_at(root, parent_of(path));
  const std::string name = leaf_of(path);
  const auto children = parent.named_children();
  if (const auto* found = children.find(name)) return **found;
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(type));
}

}  // namespace fp8::models
