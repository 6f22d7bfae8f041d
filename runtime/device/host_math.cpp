// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/host_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>

namespace fp8::runtime {

void settle_host_math() {
  // Past the dispatcher: the first question may come while a mode, a trace or a static initialiser runs.
  [[maybe_unused]] static const bool settled = [] {
    at::Tensor one = at::cpu::empty({1}, at::TensorOptions(at::kFloat));
    *one.mutable_data_ptr<float>() = 1;
    at::cpu::cos(one);
    return true;
  }();
}

}  // namespace fp8::runtime
