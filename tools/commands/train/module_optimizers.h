// SPDX-License-Identifier: Apache-2.0
// The sections optimizer: and lr_scheduler: of a run file, for a model of one's own. They take the place of the model's
// configure_optimizers().
//
//   optimizer     torch.optim.Adam, AdamW, SGD; FusedAdamW, FusedSGD (lightning_habana or habana_frameworks...)
//   lr_scheduler  torch.optim.lr_scheduler.StepLR {step_size, gamma}, of epochs
//                 CosineWithWarmup {warmup, steps, min_factor}, of optimizer steps
#pragma once
#include <optional>

#include "fp8/runtime/trainer/parts/part.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::commands {

/// Nothing to do without an optimizer: the module's own. Throws io::Error naming the place.
std::optional<trainer::Optimizers> optimizers_of(const torch::nn::Module& network,
                                                 const std::optional<trainer::Part>& optimizer,
                                                 const std::optional<trainer::Part>& lr_scheduler,
                                                 const trainer::PartContext& context);

}  // namespace fp8::commands
