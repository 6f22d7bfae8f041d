// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_clip_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <unordered_set>

#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::optim {

FusedClipNorm::FusedClipNorm(std::vector<at::Tensor> parameters, double max_norm, double norm_type)
    : parameters_(std::move(parameters)), max_norm_(max_norm) {
  TORCH_CHECK(max_norm > 0, "FusedClipNorm: max_norm is ", max_norm, ", allowed is above 0");
  TORCH_CHECK(norm_type == 2, "FusedClipNorm: norm_type is ", norm_type, ", allowed is 2");
}

at::Tensor FusedClipNorm::clip_norm(const std::vector<at::Tensor>& parameters) const {
  const at::NoGradGuard disabled;
  std::vector<at::Tensor> grads;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined() && seen.insert(p.grad().unsafeGetTensorImpl()).second) grads.push_back(p.grad().detach());
  }
  const double norm = ops::norm_of(ops::norms("FusedClipNorm", grads));
  ops::scale_all("FusedClipNorm", grads, ops::clip_coefficient(norm, max_norm_));
  return at::full(
      {}, norm, at::TensorOptions().dtype(at::kFloat).device(grads.empty() ? at::Device(at::kCPU) : grads[0].device()));
}

}  // namespace fp8::runtime::optim
