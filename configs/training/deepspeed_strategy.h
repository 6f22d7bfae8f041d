// SPDX-License-Identifier: Apache-2.0
// Translates the constructor arguments of Lightning's HPUDeepSpeedStrategy into DeepSpeed's JSON, which transformers,
// Accelerate and deepspeed.initialize() take as it is.
//
//   HPUDeepSpeedStrategy(stage=3, offload_optimizer=True)   ->   {"zero_allow_untested_optimizer": true,
//                                                                 "zero_optimization": {"stage": 3, ...}, ...}
//
// Names, defaults and the order of keys are the strategy's. Arguments that no key comes of (remote_device,
// logging_level, load_full_weights, process_group_backend, ...) are for the strategy's own use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fp8/configs/training/key_rows.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::configs {

/// The constructor's arguments that say something of the JSON, by name. One that is missing has its default.
using DeepSpeedStrategy = io::Json;

/// The values that the strategy reads of its Trainer when training starts.
struct DeepSpeedTrainer {
  std::string precision = "32-true";
  std::int64_t accumulate_grad_batches = 1;
  double gradient_clip_val = 0;  ///< 0: none
  std::int64_t batch_size = 1;   ///< of the data loader; 1 where it has none
};

/// The names that Lightning registers: hpu_deepspeed, hpu_deepspeed_stage_1, ..., hpu_deepspeed_stage_3_offload_nvme.
const std::vector<std::string>& deepspeed_strategy_names();

/// The arguments that the name stands for. Throws io::Error naming the nearest.
DeepSpeedStrategy deepspeed_strategy(const std::string& name);

/// The constructor's arguments as JSON, {"stage": 3, "offload_optimizer": true}, over those in `start`. source: in
/// messages. Throws io::Error for an unknown argument (the nearest is named), a wrong value, and "config", which is a
/// DeepSpeed JSON already.
DeepSpeedStrategy parse_deepspeed_strategy(const io::Json& arguments, const std::string& source,
                                           DeepSpeedStrategy start = deepspeed_strategy("hpu_deepspeed"));

/// The rows of those arguments, with what each does.
KeyRows deepspeed_strategy_keys();

/// The JSON as the constructor leaves it.
io::Json deepspeed_json(const DeepSpeedStrategy& strategy);

/// And as it reaches DeepSpeed: accumulation, micro batch and clipping of the Trainer, a block for the precision
/// (16-mixed, 16-true: fp16; bf16-mixed, bf16-true: bf16; others: none). Keys that `config` has stay, but for
/// gradient_accumulation_steps, which throws io::Error; so does autotuning.
void fill_in_deepspeed(io::Json& config, const DeepSpeedStrategy& strategy, const DeepSpeedTrainer& trainer,
                       const std::string& source);

/// Rows of DeepSpeedTrainer, which parse_deepspeed_trainer() reads.
KeyRows deepspeed_trainer_keys();
DeepSpeedTrainer parse_deepspeed_trainer(const io::Json& arguments, const std::string& source);

}  // namespace fp8::configs
