// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json of Optimum Habana, and its training arguments (GaudiTrainingArguments, which are transformers'
// TrainingArguments and more) as a JSON: what each key is called by `fp8 train` and the environment, or why it is
// refused. An argument that is absent has Optimum's default.
//
//   {"per_device_train_batch_size": 4, "bf16": true, "max_steps": 9}   ->   --precision bf16-mixed --batch 4 --steps 9
//                                                                           --lr 5e-05 --weight-decay 0 ...
#pragma once

#include "fp8/configs/training/key_rows.h"

namespace fp8::configs {

/// "eval_every" as the command line has it: "--eval-every". The tables of this folder name options without their
/// dashes, in notes as {eval_every}.
std::string flag_of(std::string_view option);

/// Rows of gaudi_config.json and of the training arguments, from optimum.json. To add a key: one row there. A refused
/// one has the values that change nothing here.
KeyRows gaudi_config_keys();
KeyRows training_argument_keys();

/// An option of `fp8 train` that a key comes to.
struct TrainSetting {
  std::string option;                ///< "batch"
  std::optional<std::string> value;  ///< "8"; none: a flag
  std::string key;                   ///< "per_device_train_batch_size"
};

/// The options of `fp8 train` that a file comes to.
struct TrainCommand {
  std::vector<TrainSetting> settings;  ///< an option once, of several the last
  /// Options that only the command line can give, such as the file of eval; the value says what: "<text>".
  std::vector<TrainSetting> needed;
  std::vector<std::pair<std::string, std::string>> variables;  ///< name and value, of a file to be written

  /// The words of a command line: "--batch", "8".
  std::vector<std::string> arguments() const;
};

/// Every problem: unknown keys with the nearest, wrong values, what is refused, and what the vendor's reader refuses of
/// keys together. source: the file.
Findings check_gaudi_config(const io::Json& json, const std::string& source);
Findings check_training_arguments(const io::Json& json, const std::string& source);

/// Of files without problems.
TrainCommand gaudi_config_command(const io::Json& json);
TrainCommand training_arguments_command(const io::Json& json);

/// The operators of a gaudi_config.json that autocast runs in bf16 and in f32; none where it does not name both.
struct AutocastOps {
  std::vector<std::string> bf16, fp32;
};
std::optional<AutocastOps> autocast_ops(const io::Json& json);

/// One name on a line, as the files of LOWER_LIST and FP32_LIST are written.
std::string op_list_text(const std::vector<std::string>& ops);

}  // namespace fp8::configs

// Values of training arguments, for the rules and the command of gaudi_config.h. A value of another type, which is a
// problem of its own, reads as one that is absent.

namespace fp8::configs::training {

std::string text_of(const io::Json& json, const std::string& path);  ///< absent: ""
/// The model runs on the CPU.
bool on_cpu(const io::Json& arguments);

}  // namespace fp8::configs::training
