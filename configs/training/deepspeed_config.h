// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's JSON, judged before any process has started: unknown keys with the nearest, wrong values, and what keys
// demand of each other, of the number of processes and of the program that reads the file.
//
//   train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x processes
//
// DeepSpeed itself ignores unknown keys at the top level, and finds the rest one at a time after all processes are up.
#pragma once

#include "fp8/configs/training/key_rows.h"

namespace fp8::configs {

/// The program that reads the file: DeepSpeed, through deepspeed.initialize(); Lightning's HPUDeepSpeedStrategy, which
/// fills in the accumulation and refuses some keys; the Trainer of transformers (or Accelerate), which fills in "auto".
enum class DeepSpeedReader : std::uint8_t { deepspeed, lightning, transformers };
FP8_ENUM_NAMES(DeepSpeedReader, {deepspeed, "deepspeed"}, {lightning, "lightning"}, {transformers, "transformers"});

struct DeepSpeedUse {
  std::int64_t processes = 0;                  ///< 0: not known, then any number that fits is right
  std::optional<DeepSpeedReader> reader = {};  ///< none: what one of them takes is right
};

/// Every problem, in the order of the file, rules last; and what may surprise. source: the file. Never throws for a
/// JSON of at most the parser's depth.
Findings check_deepspeed(const io::Json& json, const std::string& source, const DeepSpeedUse& use = {});

/// The three numbers of a batch as DeepSpeed completes them; 0: neither said nor to be found out.
struct DeepSpeedBatch {
  std::int64_t train = 0, micro = 0, accumulation = 0, processes = 0;
};

/// Of a file without problems.
DeepSpeedBatch deepspeed_batch(const io::Json& json, const DeepSpeedUse& use = {});

namespace detail {

/// The file, for the parts of check_deepspeed() that need several keys.
struct DeepSpeedFile : KeyRules {
  const DeepSpeedUse& use;

  bool is_read_by(DeepSpeedReader reader) const { return use.reader == reader; }
  /// "zero_optimization.stage"; 1 for true, 0 without.
  std::int64_t stage() const;
  /// " with stage 2"
  std::string with_stage() const { return " with stage " + std::to_string(stage()); }
  /// Of "offload_param" or "offload_optimizer": "none", "cpu", "nvme".
  std::string offload_device(const std::string& section) const;

  void check_batch() const;
  void check_types() const;
  void check_zero() const;
};

}  // namespace detail

// The keys of DeepSpeed's JSON: those of 0.14 (the vendor's fork) to 0.19, as its documentation and readers have them.
// "ignored" is what nothing on hpu comes of.

/// A table of deepspeed.json: "keys" has those of the file, "strategy" the arguments of Lightning's strategy, others
/// belong to one optimizer or schedule.
KeyRows deepspeed_table(const char* name);

/// All keys; "optimizer.params" and "scheduler.params" depend on the type, see below.
inline KeyRows deepspeed_keys() { return deepspeed_table("keys"); }

// Translates the constructor arguments of Lightning's HPUDeepSpeedStrategy into DeepSpeed's JSON, which transformers,
// Accelerate and deepspeed.initialize() take as it is.
//
//   HPUDeepSpeedStrategy(stage=3, offload_optimizer=True)   ->   {"zero_allow_untested_optimizer": true,
//                                                                 "zero_optimization": {"stage": 3, ...}, ...}
//
// Names, defaults and the order of keys are the strategy's. Arguments that no key comes of (remote_device,
// logging_level, load_full_weights, process_group_backend, ...) are for the strategy's own use.

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
