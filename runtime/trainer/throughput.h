// SPDX-License-Identifier: Apache-2.0
// Speed of a run from its clock readings: Optimum Habana's speed_metrics(). Pure arithmetic.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {

/// Seconds are of any clock with one origin.
struct SpeedInput {
  double start = 0, end = 0;
  std::optional<double> start_after_warmup = {};  ///< when the warm-up steps were done; none: there was no warm-up
  double log_evaluate_save_seconds =
      0;  ///< of [start, end], not to be counted (adjust_throughput); only what lay after the warm-up
  std::int64_t samples = 0, steps = 0, tokens = 0;                       ///< of the whole run
  std::int64_t warmup_samples = 0, warmup_steps = 0, warmup_tokens = 0;  ///< of these, during warm-up
};

/// SPLIT_runtime (the whole run, 4 decimals), SPLIT_samples_per_second, SPLIT_steps_per_second, SPLIT_tokens_per_second
/// (3 decimals, after warm-up). A run that has not passed its warm-up is counted whole. Without time that passed, only
/// SPLIT_runtime.
io::Json speed_metrics(const std::string& split, const SpeedInput& input);

}  // namespace fp8::trainer
