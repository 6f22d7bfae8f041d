// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/intercept/weight_tag.h"

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

// The buffer: {gradient 0, gradient 1, ..., 1 or 0 per parameter: this rank has it}. In any dtype a sum of ones is
// above 0, so sets of gradients that differ from rank to rank, or from step to step, make the same message.
void FusedGradients::make_buffer(const std::vector<std::size_t>& learning) {
  std::int64_t elements = static_cast<std::int64_t>(learning.size());
  io::Json sizes = io::Json::object();
  for (const std::size_t i : learning) {
    sizes[names_[i]] = parameters_[i].sizes().vec();
    elements += parameters_[i].numel();
  }
  check_same(sizes, *group_, "FusedGradients");
  learning_ = learning;
  buffer_ = at::empty({elements}, dtype_);
}

void FusedGradients::all_reduce() {
  const at::NoGradGuard no_grad;
  std::vector<std::size_t> learning;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i];
    if (!p.defined() || !p.requires_grad()) continue;
    TORCH_CHECK(!p.grad().defined() || p.grad().layout() == at::kStrided, "[FusedGradients] '", names_[i],
                "': found a sparse gradient, allowed: dense ones");
    learning.push_back(i);
  }
  if (!buffer_.defined() || learning != learning_) make_buffer(learning);
  const std::int64_t flags = buffer_.numel() - static_cast<std::int64_t>(learning.size());
  const at::Tensor has = at::zeros({static_cast<std::int64_t>(learning.size())}, at::kFloat);
  const auto for_each = [&](const auto& move) {
    std::int64_t at = 0, flag = 0;
    for (const std::size_t i : learning) {
      const at::Tensor& p = parameters_[i];
      move(p, buffer_.narrow(0, at, p.numel()).view(p.sizes()), has.mutable_data_ptr<float>()[flag++]);
      at += p.numel();
    }
  };
  const double share = 1.0 / group_->size();
  for_each([&](const at::Tensor& p, const at::Tensor& place, float& flag) {
    if (p.grad().defined()) {
      place.copy_(cpu_alias(p.grad()) * share);
      flag = 1;
    } else {
      place.zero_();
    }
  });
  buffer_.narrow(0, flags, has.numel()).copy_(has);
  if (buffer_.numel() > 0) group_->all_reduce_in_dtype(buffer_);
  has.copy_(buffer_.narrow(0, flags, has.numel()));
  for_each([](const at::Tensor& p, const at::Tensor& place, const float& flag) {
    if (!(flag > 0)) return;
    if (!p.grad().defined())
      p.mutable_grad() = at::zeros_like(p, p.options().dtype(p.grad_dtype().value_or(p.scalar_type())));
    cpu_alias(p.grad()).copy_(place);
    p.grad().unsafeGetTensorImpl()->bump_version();
  });
}

}  // namespace fp8::runtime::distributed
