// SPDX-License-Identifier: Apache-2.0
// The nodes of a TorchScript module that hold no weight: the products, softmax and attention in its code.
//
//   a submodule of class Matmul, B2BMatmul, Softmax, ModuleFusedSDPA, KVCache   one node, called as the submodule:
//   "encoder.attn.softmax" an op in the code of any other module "encoder.attn.matmul", "encoder.attn.matmul_1",
//                                                                               "encoder.attn.softmax",
//                                                                               "encoder.attn.sdpa", ...
//
// Code means forward, the methods that other modules call, and every function and own method they use. Products with a
// parameter are no nodes (the parameter has its own name). Finding the nodes rewrites the code once per class, so that
// each op asks a slot of its instance (runtime/intercept/module_handler.h); results stay the same bits. Modules that ran
// before forget their optimized code and make it anew. A frozen copy made afterwards shares the slots of its original;
// a deep copy and a file have empty ones of their own. Not while the module runs on another thread.
#pragma once
#include <vector>

#include "fp8/measure/model/module_tree.h"

namespace fp8::measure {

/// In the order of registration, within a module in the order of the code. Instances of one class have nodes of their
/// own.
std::vector<OpNode> op_nodes(const torch::jit::Module& model);

}  // namespace fp8::measure
