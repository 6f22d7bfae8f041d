// SPDX-License-Identifier: Apache-2.0
// OUT/train.json: what a run of `fp8 train` was started with, so that a resumed one is the same run. Texts, configs and
// recipes are the same where their fingerprints are, wherever they lie; the number of steps alone may change.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/strategy.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"

namespace fp8::commands {

/// The settings that decide a run's numbers. more: keys that the options alone do not tell (the fingerprints of texts
/// and config, the recipe as it was read).
io::Json train_settings(const TrainOptions& options, const Context& context, const io::Json& more);

/// The steps of a resumed run.
struct ResumedSteps {
  std::int64_t done = 0;  ///< of the newest checkpoint
  std::string warning;    ///< the effect on the learning rate if the number of steps changed
};

/// Checks that the run of `written` (read from `file`) can be resumed as `asked`. Throws io::Error naming the first key
/// that differs, and for fewer steps than are done.
ResumedSteps check_resume(const std::filesystem::path& file, const io::Json& written, const io::Json& asked,
                          const TrainOptions& options);

// OUT of `fp8 train`: new, or that of the same run.

/// Makes OUT and train.json in it with `settings`, or finds the run in it that is to be resumed. check(file, written):
/// throws for a different run; true: the outputs of its end are no longer its end. Returns true for a resumed run.
/// Throws io::Error.
bool open_folder(const TrainOptions& options, const io::Json& settings,
                 const std::function<bool(const std::filesystem::path& file, const io::Json& written)>& check);

// The processes that train together, where a launcher started several: they meet, find that they are about to do the
// same, and rank 0 alone writes and speaks.

class TrainRanks {
 public:
  /// Waits for the others. fp8: amaxes are shared as --reduce-amax says. On ranks above 0 the context is quiet from now
  /// on. Throws UsageError, io::Error naming a variable of the launcher, c10::Error naming rank and place.
  TrainRanks(const StrategySettings& settings, bool fp8, Context& context);

  int size() const { return group_ != nullptr ? group_->size() : 1; }
  bool first() const { return group_ == nullptr || group_->rank() == 0; }
  /// Null for one process.
  const std::shared_ptr<runtime::distributed::ProcessGroup>& group() const { return group_; }
  /// The ranks that share amaxes; null: none do.
  const std::shared_ptr<runtime::distributed::ProcessGroup>& amax_group() const { return amax_group_; }
  trainer::StrategyOptions strategy() const;
  /// The variables that said how many ranks there are and where they meet; "" where none did.
  const std::string& said_by() const { return said_by_; }
  /// The one that trains: "hpu_parallel" for auto on several ranks.
  const char* strategy_name() const;

  /// Throws c10::Error on every rank, "[train] rank 1 differs from rank 0: ...", unless all bring the same settings,
  /// version, instruction set and weights. weights: a checksum.
  void check_same(io::Json settings, const std::string& weights) const;
  /// f() on rank 0; the others wait for what it returns, or fail as it does.
  bool on_first(const std::function<bool()>& f) const;

 private:
  StrategySettings settings_;
  std::string said_by_;
  std::shared_ptr<runtime::distributed::ProcessGroup> group_, amax_group_;
};

}  // namespace fp8::commands
