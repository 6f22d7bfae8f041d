// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/weight_watcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>

namespace fp8::measure {

at::Tensor WeightWatcher::linear(const runtime::LinearCall& call) {
  at::Tensor y = call.original();
  // nn::Linear adds its bias after a matmul when x is not 2-D: the module's output is what comes out then.
  const bool bias_comes_later = bias_.has_value() && !call.bias.has_value() && y.dim() != 2 && y.size(-1) == bias_->numel();
  const at::NoGradGuard no_grad;
  session_->observe(records_, call.x, bias_comes_later ? y.detach().clone().add_(bias_->detach()) : y);  // `output += bias`, in y's dtype
  return y;
}

at::Tensor WeightWatcher::convolution(const runtime::ConvolutionCall& call) {
  at::Tensor y = call.original();
  session_->observe(records_, call.x, y);
  return y;
}

}  // namespace fp8::measure
