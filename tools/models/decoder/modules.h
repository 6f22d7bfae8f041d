// SPDX-License-Identifier: Apache-2.0
// Modules under dotted names: what lies between is made as it is needed.
#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace fp8::models {

/// The module at `path` ("attn.norms") below root, made where there is none. type: of what is made.
torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path, const std::string& type = "Module");

/// "a.b.c" -> "a.b"; "a" -> "".
std::string parent_of(const std::string& path);
/// "a.b.c" -> "c".
std::string leaf_of(const std::string& path);

/// Registers `module` at `path` below root and returns it.
template <class Module>
Module add_module(torch::nn::Module& root, const std::string& path, Module module) {
  return module_at(root, parent_of(path)).register_module(leaf_of(path), std::move(module));
}

}  // namespace fp8::models
