// SPDX-License-Identifier: Apache-2.0
// Modules without a weight that calibration and quantization know by name: put them in a model where attention
// multiplies, takes a softmax, or keeps keys and values, and they can be measured and run in fp8. With an empty slot
// each does exactly what the plain ATen call does.
#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::runtime {

/// A module with a slot. `type` is the class name that users write in allow- and blocklists ("Matmul", "KVCache").
class OpModule : public torch::nn::Module {
 public:
  explicit OpModule(const char* type) : torch::nn::Module(type), slot_(std::make_shared<ModuleSlot>()) {}

  const std::shared_ptr<ModuleSlot>& slot() const { return slot_; }
  ModuleHandler* handler() const { return slot_->handler.get(); }

 private:
  std::shared_ptr<ModuleSlot> slot_;
};

}  // namespace fp8::runtime
