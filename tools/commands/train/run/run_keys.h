// SPDX-License-Identifier: Apache-2.0
// The keys of a run file: each is an option of fp8 train, a setting of the trainer, or has a sentence.
// Names are those of LightningCLI's files. No torch here.
//
//   seed_everything --seed                        trainer.precision               --precision
//   trainer.default_root_dir --out                trainer.accumulate_grad_batches --grad-accum
//   trainer.max_steps --steps                     trainer.gradient_clip_val       --clip  (null: 0)
//   trainer.max_epochs --epochs                   trainer.strategy, accelerator   --strategy, --device
//   model.init_args.*, data.init_args.*,          of LanguageModel and TextData: --init, --data, --lr, ...
//   optimizer.init_args.*                         (other models: runtime/trainer/parts.h)
//   fp8.NAME                                      any option of fp8 train; it wins over the keys above
#pragma once
#include <string>

#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// Names of the model and the data that the options of fp8 train describe.
inline constexpr const char* kLanguageModel = "LanguageModel";
inline constexpr const char* kTextData = "TextData";

/// Reads what they name and gives `options` and `run` what it says. Throws io::Error naming place and key, UsageError
/// for a key that is no option of a run file.
RunTree take_run_files(Options& options, RunSettings& run);

/// The tree with what the command line gives under its key of above or fp8.NAME, what other files gave (files: those
/// options), and the defaults of all others: a run file that says it all.
RunTree resolved(RunTree tree, const Options& options, const RunSettings& run,
                 const std::vector<std::string>& files = {});

// LanguageModel and TextData, and the optimizers and schedules that `fp8 train` has for them, as classes of a run file.
// No torch here.
//
//   model: {class_path: LanguageModel, init_args: {init: config.json}}               or {model: DIR}
//   data: {class_path: TextData, init_args: {train: a.txt, val: b.txt, test: c.txt, batch_size: 16, seq_len: 256}}
//   optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.001}}               FusedAdamW, Muon
//   lr_scheduler: {class_path: CosineWithWarmup, init_args: {warmup: 100, min_lr: 0}}
//                                                                              LinearWithWarmup, ConstantWithWarmup

void take_language_model(const RunTree& tree, Options& options, RunSettings& run);

// The section `trainer:` of a run file. Not for users of the library. No torch here.

/// A scalar in the words of the command line. Throws io::Error "PLACE: ...".
std::string option_text(const io::Json& value, const std::string& place);

void take_trainer(const RunTree& tree, Options& options, RunSettings& run);

}  // namespace fp8::commands
