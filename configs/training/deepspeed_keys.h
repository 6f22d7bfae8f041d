// SPDX-License-Identifier: Apache-2.0
// The keys of DeepSpeed's JSON: those of 0.14 (the vendor's fork) to 0.19, as its documentation and readers have them.
// "ignored" is what nothing on hpu comes of.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp8/configs/training/key_rows.h"

namespace fp8::configs {

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
