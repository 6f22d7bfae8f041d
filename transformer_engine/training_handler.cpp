// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/training_handler.h"

#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::te {

at::Tensor TrainingHandler::linear(const runtime::LinearCall& call) {
  const auto& region = current_region();
  const bool whole_matrix = call.view.whole && call.view.batch == 0;
  if (region == nullptr || !whole_matrix) return call.original();
  if (region->enabled()) return fp8_linear(call.x, call.weight, call.bias, state_, options_);
  record_operands(call.x, call.weight, state_);
  return call.original();
}

std::string TrainingHandler::describe() const {
  const std::string recipe = state_->values().recipe;
  return "fp8 training" + (recipe.empty() ? std::string() : ", " + recipe);
}

TrainingHandler* training_handler(const at::Tensor& parameter) {
  const auto* tag = parameter.defined() && parameter.is_hpu() ? runtime::find_tag(parameter) : nullptr;
  return tag == nullptr ? nullptr : dynamic_cast<TrainingHandler*>(tag->handler.get());
}

}  // namespace fp8::te
