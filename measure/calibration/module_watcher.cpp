// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/module_watcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "fp8/measure/calibration/attention_amax.h"
#include "fp8/measure/calibration/tensor_memory.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/intercept.h"

namespace fp8::measure {
namespace {

/// A number in the form that observers take: [1, 1].
at::Tensor as_tensor(float value) { return at::full({1, 1}, value, at::kFloat); }

/// x as softmax's input: a logit of -inf is a place that is masked, no value that a scale would be for.
at::Tensor unmasked(const at::Tensor& x) {
  const at::Tensor host = runtime::cpu_alias(x.detach());
  return amax_of(host) == std::numeric_limits<float>::infinity()
             ? host.masked_fill(host.eq(-std::numeric_limits<double>::infinity()), 0)
             : x;
}

}  // namespace

configs::KindTable<ShowCall>& shown_calls() {
  static configs::KindTable<ShowCall> table;
  return table;
}

void ModuleWatcher::retire() {
  std::shared_ptr<Recorder> recorder;  // let go outside of the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  recorder.swap(recorder_);
}

at::Tensor ModuleWatcher::matmul(const runtime::MatmulCall& call) {
  at::Tensor y = call.original();
  if (const auto watching = recorder()) watching->observe({record_}, {call.a, call.b}, {y});
  return y;
}

at::Tensor ModuleWatcher::softmax(const runtime::SoftmaxCall& call) {
  at::Tensor y = call.original();
  if (const auto watching = recorder()) {
    const at::NoGradGuard no_grad;
    watching->observe({record_}, {unmasked(call.x)}, {y});
  }
  return y;
}

at::Tensor ModuleWatcher::attention(const runtime::AttentionCall& call) {
  at::Tensor y = call.original();
  if (const auto watching = recorder()) {
    const at::NoGradGuard no_grad;
    const float p = watching->timed([&] { return largest_probability(call); });
    watching->observe({record_}, {call.q, call.k, call.v}, {y, as_tensor(p)});
  }
  return y;
}

at::Tensor ModuleWatcher::mixture_of_experts(const runtime::MoeCall& call) {
  const auto watching = recorder();
  if (watching == nullptr) return call.original();
  at::Tensor y;
  {
    const runtime::InterceptionPause pause;  // the experts' weights are the mixture's own business: they see no calls
    y = call.original();
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> outputs = {y};
  for (const float amax : watching->timed([&] { return expert_amax(call); })) outputs.push_back(as_tensor(amax));
  watching->observe({record_}, {call.hidden_states}, outputs);
  return y;
}

std::vector<at::Tensor> ModuleWatcher::tensors(const runtime::TensorsCall& call) {
  std::vector<at::Tensor> outputs = call.original();
  const auto watching = recorder();
  if (watching == nullptr) return outputs;
  const at::NoGradGuard no_grad;
  const configs::KindInfo& kind = watching->info_of(record_);
  const auto show = shown_calls().find(kind.kind);
  const Shown shown = show.has_value() ? (*show)(call.inputs, outputs) : Shown{call.inputs, outputs};
  const auto inputs_expected = static_cast<std::size_t>(kind.inputs),
             outputs_expected = static_cast<std::size_t>(kind.outputs);
  TORCH_CHECK(shown.inputs.size() == inputs_expected && shown.outputs.size() == outputs_expected,
              "[measure] a module of kind ", configs::name_of(kind.kind), ": expected ", inputs_expected,
              " inputs and ", outputs_expected, " outputs, found ", shown.inputs.size(), " and ", shown.outputs.size());
  watching->observe({record_}, shown.inputs, shown.outputs);
  return outputs;
}

at::Tensor ModuleWatcher::store(const at::Tensor& current) {
  if (const auto watching = recorder()) watching->observe({record_}, {current}, {});
  return current;
}

at::Tensor ModuleWatcher::fetch(const at::Tensor& stored, at::ScalarType dtype) {
  at::Tensor values = ModuleHandler::fetch(stored, dtype);
  if (const auto watching = recorder()) watching->observe({record_}, {}, {values});
  return values;
}

}  // namespace fp8::measure
