// SPDX-License-Identifier: Apache-2.0
// `fp8 train` of a model and data of one's own, made known by a library that --load loads
// (runtime/trainer/parts.h), and the stages validate, test and predict of any model:
//
//   OUT/train.json, OUT/log.jsonl, OUT/checkpoints/    as of a language model; what the model writes beside them
//   OUT/predictions.safetensors                        of predict: the tensors of each batch
#pragma once
#include <optional>

#include "fp8/runtime/trainer/parts.h"
#include "fp8/runtime/trainer/training_module.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// Throws io::Error naming place and key, Interrupted after a checkpoint was written.
void run_module(const TrainOptions& options, Context& context);

// The sections optimizer: and lr_scheduler: of a run file, for a model of one's own. They take the place of the model's
// configure_optimizers().
//
//   optimizer     torch.optim.Adam, AdamW, SGD; FusedAdamW, FusedSGD (lightning_habana or habana_frameworks...)
//   lr_scheduler  torch.optim.lr_scheduler.StepLR {step_size, gamma}, of epochs
//                 CosineWithWarmup {warmup, steps, min_factor}, of optimizer steps

/// Nothing to do without an optimizer: the module's own. Throws io::Error naming the place.
std::optional<trainer::Optimizers> optimizers_of(const torch::nn::Module& network,
                                                 const std::optional<trainer::Part>& optimizer,
                                                 const std::optional<trainer::Part>& lr_scheduler,
                                                 const trainer::PartContext& context);

}  // namespace fp8::commands
