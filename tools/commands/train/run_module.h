// SPDX-License-Identifier: Apache-2.0
// `fp8 train` of a model and data of one's own, made known by a library that --load loads
// (runtime/trainer/parts/part_registry.h), and the stages validate, test and predict of any model:
//
//   OUT/train.json, OUT/log.jsonl, OUT/checkpoints/    as of a language model; what the model writes beside them
//   OUT/predictions.safetensors                        of predict: the tensors of each batch
#pragma once
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// Throws io::Error naming place and key, Interrupted after a checkpoint was written.
void run_module(const TrainOptions& options, Context& context);

}  // namespace fp8::commands
