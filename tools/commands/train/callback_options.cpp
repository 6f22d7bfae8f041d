// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/callback_options.h"

#include <set>

namespace fp8::commands {

void add_callback_options(Options& options, CallbackSettings& v) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  options.list("--logger", v.loggers,
               "csv or tensorboard: the numbers of log.jsonl in this form too; several times if wanted");
  options.number("--max-time", v.max_time, 0, 1e9,
                 "Seconds after which the step in progress is the last, as if --steps had been reached; 0: no limit");
  options.integer("--patience", v.patience, 1, kMany,
                  "With --eval: end after so many evaluations in a row without a lower eval_loss", "never");
  options.integer("--save-best", v.save_best, 1, kMany,
                  "With --eval: so many checkpoints of lowest eval_loss stay in OUT/best", "none");
  options.flag("--load-best", v.load_best,
               "With --save-best: the model in OUT has the weights of the lowest eval_loss, not the last step's");
  options.choice(
      "--clip-by", {"norm", "value"}, [&v](std::size_t i) { v.clip_by_value = i == 1; },
      "What --clip limits: the norm of all gradients (default), or each element's magnitude");
}

void check_callback_options(const CallbackSettings& v, bool evaluates, bool clips) {
  std::set<std::string> seen;
  for (const auto& name : v.loggers) {
    if (name != "csv" && name != "tensorboard")
      throw UsageError("--logger: found '" + name + "', allowed: csv, tensorboard");
    if (!seen.insert(name).second) throw UsageError("--logger: found '" + name + "' twice, allowed: once");
  }
  if (v.patience > 0 && !evaluates)
    throw UsageError("--patience: found " + std::to_string(v.patience) + ", but no --eval");
  if (v.save_best > 0 && !evaluates)
    throw UsageError("--save-best: found " + std::to_string(v.save_best) + ", but no --eval");
  if (v.load_best && v.save_best == 0) throw UsageError("--load-best: found, but no --save-best");
  if (v.clip_by_value && !clips) throw UsageError("--clip-by: found value with --clip 0, allowed: --clip above 0");
}

}  // namespace fp8::commands
