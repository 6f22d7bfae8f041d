// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/watchers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <c10/util/Exception.h>

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

constexpr std::int64_t kLogitsAtOnce = std::int64_t{1} << 22;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

at::Tensor host(const at::Tensor& t) { return runtime::cpu_alias(t.detach()); }

struct Problem {
  at::Tensor q, k;  ///< [B, H, L, E], [B, Hkv, S, E], f32
  at::Tensor mask;  ///< [B, H, L, S] or undefined; bool or added
  double scale;
  bool causal;
};

/// Rows [first, first + n) of every head at once.
float rows_amax(const Problem& p, std::int64_t first, std::int64_t n) {
  const std::int64_t B = p.q.size(0), H = p.q.size(1), E = p.q.size(3), groups = p.k.size(1), S = p.k.size(2);
  const at::Tensor q =
      p.q.narrow(2, first, n).reshape({B, groups, H / groups * n, E});  // heads that share keys are rows
  at::Tensor logits = at::matmul(q, p.k.transpose(2, 3)).view({B, H, n, S}).mul_(p.scale);
  if (p.mask.defined()) {
    const at::Tensor mask = p.mask.narrow(2, first, n);
    mask.scalar_type() == at::kBool ? logits.masked_fill_(mask.logical_not(), kMinusInfinity) : logits.add_(mask);
  }
  if (p.causal) {
    const at::Tensor row = at::arange(first, first + n).unsqueeze(1), column = at::arange(S).unsqueeze(0);
    logits.masked_fill_(column.gt(row), kMinusInfinity);
  }
  const at::Tensor largest = logits.amax(-1, /*keepdim=*/true);
  const at::Tensor sums = logits.sub_(largest).exp_().sum(-1);  // a row that sees nothing: NaN
  const at::Tensor seen = sums.isnan().logical_not();
  if (!seen.any().item<bool>()) return 0.0f;
  return 1.0f / sums.masked_fill(seen.logical_not(), std::numeric_limits<float>::infinity()).min().item<float>();
}

/// Nothing can be larger than 1, and causal attention has a 1 in its first row: there the search ends.
float amax_of_problem(const Problem& p) {
  const std::int64_t B = p.q.size(0), groups = p.k.size(1), L = p.q.size(2);
  const std::int64_t per_row = B * p.q.size(1) * p.k.size(2);
  float amax = 0.0f;
  if (per_row > kLogitsAtOnce && (B > 1 || groups > 1)) {  // one sample, then one head's keys, at a time
    const int dim = B > 1 ? 0 : 1;
    const std::int64_t per_group = dim == 0 ? 1 : p.q.size(1) / groups;
    for (std::int64_t i = 0; i < p.k.size(dim) && amax < 1.0f; ++i) {
      Problem part = p;
      part.q = p.q.narrow(dim, i * per_group, per_group);
      part.k = p.k.narrow(dim, i, 1);
      if (p.mask.defined()) part.mask = p.mask.narrow(dim, i * per_group, per_group);
      amax = std::max(amax, amax_of_problem(part));
    }
    return amax;
  }
  const std::int64_t rows = std::max<std::int64_t>(1, kLogitsAtOnce / per_row);
  for (std::int64_t first = 0, n = 1; first < L && amax < 1.0f; first += n, n = std::min(rows, L - first))
    amax = std::max(amax, rows_amax(p, first, n));
  return amax;
}

/// [..., H, L, E] -> [B, H, L, E]; heads and samples that are missing count as one.
at::Tensor four_dims(at::Tensor t) {
  while (t.dim() < 4) t = t.unsqueeze(0);
  return t.flatten(0, t.dim() - 4);
}

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  return name == "silu" ? at::silu(x) : name == "gelu" ? at::gelu(x) : at::relu(x);
}

}  // namespace

configs::KindTable<ShowCall>& shown_calls() {
  static auto& table = *new configs::KindTable<ShowCall>;
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
  const Shown observed = show != nullptr ? (*show)(call.inputs, outputs) : Shown{call.inputs, outputs};
  const auto inputs_expected = static_cast<std::size_t>(kind.inputs),
             outputs_expected = static_cast<std::size_t>(kind.outputs);
  TORCH_CHECK(observed.inputs.size() == inputs_expected && observed.outputs.size() == outputs_expected,
              "[measure] a module of kind ", configs::name_of(kind.kind), ": expected ", inputs_expected,
              " inputs and ", outputs_expected, " outputs, found ", observed.inputs.size(), " and ",
              observed.outputs.size());
  watching->observe({record_}, observed.inputs, observed.outputs);
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
    // A result that is reduced over the processes has no bias: each process would add its own.
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
  return tag != nullptr ? runtime::handler_as<WeightWatcher>(tag->handler.get()) : nullptr;
}

void remove_retired(const at::Tensor& weight) {
  const WeightWatcher* watcher = watcher_on(weight);
  if (watcher != nullptr && watcher->recorder() == nullptr) runtime::untag_weight(weight);
}

// Everything here runs on the CPU's view of the device's memory: no watched op is met, nothing is recorded.

float largest_probability(const runtime::AttentionCall& call) {
  const at::NoGradGuard no_grad;
  Problem p;
  p.q = four_dims(host(call.q)).to(at::kFloat);
  p.k = four_dims(host(call.k)).to(at::kFloat);
  if (p.q.numel() == 0 || p.k.numel() == 0) return 0.0f;
  if (p.k.size(0) != p.q.size(0)) p.k = p.k.expand({p.q.size(0), -1, -1, -1});
  if (call.mask.has_value() && call.mask->defined()) {
    auto sizes = call.q.sizes().vec();
    sizes.back() = p.k.size(2);
    p.mask = four_dims(host(*call.mask).expand(sizes));
  }
  p.scale = call.scale.value_or(1.0 / std::sqrt(static_cast<double>(call.q.size(-1))));
  p.causal = call.is_causal;
  return amax_of_problem(p);
}

std::vector<float> expert_amax(const runtime::MoeCall& call) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = host(call.hidden_states), table = host(call.expert_routing_table);
  std::vector<float> amax;
  for (std::size_t e = 0; e < call.w12.size(); ++e) {
    const at::Tensor tokens = table.eq(call.experts_min + static_cast<std::int64_t>(e)).any(-1).nonzero().flatten();
    if (tokens.numel() == 0) {
      amax.push_back(0.0f);
      continue;
    }
    const at::Tensor w12 = host(call.w12[e]), x = hidden.index_select(0, tokens);
    const auto gate_up = (call.permuted_weights ? at::linear(x, w12) : at::matmul(x, w12)).chunk(2, -1);
    amax.push_back(amax_of(activate(call.activation, gate_up[0]).mul(gate_up[1])));
  }
  return amax;
}

}  // namespace fp8::measure
