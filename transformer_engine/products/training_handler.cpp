// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/training_handler.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

std::string part_of(const runtime::WeightView& view) {
  if (view.batch > 1) return std::to_string(view.batch) + " matrices";
  return "rows " + std::to_string(view.first_row) + " to " + std::to_string(view.first_row + view.rows) + ", columns " +
         std::to_string(view.first_col) + " to " + std::to_string(view.first_col + view.cols);
}

}  // namespace

at::Tensor TrainingHandler::linear(const runtime::LinearCall& call) {
  if (!call.view.whole || call.view.batch > 1) {
    tell(call.tag, "a product with a part of it (" + part_of(call.view) + ")");
    return call.original();
  }
  const ProductRun run(*state_);
  const auto& region = current_region();
  if (region == nullptr) {
    ++plain_;
    return call.original();
  }
  ++products_;
  if (in_function() && is_training()) ++in_functions_;
  const at::Tensor weight = call.view.batch == 1 ? call.weight.squeeze(0) : call.weight;  // einsum and bmm: [1, N, K]
  if (region->enabled()) {
    Fp8LinearOptions options = options_;
    options.training = is_training();
    const at::Tensor y = fp8_linear(call.x, weight, call.bias, state_, options);
    return call.view.batch == 1 && call.x.dim() < 3 ? y.unsqueeze(0) : y;
  }
  record_operands(call.x, weight, state_);
  return call.original();
}

at::Tensor TrainingHandler::dequantize(const runtime::WeightTag& tag, const runtime::WeightView&,
                                       const at::Tensor& weight) {
  refuse_backward_by_hand(*state_, state_->first_runs());
  tell(tag, "a product that is not x . w^T");
  return weight;
}

bool TrainingHandler::own_backward() const { return is_fp8_enabled(); }

std::shared_ptr<runtime::OpHandler> TrainingHandler::for_copy(const at::Tensor&) const {
  if (is_fp8_enabled()) ++copies_;
  if (retired()) return nullptr;
  auto state = std::make_shared<Fp8State>(state_->name(), state_->forward_tensors(), state_->backward_tensors());
  state->set_recipe(state_->own_recipe());
  state->follow(state_);
  return std::make_shared<TrainingHandler>(std::move(state), options_);
}

void TrainingHandler::tell(const runtime::WeightTag& tag, const std::string& what) {
  if (!is_fp8_enabled() || told_.exchange(true)) return;
  TORCH_WARN("[fp8_autocast] the weight of '", tag.module_names(), "', which was converted for training, met ", what,
             ": such products stay in high precision (fp8 products are x . w^T with all of w)");
}

std::string TrainingHandler::describe() const {
  const std::string recipe = state_->values().recipe;
  return "fp8 training" + (recipe.empty() ? std::string() : ", " + recipe);
}

void TrainingHandler::follow(const std::shared_ptr<const torch::nn::Module>& module) {
  const std::lock_guard<std::mutex> lock(mutex_);
  modules_.push_back(module);
}

void TrainingHandler::set_training(bool training) {
  const std::lock_guard<std::mutex> lock(mutex_);
  training_ = training;
}

bool TrainingHandler::is_training() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (training_.has_value()) return *training_;
  bool known = false;
  for (const auto& weak : modules_) {
    const auto module = weak.lock();
    if (module == nullptr) continue;
    if (module->is_training()) return true;
    known = true;
  }
  return !known;
}

void TrainingHandler::succeed(const TrainingHandler& before) {
  const std::scoped_lock lock(mutex_, before.mutex_);
  training_ = before.training_;
  modules_ = before.modules_;
}

TrainingHandler* training_handler(const at::Tensor& parameter) {
  const auto* tag = parameter.defined() && parameter.is_hpu() ? runtime::find_tag(parameter) : nullptr;
  return tag == nullptr ? nullptr : dynamic_cast<TrainingHandler*>(tag->handler.get());
}

}  // namespace fp8::te
