// SPDX-License-Identifier: Apache-2.0
// What `fp8 train` watches and where it logs, beside OUT/log.jsonl:
//
//   OUT/metrics.csv, OUT/tensorboard/events.out.tfevents.*      --logger: the numbers of log.jsonl
//   OUT/best/step=200-val_loss=1.2345/                          --save-best: a checkpoint as those to go on from
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {

inline constexpr char kCsvFile[] = "metrics.csv", kTensorBoardFolder[] = "tensorboard", kBestFolder[] = "best";

struct CallbackSettings {
  std::vector<std::string> loggers;  ///< "csv", "tensorboard"
  double max_time = 0;               ///< seconds; 0: no limit
  std::int64_t patience = 0;         ///< evaluations; 0: no end
  std::int64_t save_best = 0;        ///< 0: none
  bool clip_by_value = false, load_best = false;
};

void add_callback_options(Options& options, CallbackSettings& v);
/// Throws UsageError naming the option. evaluates: there is --eval; clips: --clip is above 0.
void check_callback_options(const CallbackSettings& v, bool evaluates, bool clips);

}  // namespace fp8::commands
