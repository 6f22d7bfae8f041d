// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/weight_watcher.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include "fp8/runtime/intercept/intercept.h"

namespace fp8::measure {

void WeightWatcher::retire() {
  std::shared_ptr<CalibrationSession> session;  // let go outside of the lock
  std::optional<at::Tensor> bias;
  const std::lock_guard<std::mutex> lock(mutex_);
  session.swap(session_);
  bias.swap(bias_);
}

at::Tensor WeightWatcher::linear(const runtime::LinearCall& call) {
  at::Tensor y = call.original();
  std::shared_ptr<CalibrationSession> session;
  std::optional<at::Tensor> bias;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    session = session_;
    bias = bias_;
  }
  if (session == nullptr || records_.empty()) return y;
  const at::NoGradGuard no_grad;
  if (session->kind_of(records_[0]) == configs::ModuleKind::row_parallel_linear) {
    // What is reduced over the processes has no bias: each would add its own.
    const runtime::InterceptionPause pause;
    session->observe(records_, {call.x}, {call.bias.has_value() ? at::linear(call.x, call.weight) : y});
    return y;
  }
  // nn::Linear adds its bias after a matmul when x is not 2-D: the module's output is what comes out then, in y's
  // dtype.
  const bool bias_comes_later =
      bias.has_value() && !call.bias.has_value() && y.dim() != 2 && y.size(-1) == bias->numel();
  session->observe(records_, {call.x}, {bias_comes_later ? y.detach().clone().add_(bias->detach()) : y});
  return y;
}

at::Tensor WeightWatcher::convolution(const runtime::ConvolutionCall& call) {
  at::Tensor y = call.original();
  if (const auto watching = session()) watching->observe(records_, {call.x}, {y});
  return y;
}

}  // namespace fp8::measure
