// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/fp8_attention.h"

#include <ATen/ops/_unsafe_view.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/runtime/ops/attention/attention.h"
#include "fp8/runtime/tape/recorder.h"
#include "fp8/transformer_engine/products/product_call.h"

namespace fp8::te {
namespace {

namespace ops = runtime::ops;
using torch::autograd::AutogradContext, torch::autograd::variable_list;

constexpr int kQ = 0, kK = 1, kV = 2, kP = 3;  // forward tensors
constexpr int kDO = 0, kDS = 1;                // backward tensors

struct Call : ProductCall {
  runtime::DeviceKind device = runtime::DeviceKind::gaudi3;
  Fp8AttentionOptions options;
  std::int64_t groups = 0;  ///< > 0: q is seen as [B, G, H / G, L, D], k and v as [B, G, 1, S, D]
  at::ScalarType dtype = at::kFloat;
  std::array<std::vector<std::int64_t>, 3> sizes;  ///< of q, k, v
  float d_q = 1, d_k = 1, d_v = 1, q_s = 1, d_s = 1;
};

ops::Scale one(float value) { return {{value}, {}}; }

/// Attention takes operands along their columns alone.
OperandPlan plan_of(const Call& call, Role role, int index, const StepScales& scales) {
  OperandPlan plan = call.plan(role, index, scales);
  plan.need_rows = false;
  return plan;
}

float max_of(const Call& call, Pass pass) {
  const Role role = pass == Pass::forward ? Role::input : Role::grad;
  return recipes::fp8_max(recipes::scaling_of(call.recipe).format(role), call.dialect);
}

/// [B, H, ...] -> [B, G, H / G, ...], or [B, G, ...] -> [B, G, 1, ...].
at::Tensor grouped(const Call& call, const at::Tensor& t) {
  if (call.groups == 0) return t;
  return t.size(1) == call.groups ? t.unsqueeze(2) : t.unflatten(1, {call.groups, t.size(1) / call.groups});
}

/// grouped() for q and its gradients, whose heads may be as many as the groups only where there is nothing to group.
at::Tensor grouped_mask(const Call& call, const at::Tensor& mask, std::int64_t heads) {
  if (call.groups == 0 || !mask.defined() || mask.dim() < 3) return mask;
  const std::int64_t head_dim = mask.dim() - 3;
  return mask.size(head_dim) == heads ? mask.unflatten(head_dim, {call.groups, heads / call.groups})
                                      : mask.unsqueeze(head_dim);
}

/// The fp8 forward. kept: where a gradient is wanted gets {q, k, v codes, P codes, dm} or {q, k, v codes, m, linv,
/// seed}, and the mask.
at::Tensor forward_product(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                           Call& call, variable_list* kept) {
  const auto cast = [&](const at::Tensor& t, int index, float* scale_inv) {
    const OperandPair pair =
        quantize_operand(t.detach().to(call.activation).contiguous(), plan_of(call, Role::input, index, call.scales));
    *scale_inv = pair.columns.scale_inv;
    return grouped(call, pair.columns.codes);
  };
  const at::Tensor q8 = cast(q, kQ, &call.d_q), k8 = cast(k, kK, &call.d_k), v8 = cast(v, kV, &call.d_v);
  const recipes::RecipeScaling scaling = recipes::scaling_of(call.recipe);
  if (scaling.keeps_history()) {
    call.q_s = call.scales.scale[kP];
    call.d_s = call.scales.scale_inv[kP];
  } else {
    call.q_s = current_scale_of(1.0f, scaling.format(Role::input), call.dialect, scaling.input,
                                call.activation);  // P <= 1
    call.d_s = 1.0f / call.q_s;
  }
  ops::SdpaScales s;
  s.d_q = one(call.d_q), s.d_k = one(call.d_k), s.d_v = one(call.d_v), s.q_s = one(call.q_s), s.d_s = one(call.d_s);
  const at::Tensor seen = grouped_mask(call, mask, q.size(1));
  const std::optional<at::Tensor> m = seen.defined() ? std::optional<at::Tensor>(seen) : std::nullopt, none;
  const ops::SdpaOptions o{.mask = m,
                           .p = call.options.p,
                           .scale = call.options.scale,
                           .is_causal = call.options.is_causal,
                           .softmax_mode = call.options.softmax_mode,
                           .valid_seq_len = none,
                           .seq_padding_type = "left",
                           .seed = {}};
  at::Tensor out, amax;
  if (call.options.recompute || kept == nullptr) {
    auto r = ops::sdpa_recomp_forward("fp8_sdpa_recomp_fwd", ops::Run::real, q8, k8, v8, o, s, kept != nullptr,
                                      call.scales.record, false);
    out = std::get<0>(r);
    amax = std::get<4>(r);
    if (kept != nullptr) *kept = {q8, k8, v8, std::get<1>(r), std::get<2>(r), std::get<3>(r)};
  } else {
    auto r = ops::sdpa_forward("fp8_sdpa_fwd", ops::Run::real, q8, k8, v8, o, s, call.scales.record);
    out = std::get<0>(r);
    amax = std::get<3>(r);
    *kept = {q8, k8, v8, std::get<1>(r), std::get<2>(r), at::Tensor()};
  }
  if (kept != nullptr) kept->push_back(call.options.recompute ? seen : at::Tensor());  // P knows the mask
  if (call.scales.record)
    call.state->record(Pass::forward, call.scales, kP, *amax.const_data_ptr<float>(), max_of(call, Pass::forward));
  if (call.groups > 0)
    out = at::_unsafe_view(out, {q.size(0), q.size(1), q.size(2), v.size(3)});  // no view to autograd
  return out.to(call.activation);
}

variable_list backward_products(Call& call, const variable_list& saved, const at::Tensor& grad) {
  const at::Tensor g = grad.detach().to(call.activation).contiguous();
  const StepScales scales = call.begin_backward();
  OperandPlan plan = plan_of(call, Role::grad, kDO, scales);
  plan.stochastic = gradient_seed(call.recipe, *call.region, call.state->origin(), scales);
  const OperandPair pair = quantize_operand(g, plan);
  at::Tensor g8 = pair.columns.codes;
  if (call.groups > 0) g8 = g8.unflatten(1, {call.groups, g8.size(1) / call.groups});
  ops::SdpaScales s;
  s.d_q = one(call.d_q), s.d_k = one(call.d_k), s.d_v = one(call.d_v), s.q_s = one(call.q_s), s.d_s = one(call.d_s),
  s.d_do = one(pair.columns.scale_inv);
  ops::SdpaSaved kept;
  if (call.options.recompute) {
    kept.m = saved[3], kept.linv = saved[4], kept.seed = saved[5];
    if (saved[6].defined()) kept.mask = saved[6];
  } else {
    kept.p = saved[3], kept.dm = saved[4];
  }
  const auto run = [&](bool amax) {
    // Of the forward's output only the sizes are looked at.
    return ops::sdpa_backward("fp8_sdpa_bwd", ops::Run::real, g8, saved[0], saved[1], saved[2], kept,
                              call.options.is_causal, call.options.p, call.options.scale, s, amax, g8, call.activation);
  };
  const recipes::RecipeScaling scaling = recipes::scaling_of(call.recipe);
  const bool history = scaling.keeps_history();
  float q_ds = history ? scales.scale[kDS] : 1.0f;
  if (!history) {  // dS is seen only inside the product: once to measure it, once to use it
    const float amax = *std::get<3>(run(true)).const_data_ptr<float>();
    q_ds = current_scale_of(amax, scaling.format(Role::grad), call.dialect, scaling.grad, call.activation);
  }
  s.q_ds = one(q_ds), s.d_ds = one(history ? scales.scale_inv[kDS] : 1.0f / q_ds);
  auto [dq, dk, dv, amax_ds] = run(scales.record);
  if (scales.record)
    call.state->record(Pass::backward, scales, kDS, *amax_ds.const_data_ptr<float>(), max_of(call, Pass::backward));
  variable_list result{dq, dk, dv};
  for (auto& t : result) {
    if (call.groups > 0) t = t.flatten(1, 2);
    t = t.to(call.dtype);
  }
  return result;
}

// The nodes of a recording:
//
//   te::attention           (q, k, v, mask)                       -> o, what backward reads (7), the call
//   te::attention_backward  (do, what backward reads, the call)   -> dq, dk, dv

at::Tensor forward_as_node(runtime::Recorder& recorder, const std::array<at::Tensor, 4>& operands,
                           c10::intrusive_ptr<Call>& call, variable_list* kept) {
  if (current_replay_log() != nullptr)
    recorder.refuse("activation checkpointing of the fp8 attention '" + call->state->name() + "'");
  torch::jit::Stack stack(operands.begin(), operands.end());
  recorder.call(
      "te::attention",
      [like = *call, keeps = kept != nullptr](torch::jit::Stack& s) {
        const PassScope scope(like);
        auto call = c10::make_intrusive<Call>(like);
        call->begin_in_replay();
        variable_list kept;
        at::Tensor out = forward_product(s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), s[3].toTensor(), *call,
                                         keeps ? &kept : nullptr);
        s = {std::move(out)};
        for (at::Tensor& t : kept) s.emplace_back(std::move(t));
        s.push_back(c10::IValue::make_capsule(std::move(call)));
      },
      stack);
  call = c10::static_intrusive_pointer_cast<Call>(stack.back().toCapsule());
  for (std::size_t i = 1; i + 1 < stack.size(); ++i) kept->push_back(stack[i].toTensor());
  return stack[0].toTensor();
}

variable_list backward_as_node(runtime::Recorder& recorder, const c10::intrusive_ptr<Call>& call,
                               const variable_list& saved, const at::Tensor& grad) {
  torch::jit::Stack stack = {grad};
  stack.insert(stack.end(), saved.begin(), saved.end());
  stack.push_back(c10::IValue::make_capsule(call));
  recorder.call(
      "te::attention_backward",
      [](torch::jit::Stack& s) {
        const auto call = c10::static_intrusive_pointer_cast<Call>(s.back().toCapsule());
        const PassScope scope(*call);
        const runtime::DeviceKindScope device(call->device);
        variable_list saved;
        for (std::size_t i = 1; i + 1 < s.size(); ++i) saved.push_back(s[i].toTensor());
        auto gradients = backward_products(*call, saved, s[0].toTensor());
        s.assign(gradients.begin(), gradients.end());
      },
      stack);
  variable_list gradients;
  for (const auto& g : stack) gradients.push_back(g.toTensor());
  return gradients;
}

// In lazy mode what forward makes for backward alone is no tensor of autograd's, but lies with one; the mask is one.

at::Tensor forward_later(const std::array<at::Tensor, 4>& operands, const c10::intrusive_ptr<Call>& call,
                         variable_list* kept) {
  auto sizes = call->sizes[kQ];
  sizes.back() = call->sizes[kV].back();
  std::shared_ptr<variable_list> codes;
  if (kept != nullptr) {
    call->made_for_backward = codes = std::make_shared<variable_list>();
    *kept = {owner_of(codes), call->options.recompute ? operands[3] : at::Tensor()};
  }
  const auto run = [call, codes](at::TensorList given) {
    const OutsideRecomputation outside;
    const PassScope scope(*call);
    call->begin_later();
    variable_list results{forward_product(given[0], given[1], given[2], given[3], *call, codes.get())};
    if (codes != nullptr) codes->back().reset();
    return results;
  };
  return runtime::queue_call("te::attention", operands, {runtime::PromisedResult{std::move(sizes), call->activation}},
                             run)[0];
}

/// What backward_products() reads, where forward ran later.
variable_list saved_of(const Call& call, const at::Tensor& mask) {
  variable_list all = *call.made_for_backward.lock();
  if (mask.defined()) all.back() = grouped_mask(call, mask.detach(), call.sizes[kQ][1]);
  return all;
}

variable_list backward_later(const c10::intrusive_ptr<Call>& call, const variable_list& saved, const at::Tensor& grad) {
  call->state->call_backward(*call->region);
  std::vector<std::optional<runtime::PromisedResult>> promises;
  for (const auto& sizes : call->sizes) promises.emplace_back(runtime::PromisedResult{sizes, call->dtype});
  const auto run = [call, codes = saved[0]](at::TensorList given) {
    const OutsideRecomputation outside;
    const PassScope scope(*call);
    return backward_products(*call, saved_of(*call, given[1]), given[0]);
  };
  return runtime::queue_call("te::attention_backward", {grad, saved[1]}, promises, run);
}

/// The passes where they are called: in a recording, in lazy mode, or now.
at::Tensor forward_pass(const std::array<at::Tensor, 4>& operands, c10::intrusive_ptr<Call>& call,
                        variable_list* kept) {
  if (call->later) return forward_later(operands, call, kept);
  if (auto* recorder = runtime::Recorder::current()) return forward_as_node(*recorder, operands, call, kept);
  const runtime::RunsAtOnce at_once;
  return forward_product(operands[0], operands[1], operands[2], operands[3], *call, kept);
}

variable_list backward_pass(const c10::intrusive_ptr<Call>& call, variable_list saved, const at::Tensor& grad) {
  if (call->later && runtime::queues_calls()) return backward_later(call, saved, grad);
  if (call->later) {  // lazy mode ended in between
    runtime::finish_work();
    saved = saved_of(*call, saved[1]);
    call->later = false;
  }
  if (auto* recorder = runtime::Recorder::current()) return backward_as_node(*recorder, call, saved, grad);
  const runtime::RunsAtOnce at_once;
  return backward_products(*call, saved, grad);
}

struct Fp8Attention : torch::autograd::Function<Fp8Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& mask, c10::intrusive_ptr<Call> call) {
    variable_list kept;
    at::Tensor out = forward_pass({q, k, v, mask.value_or(at::Tensor())}, call, &kept);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(kept);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(5);
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const runtime::autocast::InsideOp inside(std::nullopt);  // the region in force now is the backward thread's
    const runtime::DeviceKindScope device(call->device);
    const runtime::ModuleScope module(call->state->name());
    variable_list result;
    {
      const at::NoGradGuard no_grad;
      result = backward_pass(call, context->get_saved_variables(), gradients[0]);
    }
    for (auto& g : result)
      g = runtime::ops::once_differentiable(g, "the fp8 attention of fp8::te", call->state->name(), gradients);
    result.resize(5);
    return result;
  }
};

void check_operands(const std::string& name, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK((q.dim() == 3 || q.dim() == 4) && k.dim() == q.dim() && v.dim() == q.dim(), "[te::FusedAttention] '",
              name, "': expected q, k and v of 3 or 4 dimensions each, got sizes ", q.sizes(), ", ", k.sizes(), " and ",
              v.sizes());
  TORCH_CHECK(runtime::ops::is_high_precision(q.scalar_type()) && k.scalar_type() == q.scalar_type() &&
                  v.scalar_type() == q.scalar_type(),
              "[te::FusedAttention] '", name, "': expected q, k and v of one dtype of Float, BFloat16, Half, got ",
              q.scalar_type(), ", ", k.scalar_type(), " and ", v.scalar_type());
  if (q.dim() == 3) return;
  TORCH_CHECK(k.size(1) >= 1 && k.size(1) == v.size(1) && q.size(1) % k.size(1) == 0, "[te::FusedAttention] '", name,
              "': expected heads of q to be a multiple of those of k and v, got ", q.size(1), ", ", k.size(1), " and ",
              v.size(1));
}

void check_recipe(const std::string& name, const recipes::Recipe& recipe) {
  TORCH_CHECK(recipes::scaling_of(recipe).one_scale(), "[te::FusedAttention] '", name, "': recipe: found ",
              recipes::name_of(recipe), ", allowed in fp8 attention: delayed, current (one scale per tensor)");
  TORCH_CHECK(recipes::format_of(recipe) != recipes::RecipeFormat::HYBRID ||
                  runtime::device_kind() != runtime::DeviceKind::gaudi2,
              "[te::FusedAttention] '", name,
              "': fp8_format: found HYBRID on GAUDI2, allowed there: E5M2, E4M3 (hybrid mode not supported on Gaudi2: "
              "no product of E4M3 with E5M2)");
}

}  // namespace

void record_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::shared_ptr<Fp8State>& state) {
  const auto& region = current_region();
  if (region == nullptr || !region->options().calibrating) return;
  const at::NoGradGuard no_grad;
  const StepScales scales = state->begin_forward(*region, true);
  const float max = recipes::fp8_max(recipes::forward_format(recipes::format_of(state->recipe_in(*region))),
                                     runtime::device_dialect("te::FusedAttention"));
  const at::Tensor* const tensors[] = {&q, &k, &v};
  for (int i = 0; i < 3; ++i) state->record(Pass::forward, scales, i, runtime::amax_of(*tensors[i]), max);
  state->record(Pass::forward, scales, kP, 1.0f, max);
}

at::Tensor fp8_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& any_mask, const std::shared_ptr<Fp8State>& state,
                         const Fp8AttentionOptions& options) {
  at::Tensor q = query, k = key, v = value, mask = any_mask;
  runtime::settle_devices("te::FusedAttention", {&q, &k, &v, &mask});
  check_operands(state->name(), q, k, v);
  runtime::ops::refuse_tangents({q, k, v}, "fp8 attention of fp8::te", state->name());
  TORCH_CHECK(!mask.defined() || !mask.requires_grad() || !at::GradMode::is_enabled(), "[te::FusedAttention] '",
              state->name(), "': attention_mask: found one that requires a gradient, allowed: masks without");
  const std::shared_ptr<Fp8Region>& region = current_region();
  TORCH_CHECK(region != nullptr && region->enabled(), "[te::FusedAttention] '", state->name(),
              "': expected an enabled fp8_autocast region, found none");
  auto call = c10::make_intrusive<Call>();
  call->state = state;
  call->options = options;
  call->region = region;
  call->recipe = state->recipe_in(*region);
  check_recipe(state->name(), call->recipe);
  call->dialect = runtime::device_dialect("te::FusedAttention");
  call->device = runtime::device_kind();
  call->dtype = q.scalar_type();
  call->activation = runtime::autocast::region_dtype().value_or(q.scalar_type());
  if (q.dim() == 4 && k.size(1) != q.size(1)) call->groups = k.size(1);
  call->sizes = {q.sizes().vec(), k.sizes().vec(), v.sizes().vec()};
  const bool grad_mode = at::GradMode::is_enabled(),
             learns = q.requires_grad() || k.requires_grad() || v.requires_grad();
  call->needs_grad = grad_mode && learns;
  const bool first_of_two_runs = !grad_mode && current_replay_log() != nullptr;
  call->trains = options.training && (grad_mode || first_of_two_runs);
  call->begin_at_call(/*may_wait=*/options.p == 0);
  const runtime::autocast::InsideOp inside(std::nullopt);
  const runtime::InterceptionPause pause;
  const runtime::ModuleScope module(state->name());
  if (!call->needs_grad) {
    const at::NoGradGuard no_grad;
    return forward_pass({q, k, v, mask}, call, nullptr);
  }
  return Fp8Attention::apply(q, k, v, mask.defined() ? std::optional<at::Tensor>(mask.detach()) : std::nullopt, call);
}

}  // namespace fp8::te
