// SPDX-License-Identifier: Apache-2.0
// The modules of a model that hold one weight, in one form for typed torch::nn modules and TorchScript.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace fp8::measure {

/// One module with a weight. `type` is the class name as users write it in allow- and blocklists: "Linear", "Conv2d", "Embedding".
struct WeightModule {
  std::string name;  ///< dotted, from the root: "model.layers.0.self_attn.q_proj"; "" for the root itself
  std::string type;
  at::Tensor weight;               ///< the parameter itself: set_data() on it changes the module
  std::optional<at::Tensor> bias;
};

/// In the order of registration; modules that share a weight are all listed. Types: Linear, Conv1d, Conv2d, Conv3d, Embedding.
std::vector<WeightModule> weight_modules(const torch::nn::Module& model);
std::vector<WeightModule> weight_modules(const torch::jit::Module& model);

}  // namespace fp8::measure
