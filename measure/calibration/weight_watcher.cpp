// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/weight_watcher.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>

#include "fp8/runtime/intercept/intercept.h"

namespace fp8::measure {

void WeightWatcher::retire() {
  std::shared_ptr<Recorder> recorder;  // let go outside of the lock
  std::optional<at::Tensor> bias;
  const std::lock_guard<std::mutex> lock(mutex_);
  recorder.swap(recorder_);
  bias.swap(bias_);
}

at::Tensor WeightWatcher::linear(const runtime::LinearCall& call) {
  at::Tensor y = call.original();
  std::shared_ptr<Recorder> recorder;
  std::optional<at::Tensor> bias;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    recorder = recorder_;
    bias = bias_;
  }
  if (recorder == nullptr || records_.empty()) return y;
  const at::NoGradGuard no_grad;
  if (recorder->info_of(records_[0]).reduces) {
    // What is reduced over the processes has no bias: each would add its own.
    const runtime::InterceptionPause pause;
    recorder->observe(records_, {call.x}, {call.bias.has_value() ? at::linear(call.x, call.weight) : y});
    return y;
  }
  // nn::Linear adds its bias after a matmul when x is not 2-D: the module's output is what comes out then, in y's
  // dtype.
  const bool bias_comes_later =
      bias.has_value() && !call.bias.has_value() && y.dim() != 2 && y.size(-1) == bias->numel();
  recorder->observe(records_, {call.x}, {bias_comes_later ? y.detach().clone().add_(bias->detach()) : y});
  return y;
}

at::Tensor WeightWatcher::convolution(const runtime::ConvolutionCall& call) {
  at::Tensor y = call.original();
  if (const auto watching = recorder()) watching->observe(records_, {call.x}, {y});
  return y;
}

void check_watchable(const WeightModule& m) {
  TORCH_CHECK(m.weight.device().is_hpu(), "[measure] ", m.name, ": expected the weight on hpu, found it on ",
              m.weight.device());
  TORCH_CHECK(!c10::isFloat8Type(m.weight.scalar_type()), "[measure] ", m.name, ": the weight is ",
              m.weight.scalar_type(), " already; measure the high precision model");
  TORCH_CHECK(m.weight.is_contiguous(), "[measure] ", m.name, ": expected a contiguous weight, found strides ",
              m.weight.strides());
}

WeightWatcher* watcher_on(const at::Tensor& weight) {
  const auto* tag = runtime::find_tag(weight);
  return tag != nullptr ? dynamic_cast<WeightWatcher*>(tag->handler.get()) : nullptr;
}

void remove_retired(const at::Tensor& weight) {
  const WeightWatcher* watcher = watcher_on(weight);
  if (watcher != nullptr && watcher->recorder() == nullptr) runtime::untag_weight(weight);
}

}  // namespace fp8::measure
