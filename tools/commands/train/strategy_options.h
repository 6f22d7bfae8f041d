// SPDX-License-Identifier: Apache-2.0
// What `fp8 train` is asked for where several processes train together. No torch here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/trainer/strategy_names.h"
#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/work/process.h"

namespace fp8::commands {

struct StrategySettings {
  std::string strategy = "auto";  ///< a name of trainer::StrategyKind, or of an engine that comes with Python
  std::int64_t bucket_cap_mb = 230, timeout = kRankTimeout;
  bool find_unused_parameters = false, static_graph = false, gradient_as_bucket_view = false;
  std::optional<kernels::FloatType> comm_hook, fusion_buffer_dtype;  ///< empty: none; bf16
  std::string reduce_amax = "all";                                   ///< "all", "off", or ranks that share amaxes

  trainer::StrategyKind kind() const;  ///< of a strategy of this program
  /// Ranks that share amaxes, of `size`; 0: none do. Throws UsageError for what divides them not.
  int amax_ranks(int size) const;
};

/// --strategy and what belongs to it.
void add_strategy_options(Options& options, StrategySettings& settings);

/// Throws UsageError for options of another strategy, and for an engine of Python's with the line that runs it there.
/// fp8: the precision.
void check_strategy_options(const StrategySettings& settings, bool fp8);

}  // namespace fp8::commands
