// SPDX-License-Identifier: Apache-2.0
// Modules without a weight that calibration and quantization know by name: put them in a model where attention
// multiplies, takes a softmax, or keeps keys and values, and they can be measured and run in fp8. With an empty slot
// each does exactly what the plain ATen call does.
#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::runtime {

/// A module with a slot. `type` is the class name that users write in allow- and blocklists ("Matmul", "KVCache"). One
/// of your own derives from it, and says in forward() what is computed:
///
///   at::Tensor ScaledAddImpl::forward(const at::Tensor& a, const at::Tensor& b) {
///     return handled({a, b}, [&] { return std::vector<at::Tensor>{a + 2 * b}; })[0];
///   }
///
/// Its kind is quant::NodeKindRegistration's.
class OpModule : public torch::nn::Module {
 public:
  explicit OpModule(const char* type) : torch::nn::Module(type), slot_(std::make_shared<ModuleSlot>()) {}

  const std::shared_ptr<ModuleSlot>& slot() const { return slot_; }
  ModuleHandler* handler() const { return slot_->handler.get(); }

 protected:
  /// What op() computes of `inputs`, or what the handler makes of it.
  std::vector<at::Tensor> handled(const std::vector<at::Tensor>& inputs, const OriginalOps& op) const;

 private:
  std::shared_ptr<ModuleSlot> slot_;
};

}  // namespace fp8::runtime
