// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/graphed_steps.h"

namespace fp8::trainer {

at::Tensor GraphedSteps::run(TrainingModule& module, Step step, const Batch& batch, std::int64_t index, bool training,
                             const Metrics& metrics) {
  using Way = runtime::GraphCache::Way;
  if (!(training ? use_.training : use_.inference)) return (module.*step)(batch, index);
  parts_.look(module.network());
  const std::string more = std::to_string(batch.samples) + " " + std::to_string(batch.tokens) + " " +
                           std::to_string(static_cast<int>(training)) + parts_.modes();
  const auto [way, call] = cache_.decide(batch.tensors, more, parts_.version());
  if (way == Way::as_it_is) return (module.*step)(batch, index);
  if (way == Way::replay) return call->again(batch.tensors).at(0);
  try {
    const Batch given{call->begin(batch.tensors), batch.samples, batch.tokens};
    const auto logged = metrics.logged();
    const at::Tensor loss = (module.*step)(given, index);
    if (metrics.logged() != logged) call->refuse("the step logs a number, which a replay would not");
    return call->end(batch.tensors, {loss}).at(0);
  } catch (...) {
    cache_.abandon(call);
    throw;
  }
}

}  // namespace fp8::trainer
