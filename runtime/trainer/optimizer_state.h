// SPDX-License-Identifier: Apache-2.0
// The state of any torch::optim::Optimizer as JSON and named tensors. LibTorch's own form is a zip archive with a
// pickle in which parameters are addresses; here they are names, and the archive is only the way there and back.
//
//   {"archive": {"state": {"archive": {"@model.norm.weight": {"archive": {"step": {"int": 3}, "exp_avg": {"tensor":
//   "optimizer.0.1"}}}}}, ...}}
#pragma once
#include <c10/core/Device.h>

#include <map>
#include <string>

#include "fp8/runtime/trainer/checkpoint_io.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace fp8::trainer {

/// Adds the state's tensors to state.tensors below `name` ("optimizer.0") and the tree to state.json[name]. The
/// optimizer's parameters must be the network's. Throws c10::Error, io::Error.
void save_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    TrainingState& state);

/// The inverse, into an optimizer made with the same groups. Moments go to `device` where they were not on the CPU.
/// Throws io::Error or c10::Error naming what is missing or of another kind.
void load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    const TrainingState& state, c10::Device device);

}  // namespace fp8::trainer
