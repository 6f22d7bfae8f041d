// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/exchange.h"
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

FusedGradients::FusedGradients(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                               std::shared_ptr<ProcessGroup> group, at::ScalarType dtype)
    : parameters_(std::move(parameters)), names_(std::move(names)), group_(std::move(group)), dtype_(dtype) {
  TORCH_CHECK(names_.size() == parameters_.size(), "[FusedGradients] found ", names_.size(), " names of ",
              parameters_.size(), " parameters");
  TORCH_CHECK(dtype_ == at::kFloat || dtype_ == at::kBFloat16 || dtype_ == at::kHalf, "[FusedGradients] dtype: found ",
              dtype_, ", allowed: Float, BFloat16, Half");
}

void FusedGradients::make_buffer() {
  has_.clear();
  std::int64_t elements = 0;
  io::Json sizes = io::Json::object();  // of those that have a gradient
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    has_.push_back(gradient.defined());
    if (!gradient.defined()) continue;
    TORCH_CHECK(gradient.layout() == at::kStrided, "[FusedGradients] '", names_[i],
                "': found a sparse gradient, allowed: dense ones");
    sizes[names_[i]] = gradient.sizes().vec();
    elements += gradient.numel();
  }
  check_same(sizes, *group_, "FusedGradients");
  buffer_ = at::empty({elements}, dtype_);
}

void FusedGradients::all_reduce() {
  const at::NoGradGuard no_grad;
  if (!buffer_.defined()) make_buffer();
  const auto for_each = [&](const auto& move) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!has_[i]) continue;
      const at::Tensor& gradient = parameters_[i].grad();
      move(cpu_alias(gradient), buffer_.narrow(0, at, gradient.numel()).view(gradient.sizes()));
      at += gradient.numel();
    }
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    TORCH_CHECK(parameters_[i].grad().defined() == has_[i], "[FusedGradients] '", names_[i], "': ",
                has_[i] ? "had a gradient in the first step and has none now" : "has a gradient and had none before",
                "; allowed: the same ones in each step (hpu_parallel and hpu_ddp take others)");
  const double share = 1.0 / group_->size();
  for_each([&](const at::Tensor& gradient, const at::Tensor& place) { place.copy_(gradient * share); });
  if (buffer_.numel() > 0) group_->all_reduce_in_dtype(buffer_);
  for_each([](const at::Tensor& gradient, const at::Tensor& place) { gradient.copy_(place); });
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_[i]) parameters_[i].grad().unsafeGetTensorImpl()->bump_version();
}

}  // namespace fp8::runtime::distributed
