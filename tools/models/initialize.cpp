// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/initialize.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <unordered_set>

namespace fp8::models {

void initialize(CausalLM& model, double range, std::uint64_t seed, c10::Device device) {
  at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::unordered_set<const void*> done;  // a tied weight comes up twice
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    if (!done.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const auto& name = item.key();
    const bool bias = name.size() > 4 && name.ends_with("bias");
    at::Tensor values;
    if (parameter.dim() >= 2)
      values = at::empty(parameter.sizes(), at::kFloat).normal_(0, range, generator);
    else
      values = bias ? at::zeros(parameter.sizes(), at::kFloat) : at::ones(parameter.sizes(), at::kFloat);
    parameter.set_data(values.to(device));
  }
}

}  // namespace fp8::models
