// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/product_call.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/ops/from_blob.h>

#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/runtime/tape/recorder.h"

namespace fp8::te {
namespace {

/// False for what is noted at the call: first runs of recomputations, codes that ranks have gathered.
bool can_wait(const Fp8State& state) {
  return runtime::queues_calls() && at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() &&
         current_replay_log() == nullptr && first_run_of(state) == nullptr &&
         at::SavedTensorDefaultHooks::get_tls_state().stack.empty() && !state.gathered().has_value();
}

}  // namespace

OperandPlan ProductCall::plan(Role role, int index, const StepScales& of) const {
  return {.recipe = recipe,
          .dialect = dialect,
          .role = role,
          .need_rows = needs_grad,
          .state = state.get(),
          .scales = &of,
          .index = index,
          .statistics = region->options().statistics};
}

void ProductCall::begin_at_call(bool may_wait) {
  later = may_wait && can_wait(*state);
  if (later)
    instance = state->call_forward(*region, trains);
  else if (runtime::Recorder::current() == nullptr)
    scales = state->begin_forward(*region, trains);
}

void ProductCall::begin_in_replay() {
  if (const auto& now = current_region(); now != nullptr && now->enabled()) region = now;
  recipe = state->recipe_in(*region);
  scales = state->begin_forward(*region, trains);
}

void ProductCall::begin_later() { scales = state->forward_scales(*region, recipe, trains, instance); }

StepScales ProductCall::begin_backward() const {
  return later ? state->backward_scales(*region, scales) : state->begin_backward(*region, scales);
}

at::Tensor owner_of(std::shared_ptr<std::vector<at::Tensor>> others) {
  void* place = others.get();
  return at::from_blob(place, {1}, [others = std::move(others)](void*) {}, at::kByte);
}

}  // namespace fp8::te
