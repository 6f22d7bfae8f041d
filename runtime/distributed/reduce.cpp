// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/reduce.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

namespace fp8::runtime::distributed {

at::Tensor reduce(const at::Tensor& tensor, std::string_view op, ProcessGroup& group) {
  const bool mean = op == "mean" || op == "avg", least = op == "min";
  TORCH_CHECK_TYPE(mean || least || op == "sum" || op == "max", "Unsupported ReduceOp ", op,
                   ". Supported ops in HCCL are: sum, min, max");
  const at::NoGradGuard no_grad;
  const bool whole = tensor.scalar_type() == at::kLong;
  // The least is the largest of the negatives; of integers of the complements, which never overflow.
  at::Tensor result = mean && whole ? tensor.to(at::kFloat)
                      : least       ? (whole ? tensor.bitwise_not() : -tensor)
                                    : tensor.detach().clone();
  group.all_reduce(result, least || op == "max" ? ReduceOp::max : ReduceOp::sum);
  if (mean) result.div_(group.size());
  return !least ? result : whole ? result.bitwise_not_() : result.neg_();
}

}  // namespace fp8::runtime::distributed
