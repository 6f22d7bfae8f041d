// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/quantized_parameter.h"

namespace fp8::runtime::distributed {

void broadcast_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group, int root) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters) {
    if (!p.defined()) continue;
    if (auto* in_fp8 = quantized_parameter(p)) {
      const at::Tensor values = in_fp8->values();
      group.broadcast(values, root);
      in_fp8->assign(values);
    } else {
      group.broadcast(p, root);
    }
  }
}

// The message: {gradient 0, gradient 1, ..., 1 or 0 per parameter: this rank has it}
void all_reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> learning;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& p = parameters[i];
    if (!p.defined() || !p.requires_grad()) continue;
    TORCH_CHECK(!p.grad().defined() || p.grad().layout() == at::kStrided, "[all_reduce_gradients] parameter ", i,
                ": found a sparse gradient, allowed: dense ones");
    learning.push_back(p);
    total += p.numel();
  }
  const at::Tensor flat = at::zeros({total + static_cast<std::int64_t>(learning.size())}, at::kFloat);
  std::int64_t at = 0, flag = total;
  for (const auto& p : learning) {
    if (p.grad().defined()) {
      flat.narrow(0, at, p.numel()).view(p.sizes()).copy_(cpu_alias(p.grad()));
      flat.mutable_data_ptr<float>()[flag] = 1.0f;
    }
    at += p.numel();
    ++flag;
  }
  TORCH_INTERNAL_ASSERT(at == total && flag == flat.numel(), "a gradient and a flag for each parameter");
  group.all_reduce(flat, ReduceOp::sum);
  flat.narrow(0, 0, total).mul_(1.0 / group.size());
  at = 0;
  flag = total;
  for (const auto& p : learning) {
    if (flat.const_data_ptr<float>()[flag++] > 0.0f) {
      if (!p.grad().defined())
        p.mutable_grad() = at::zeros_like(p, p.options().dtype(p.grad_dtype().value_or(p.scalar_type())));
      cpu_alias(p.grad()).copy_(flat.narrow(0, at, p.numel()).view(p.sizes()));
      p.grad().unsafeGetTensorImpl()->bump_version();
    }
    at += p.numel();
  }
}

}  // namespace fp8::runtime::distributed
