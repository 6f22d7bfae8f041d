// SPDX-License-Identifier: Apache-2.0
// What training must hold at least, estimated before anything is allocated (a fresh model holds no weights): a config
// that no machine can train is one line, not an allocator's.
#pragma once
#include <string>

#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::commands {

/// Throws io::Error naming `file` where f32 weights and gradients, the optimizer's moments and the logits of one
/// micro-batch are more than `available` bytes.
void refuse_oversized(const models::CausalLM& model, const TrainOptions& options, const std::string& file,
                      double available);

}  // namespace fp8::commands
