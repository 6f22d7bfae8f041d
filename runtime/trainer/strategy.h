// SPDX-License-Identifier: Apache-2.0
// What a strategy does at the points of a step. All of them end with the mean gradients of all ranks, before these are
// looked at, clipped or applied, and with as many calls of the group on each rank.
//
//   each micro-batch but the last    backward() adds to this rank's own gradients      no message (no_sync)
//   the last                         before_last_forward(), forward, backward(last)    hpu_ddp: buckets
//   then                             reduce()                                          the others: one message
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/trainer/strategy_names.h"

namespace fp8::trainer {

struct StrategyOptions {
  StrategyKind kind = StrategyKind::automatic;
  runtime::distributed::DataParallelOptions ddp = {};  ///< of hpu_ddp
  at::ScalarType fusion_buffer_dtype = at::kBFloat16;  ///< of fast_ddp: f32, bf16 or f16
  /// Each batch of the source goes to one rank, in turn. False: every rank's source has that rank's own batches, as
  /// many as the others'.
  bool use_distributed_sampler = true;
};

/// hpu_single, and what the others do where they do nothing of their own.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual void before_last_forward() {}
  virtual void backward(const at::Tensor& loss, bool last);
  virtual void reduce() {}
  /// False: the caller drops them. True: they stay where they are, and are zero now.
  virtual bool zero_gradients() { return false; }
};

/// `kind`, and for automatic the one that `ranks` means. Throws std::invalid_argument for hpu_single of several.
StrategyKind resolve_strategy(StrategyKind kind, int ranks);

/// Of one rank (group null or of size 1) always hpu_single. parameters: each once; they are what they will stay, so
/// modules are converted before. names: as many. Throws std::invalid_argument naming the option that is out of range.
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, const std::vector<at::Tensor>& parameters,
                                        const std::vector<std::string>& names,
                                        const std::shared_ptr<runtime::distributed::ProcessGroup>& group);

}  // namespace fp8::trainer
