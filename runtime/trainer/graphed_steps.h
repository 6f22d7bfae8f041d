// SPDX-License-Identifier: Apache-2.0
// Steps of a module as graphs: the first step of each kind runs and is captured, later ones are replayed without the
// module's code (graph/module_cacher.h). A kind is the sizes and dtypes of a batch's tensors, how many samples and
// tokens it has, and all that decides how operations run. The index of a batch does not count: a step that is replayed
// does not see it. A kind whose first step logs a number runs as it is, and so does one that no capture repeats; a step
// that logs only now and then loses those numbers in its replays.
#pragma once

#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

class GraphedSteps {
 public:
  using Step = at::Tensor (TrainingModule::*)(const Batch&, std::int64_t);

  explicit GraphedSteps(const GraphUse& use) : use_(use), cache_({use.max_graphs}) {}

  /// (module.*step)(batch, index): captured, replayed, or as it is. metrics: what module.log() writes to.
  at::Tensor run(TrainingModule& module, Step step, const Batch& batch, std::int64_t index, bool training,
                 const Metrics& metrics);

  const runtime::GraphCounts& counts() const { return cache_.counts(); }
  std::vector<std::string> refusals() const { return cache_.refusals(); }

 private:
  GraphUse use_;
  runtime::GraphCache cache_;
  runtime::ModuleParts parts_;
};

}  // namespace fp8::trainer
