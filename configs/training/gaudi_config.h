// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json of Optimum Habana, and its training arguments (GaudiTrainingArguments, which are transformers'
// TrainingArguments and more) as a JSON: what each key is called by `fp8 train` and the environment, or why it is
// refused.
//
//   {"per_device_train_batch_size": 8, "bf16": true, "max_steps": 9}   ->   --precision bf16-mixed --batch 8 --steps 9
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "fp8/configs/training/key_rows.h"

namespace fp8::configs {

/// Rows of gaudi_config.json.
KeyRows gaudi_config_keys();
/// Rows of the training arguments.
KeyRows training_argument_keys();

/// What of a file `fp8 train` can be told.
struct TrainCommand {
  std::vector<std::string> arguments;  ///< "--batch", "8", "--precision", "bf16-mixed"
  std::vector<std::pair<std::string, std::string>>
      variables;  ///< name and value; a value in <> is a file to be written
};

/// Every problem: unknown keys with the nearest, wrong values, what is refused, and what the vendor's reader refuses of
/// keys together. source: the file.
Findings check_gaudi_config(const io::Json& json, const std::string& source);
Findings check_training_arguments(const io::Json& json, const std::string& source);

/// Of files without problems.
TrainCommand gaudi_config_command(const io::Json& json);
TrainCommand training_arguments_command(const io::Json& json);

/// One name on a line, as the files of LOWER_LIST and FP32_LIST are written. ops: an array of strings.
std::string op_list_text(const io::Json& ops);

}  // namespace fp8::configs
