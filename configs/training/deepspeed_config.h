// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's JSON, judged before any process has started: unknown keys with the nearest, wrong values, and what keys
// demand of each other, of the number of processes and of the program that reads the file.
//
//   train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x processes
//
// DeepSpeed itself ignores unknown keys at the top level, and finds the rest one at a time after all processes are up.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// A type that "optimizer" or "scheduler" may name.
struct DeepSpeedType {
  const char* name;
  KeyRows params;                          ///< empty: what its constructor takes is not known here
  std::vector<const char*> required = {};  ///< parameters without a default
  bool tested_with_zero = true;            ///< optimizers: ZeRO takes it without zero_allow_untested_optimizer
};

/// By any case of DeepSpeed's own names, exactly for torch's; nullptr if there is none.
const DeepSpeedType* find_deepspeed_optimizer(const std::string& name);
const DeepSpeedType* find_deepspeed_scheduler(const std::string& name);
std::vector<std::string> deepspeed_optimizer_names();
std::vector<std::string> deepspeed_scheduler_names();

}  // namespace fp8::configs
