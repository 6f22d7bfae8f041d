// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/op_module.h"

namespace fp8::runtime {

std::vector<at::Tensor> OpModule::handled(const std::vector<at::Tensor>& inputs, const OriginalOps& op) const {
  if (handler() == nullptr) return op();
  const autocast::InsideOp inside;
  const OriginalOps original = outside_of(inside, op);
  return handler()->tensors({inputs, original});
}

}  // namespace fp8::runtime
