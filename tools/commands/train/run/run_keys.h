// SPDX-License-Identifier: Apache-2.0
// What the keys of a run file mean here: each is an option of fp8 train, a setting of the trainer, or has a sentence.
// Names are those of LightningCLI's files. No torch here.
//
//   seed_everything --seed                        trainer.precision               --precision
//   trainer.default_root_dir --out                trainer.accumulate_grad_batches --grad-accum
//   trainer.max_steps --steps                     trainer.gradient_clip_val       --clip  (null: 0)
//   trainer.max_epochs --epochs                   trainer.strategy, accelerator   --strategy, --device
//   model.init_args.*, data.init_args.*,          of LanguageModel and TextData: --init, --data, --lr, ...
//   optimizer.init_args.*                         (other models: runtime/trainer/part_registry.h)
//   fp8.NAME                                      any option of fp8 train; it wins over the keys above
#pragma once
#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/train/run/run_settings.h"
#include "fp8/tools/commands/train/run/run_tree.h"

namespace fp8::commands {

/// Names of the model and the data that the options of fp8 train describe.
inline constexpr const char* kLanguageModel = "LanguageModel";
inline constexpr const char* kTextData = "TextData";

/// Writes what the command line gives into the tree, under its key of above or fp8.NAME.
void add_given(RunTree& tree, const Options& options);
/// Gives `options` and `run` what the tree says. warn: sentences for keys without an effect. Throws io::Error naming
/// place and key.
void take_run(const RunTree& tree, Options& options, RunSettings& run, const Context& context);
/// Adds the values that nobody gave, for --print-config.
void add_defaults(RunTree& tree, const Options& options);

}  // namespace fp8::commands
