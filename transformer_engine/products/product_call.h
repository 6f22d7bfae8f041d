// SPDX-License-Identifier: Apache-2.0
// What calls of products and of attention have in common. A pass runs where it is called; where that is recorded
// (runtime/tape) it is a node, which reads scales, region and history anew; in lazy mode (runtime/lazy) a call, which
// runs later: with the region of the call, and the scales that it finds then.
#pragma once
#include "fp8/runtime/intercept/intercept.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {

/// The part of a call that its backward pass needs too; tensors lie in save_for_backward.
struct ProductCall : torch::CustomClassHolder {
  std::shared_ptr<Fp8State> state;
  std::shared_ptr<Fp8Region> region;
  recipes::Recipe recipe;
  recipes::Dialect dialect = recipes::Dialect::gaudi3;
  at::ScalarType activation = at::kFloat;
  bool needs_grad = false;
  bool trains = false;  ///< begin_forward()'s
  StepScales scales;
  bool later = false;                                             ///< in lazy mode; then, too:
  int instance = 0;                                               ///< call_forward()'s
  std::weak_ptr<std::vector<at::Tensor>> made_for_backward = {};  ///< by forward, no tensors of autograd's

  OperandPlan plan(Role role, int index, const StepScales& of) const;
  /// At the call: its scales, or that it runs later. may_wait: false where it draws random numbers.
  void begin_at_call(bool may_wait);
  /// Of a recorded call that runs: region, recipe and scales as they are now. Where regions are of the recording alone,
  /// those are in force at a replay too.
  void begin_in_replay();
  /// Of a call that has waited.
  void begin_later();
  StepScales begin_backward() const;
};

/// What is around a pass that a node or a call of lazy mode runs.
class PassScope {
 public:
  explicit PassScope(const ProductCall& call) : module_(call.state->name()) {}

 private:
  const runtime::autocast::InsideOp inside_{std::nullopt};
  const runtime::InterceptionPause pause_;
  const runtime::ModuleScope module_;
  const at::NoGradGuard no_grad_;
};

/// A tensor that has others for as long as it lives.
at::Tensor owner_of(std::shared_ptr<std::vector<at::Tensor>> others);

}  // namespace fp8::te
