// SPDX-License-Identifier: Apache-2.0
// The modules that calibration and quantization find in a model, in one form for typed torch::nn modules and
// TorchScript: modules that hold a weight, and modules (or TorchScript nodes) that hold none but multiply, normalize or
// cache.
//
// Classes are those of configs/module_types.h. A typed class derived from torch::nn::Linear, Conv or Embedding counts
// as itself if its name is in the table, else as its base; any other class in the table that has a parameter "weight"
// counts too. Of recurrent modules each weight is listed by itself: "rnn.weight_ih_l0".
#pragma once

#include "fp8/runtime/intercept/module_handler.h"

namespace torch::nn {
class Module;
}

namespace torch::jit {
struct Module;
}

namespace fp8::measure {

/// One weight of a module. `type` is the class name as users write it in allow- and blocklists: "Linear", "Conv2d",
/// "Embedding".
struct WeightModule {
  std::string name;  ///< dotted, from the root: "model.layers.0.self_attn.q_proj"; "" for the root itself
  std::string type;
  at::Tensor weight;  ///< the parameter itself: set_data() on it changes the module
  std::optional<at::Tensor> bias;
};

/// In the order of registration; modules that share a weight are all listed.
std::vector<WeightModule> weight_modules(const torch::nn::Module& model);
std::vector<WeightModule> weight_modules(const torch::jit::Module& model);

/// One module without a weight of its own, or one node of a TorchScript module. Setting slot->handler changes what it
/// does.
struct OpNode {
  std::string name;  ///< "model.layers.0.self_attn.matmul_qk"
  std::string
      type;  ///< "Matmul", "Softmax", "ModuleFusedSDPA", "KVCache", "VLLMKVCache", "VllmMixtureOfExpertsOp", ...
  std::shared_ptr<runtime::ModuleSlot> slot;
};

/// In the order of registration.
std::vector<OpNode> op_nodes(const torch::nn::Module& model);

// The nodes of a TorchScript module that hold no weight: the products, softmax and attention in its code.
//
//   a submodule of class Matmul, B2BMatmul, Softmax, ModuleFusedSDPA, KVCache   one node, called as the submodule:
//   "encoder.attn.softmax" an op in the code of any other module "encoder.attn.matmul", "encoder.attn.matmul_1",
//                                                                               "encoder.attn.softmax",
//                                                                               "encoder.attn.sdpa", ...
//
// Code means forward, the methods that other modules call, and every function and own method they use. Products with a
// parameter are no nodes (the parameter has its own name). Finding the nodes rewrites the code once per class, so that
// each op asks a slot of its instance (runtime/intercept/module_handler.h); results stay the same bits. Modules that
// ran before forget their optimized code and make it anew. A frozen copy made afterwards shares the slots of its
// original; a deep copy and a file have empty ones of their own. Not while the module runs on another thread.

/// In the order of registration, within a module in the order of the code. Instances of one class have nodes of their
/// own.
std::vector<OpNode> op_nodes(const torch::jit::Module& model);

}  // namespace fp8::measure
