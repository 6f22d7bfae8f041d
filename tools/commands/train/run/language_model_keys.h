// SPDX-License-Identifier: Apache-2.0
// LanguageModel and TextData, and the optimizers and schedules that `fp8 train` has for them, as classes of a run file.
// No torch here.
//
//   model: {class_path: LanguageModel, init_args: {init: config.json}}               or {model: DIR}
//   data: {class_path: TextData, init_args: {train: a.txt, val: b.txt, test: c.txt, batch_size: 16, seq_len: 256}}
//   optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.001}}               FusedAdamW, Muon
//   lr_scheduler: {class_path: CosineWithWarmup, init_args: {warmup: 100, min_lr: 0}}
//                                                                              LinearWithWarmup, ConstantWithWarmup
#pragma once
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

void take_language_model(const RunTree& tree, Options& options, RunSettings& run);

}  // namespace fp8::commands
