// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/fp8_linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/tape/recorder.h"
#include "fp8/transformer_engine/products/product_call.h"

namespace fp8::te {
namespace {

using runtime::Fp8Tensor;
using torch::autograd::AutogradContext, torch::autograd::variable_list;

struct Call : ProductCall {
  Fp8LinearOptions options;
  std::optional<bool> first_microbatch;
  at::ScalarType x_dtype = at::kFloat, weight_grad = at::kFloat, bias_dtype = at::kFloat;
  bool has_bias = false;
  bool x_learns = false, weight_learns = false;  ///< of what the backward pass may be asked for: dx needs w, dw needs x
  bool gathered = false;                         ///< the weight has no values, its codes came from several ranks
  bool exact_weight_grad = false;                ///< override_linear_precision: dw from the unquantized operands
  std::vector<std::int64_t> x_sizes;
  Fp8Tensor x_rows, weight_rows;  ///< without their tensors

  bool keeps_input() const { return exact_weight_grad || options.save_original_input; }
  /// Codes that stay between microbatches cost nothing to keep; cast again, they would have this microbatch's scale.
  bool keeps_weight() const { return !options.minimize_memory || first_microbatch.has_value() || gathered; }
};

/// [..., n] -> [rows, n]; n may be 0.
at::Tensor as_matrix(const at::Tensor& t) {
  return t.reshape({c10::multiply_integers(t.sizes().slice(0, t.dim() - 1)), t.size(-1)});
}

/// Codes that ranks have gathered, and their amax noted. Throws c10::Error where the pass has another scale by now.
OperandPair gathered_operands(const GatheredWeight& gathered, const at::Tensor& weight, const Call& call) {
  const Fp8Tensor& w = gathered.operand;
  TORCH_CHECK(w.codes.sizes() == weight.sizes(), "[fp8_linear] '", call.state->name(),
              "': found gathered codes of sizes ", w.codes.sizes(), ", expected the weight's ", weight.sizes());
  TORCH_CHECK(!gathered.delayed || w.scale_inv == call.scales.scale_inv[1], "[fp8_linear] '", call.state->name(),
              "': its weight was gathered in fp8 with scale_inv ", w.scale_inv, ", and this pass has ",
              call.scales.scale_inv[1],
              ": expected one forward pass of a module each time that its weight is gathered, and backward before the "
              "next forward where it is recomputed");
  call.state->record(Pass::forward, call.scales, 1, gathered.amax,
                     recipes::fp8_max(runtime::format_of(w.codes.scalar_type()), call.dialect));
  return {w, w};
}

/// The weight in fp8: cast, or one of an earlier microbatch, or the parameter's own codes, or gathered ones.
OperandPair weight_operands(const at::Tensor& weight, Call& call) {
  if (auto* parameter = fp8_weight(weight)) {
    const Fp8Tensor w = parameter->operand(weight.detach());
    return {w, w};
  }
  if (auto kept = call.first_microbatch == false ? call.state->kept() : std::nullopt) return *std::move(kept);
  if (const auto gathered = call.later ? std::nullopt : call.state->gathered()) {
    call.gathered = true;
    OperandPair pair = gathered_operands(*gathered, weight, call);
    if (call.first_microbatch.has_value()) call.state->keep(pair);
    return pair;
  }
  const at::Tensor values = weight.detach().contiguous();
  OperandPlan plan = call.plan(Role::weight, 1, call.scales);
  const bool stays = call.first_microbatch.has_value();
  plan.need_rows = stays || (call.x_learns && !call.options.minimize_memory);
  plan.both_stay = stays;
  if (!call.first_microbatch.has_value()) return quantize_operand(values, plan);
  const runtime::OrdinaryTensors ordinary;
  OperandPair pair = quantize_operand(values, plan);
  call.state->keep(pair);
  return pair;
}

at::Tensor without_tensors(Fp8Tensor& operand, at::Tensor& grid) {
  grid = std::exchange(operand.grid, {});
  return std::exchange(operand.codes, {});
}

/// The forward product. Fills `call` and, where a gradient is wanted, what has to be kept: {x codes, x grid, w codes, w
/// grid, weight}, of which the backward pass reads some.
at::Tensor forward_product(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           Call& call, variable_list* kept) {
  const at::Tensor x2 = as_matrix(x.detach().to(call.activation)).contiguous();
  OperandPlan plan = call.plan(Role::input, 0, call.scales);
  plan.need_rows = call.weight_learns && !call.keeps_input();
  plan.both_stay = true;  // the input's codes stay with it for the next product, and for its own backward pass
  if (!call.keeps_input()) plan.input = x;  // else codes would lie beside the input for as long as it is kept
  OperandPair input = quantize_operand(x2, plan);
  OperandPair w = weight_operands(weight, call);
  std::optional<at::Tensor> b;
  if (call.has_bias) {
    const bool rounded = call.activation == at::kFloat && recipes::scaling_of(call.recipe).bf16_bias;
    b = rounded ? bias->detach().to(at::kBFloat16) : bias->detach();
  }
  at::Tensor y = runtime::matmul(input.columns, false, w.columns, true, call.activation, b);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  if (kept != nullptr) {
    at::Tensor x_grid, w_grid;
    call.x_rows = std::move(input.rows);
    call.weight_rows = std::move(w.rows);
    const at::Tensor x_codes = without_tensors(call.x_rows, x_grid),
                     w_codes = without_tensors(call.weight_rows, w_grid);
    const bool keep_weight = call.keeps_weight();
    kept->resize(5);
    if (call.weight_learns && call.keeps_input()) (*kept)[0] = x2;
    if (call.weight_learns && !call.keeps_input()) (*kept)[0] = x_codes, (*kept)[1] = x_grid;
    if (call.x_learns && keep_weight) (*kept)[2] = w_codes, (*kept)[3] = w_grid;
    if (call.x_learns && !keep_weight) (*kept)[4] = weight.detach();
  }
  // As the op's own result it must be no view: the code around changes results in place (linear adds its bias so).
  const at::AutoDispatchBelowADInplaceOrView own_memory;
  return at::_unsafe_view(y, sizes);
}

/// A tensor along its rows, cast a second time: with the scales of the first, recording nothing.
Fp8Tensor recast(const Call& call, Role role, int index, const at::Tensor& values) {
  StepScales scales = call.scales;
  scales.record = false;
  OperandPlan plan = call.plan(role, index, scales);
  plan.need_rows = true;
  plan.need_columns = false;
  plan.statistics = false;
  return quantize_operand(values.contiguous(), plan).rows;
}

/// The input along its rows, as it was in the forward pass.
Fp8Tensor input_of(const Call& call, const variable_list& saved) {
  if (call.options.save_original_input) return recast(call, Role::input, 0, saved[0]);
  Fp8Tensor x = call.x_rows;
  x.codes = saved[0];
  x.grid = saved[1];
  return x;
}

/// The weight along its rows, as it was in the forward pass.
Fp8Tensor weight_of(const Call& call, const variable_list& saved) {
  Fp8Tensor w = call.weight_rows;
  if (saved[2].defined()) {
    w.codes = saved[2];
    w.grid = saved[3];
    return w;
  }
  if (auto* parameter = fp8_weight(saved[4])) return parameter->operand(saved[4]);
  return recast(call, Role::weight, 1, saved[4]);
}

/// Which gradients a backward pass gives.
struct Wanted {
  bool x, w, b;
};

variable_list backward_products(const Wanted& wants, const c10::intrusive_ptr<Call>& call, const variable_list& saved,
                                const at::Tensor& grad) {
  const auto [wants_x, wants_w, wants_b] = wants;
  at::Tensor dx, dw, db;
  if (wants_x || wants_w) {
    const at::Tensor g = as_matrix(grad.detach().to(call->activation)).contiguous();
    const StepScales scales = call->begin_backward();
    OperandPlan plan = call->plan(Role::grad, 0, scales);
    plan.need_rows = wants_w && !call->exact_weight_grad;
    plan.need_columns = wants_x;
    plan.stochastic = gradient_seed(call->recipe, *call->region, call->state->origin(), call->scales);
    const OperandPair g8 = quantize_operand(g, plan);
    if (wants_x)
      dx = runtime::matmul(g8.columns, false, weight_of(*call, saved), false, call->activation)
               .reshape(call->x_sizes)
               .to(call->x_dtype);
    if (wants_w && call->exact_weight_grad) {
      dw = at::matmul(g.t(), saved[0]).to(call->weight_grad);
    } else if (wants_w) {
      const Fp8Tensor x = input_of(*call, saved);
      dw = runtime::matmul(g8.rows, true, x, false, call->weight_grad);
    }
  }
  if (wants_b) db = at::sum(as_matrix(grad.detach()), at::IntArrayRef{0}, false, at::kFloat).to(call->bias_dtype);
  return {dx, dw, db, at::Tensor()};
}

// The nodes of a recording:
//
//   te::forward   (x, weight, bias)            -> y, what backward reads (5), the call
//   te::backward  (dy, what backward reads, the call) -> dx, dw, db

at::Tensor forward_as_node(runtime::Recorder& recorder, const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, c10::intrusive_ptr<Call>& call, variable_list* kept) {
  if (current_replay_log() != nullptr)
    recorder.refuse("activation checkpointing of the fp8 product '" + call->state->name() + "'");
  if (call->state->gathered().has_value())
    recorder.refuse("the weight of '" + call->state->name() + "', whose codes several ranks have gathered");
  const bool keeps = kept != nullptr;
  torch::jit::Stack stack = {x, weight, bias.value_or(at::Tensor())};
  recorder.call(
      "te::forward",
      [like = *call, keeps](torch::jit::Stack& s) {
        const PassScope scope(like);
        auto call = c10::make_intrusive<Call>(like);
        call->begin_in_replay();
        variable_list kept;
        const at::Tensor b = s[2].toTensor();
        at::Tensor y = forward_product(s[0].toTensor(), s[1].toTensor(), b.defined() ? std::optional(b) : std::nullopt,
                                       *call, keeps ? &kept : nullptr);
        s = {std::move(y)};
        for (at::Tensor& t : kept) s.emplace_back(std::move(t));
        s.push_back(c10::IValue::make_capsule(std::move(call)));
      },
      stack);
  call = c10::static_intrusive_pointer_cast<Call>(stack.back().toCapsule());
  for (std::size_t i = 1; i + 1 < stack.size(); ++i) kept->push_back(stack[i].toTensor());
  return stack[0].toTensor();
}

variable_list backward_as_node(runtime::Recorder& recorder, const Wanted& wants, const c10::intrusive_ptr<Call>& call,
                               const variable_list& saved, const at::Tensor& grad) {
  torch::jit::Stack stack = {grad};
  stack.insert(stack.end(), saved.begin(), saved.end());
  stack.push_back(c10::IValue::make_capsule(call));
  recorder.call(
      "te::backward",
      [wants](torch::jit::Stack& s) {
        const auto call = c10::static_intrusive_pointer_cast<Call>(s.back().toCapsule());
        const PassScope scope(*call);
        variable_list saved;
        for (std::size_t i = 1; i + 1 < s.size(); ++i) saved.push_back(s[i].toTensor());
        auto gradients = backward_products(wants, call, saved, s[0].toTensor());
        s.assign(gradients.begin(), gradients.end());
      },
      stack);
  variable_list gradients;
  for (const auto& g : stack) gradients.push_back(g.toTensor());
  return gradients;
}

// In lazy mode what forward makes for backward alone is no tensor of autograd's, but lies with one that is.

at::Tensor forward_later(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                         const c10::intrusive_ptr<Call>& call, variable_list* kept) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  std::shared_ptr<variable_list> codes;
  if (kept != nullptr) {
    codes = std::make_shared<variable_list>();
    call->made_for_backward = codes;
    const bool keeps_x = call->weight_learns && call->keeps_input(), keeps_w = call->x_learns && !call->keeps_weight();
    *kept = {owner_of(codes), keeps_x ? x : at::Tensor(), keeps_w ? weight : at::Tensor()};
  }
  const auto run = [call, codes](at::TensorList given) -> std::vector<at::Tensor> {
    const OutsideRecomputation outside;
    const PassScope scope(*call);
    call->begin_later();
    at::Tensor y = forward_product(given[0], given[1], given[2], *call, codes.get());
    if (codes == nullptr) return {y};
    if (call->keeps_input()) (*codes)[0].reset();
    (*codes)[4].reset();
    return {y};
  };
  return runtime::queue_call("te::forward", {x, weight, bias.value_or(at::Tensor())},
                             {runtime::PromisedResult{std::move(sizes), call->activation}}, run)[0];
}

/// The forward pass where it is called: in a recording, in lazy mode, or now.
at::Tensor forward_pass(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        c10::intrusive_ptr<Call>& call, variable_list* kept) {
  if (call->later) return forward_later(x, weight, bias, call, kept);
  if (auto* recorder = runtime::Recorder::current()) return forward_as_node(*recorder, x, weight, bias, call, kept);
  const runtime::RunsAtOnce at_once;
  return forward_product(x, weight, bias, *call, kept);
}

/// What backward_products() reads, where forward ran later. saved: forward_later()'s.
variable_list saved_of(const Call& call, const variable_list& codes, const variable_list& saved) {
  variable_list all = codes;
  all.resize(5);
  if (saved[1].defined()) all[0] = as_matrix(saved[1].detach().to(call.activation)).contiguous();
  if (saved[2].defined()) all[4] = saved[2].detach();
  return all;
}

variable_list backward_later(const Wanted& wants, const c10::intrusive_ptr<Call>& call, const variable_list& saved,
                             const at::Tensor& grad) {
  using runtime::PromisedResult;
  const auto codes = call->made_for_backward.lock();
  const auto promise = [](bool wanted, std::vector<std::int64_t> sizes, at::ScalarType dtype) {
    return wanted ? std::optional(PromisedResult{std::move(sizes), dtype}) : std::nullopt;
  };
  const auto rows = grad.size(-1), cols = call->x_sizes.back();
  if (wants.x || wants.w) call->state->call_backward(*call->region);
  const auto run = [wants, call, codes](at::TensorList given) {
    const OutsideRecomputation outside;
    const PassScope scope(*call);
    const variable_list none;
    auto gradients =
        backward_products(wants, call, saved_of(*call, codes != nullptr ? *codes : none, given.vec()), given[0]);
    gradients.pop_back();
    return gradients;
  };
  const auto kept = [&](std::size_t i) { return saved.empty() ? at::Tensor() : saved[i]; };
  auto gradients = runtime::queue_call(
      "te::backward", {grad, kept(1), kept(2)},
      {promise(wants.x, call->x_sizes, call->x_dtype), promise(wants.w, {rows, cols}, call->weight_grad),
       promise(wants.b, {rows}, call->bias_dtype)},
      run);
  gradients.emplace_back();
  return gradients;
}

/// The backward pass where it is called: in a recording, in lazy mode, or now.
variable_list backward_pass(const Wanted& wants, const c10::intrusive_ptr<Call>& call, variable_list saved,
                            const at::Tensor& grad) {
  if (call->later && runtime::queues_calls()) return backward_later(wants, call, saved, grad);
  if (call->later) {  // lazy mode ended in between
    runtime::finish_work();
    call->later = false;
    if (!saved.empty()) saved = saved_of(*call, *call->made_for_backward.lock(), saved);
  }
  if (auto* recorder = runtime::Recorder::current()) return backward_as_node(*recorder, wants, call, saved, grad);
  const runtime::RunsAtOnce at_once;
  return backward_products(wants, call, saved, grad);
}

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, c10::intrusive_ptr<Call> call) {
    variable_list kept;
    at::Tensor y = forward_pass(x, weight, bias, call, &kept);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(kept);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(4);
    // The region in force now is the backward thread's, not the forward's: dtypes are those of the call.
    const runtime::autocast::InsideOp inside(std::nullopt);
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const runtime::ModuleScope module(call->state->name());
    variable_list result;
    {
      const at::NoGradGuard no_grad;
      const Wanted wants = {context->needs_input_grad(0), context->needs_input_grad(1),
                            call->has_bias && context->needs_input_grad(2)};
      variable_list saved;
      if (wants.x || wants.w) saved = context->get_saved_variables();  // first: it throws where backward ran before
      result = backward_pass(wants, call, std::move(saved), gradients[0]);
    }
    for (auto& g : result)
      g = runtime::ops::once_differentiable(g, "the fp8 product of fp8::te", call->state->name(), gradients);
    return result;
  }
};

void check_operands(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    const std::string& name) {
  using runtime::ops::is_high_precision;
  TORCH_CHECK(weight.dim() == 2, "[fp8_linear] '", name, "': expected a weight of two dimensions, got sizes ",
              weight.sizes());
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == weight.size(1), "[fp8_linear] '", name,
              "': expected an input whose last dimension is ", weight.size(1), ", got sizes ", x.sizes());
  TORCH_CHECK(is_high_precision(x.scalar_type()), "[fp8_linear] '", name,
              "': expected an input of dtype Float, BFloat16 or Half, got ", x.scalar_type());
  TORCH_CHECK(
      is_high_precision(weight.scalar_type()) || fp8_weight(weight) != nullptr, "[fp8_linear] '", name,
      "': expected a weight of dtype Float, BFloat16, Half, or one that quantized_model_init holds in fp8 on hpu, got ",
      weight.scalar_type(), " on ", weight.device());
  if (!bias.has_value() || !bias->defined()) return;
  TORCH_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0) && is_high_precision(bias->scalar_type()),
              "[fp8_linear] '", name, "': expected a bias of ", weight.size(0),
              " elements of dtype Float, BFloat16 or Half, got sizes ", bias->sizes(), " of ", bias->scalar_type());
}

}  // namespace

at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& any_weight, const std::optional<at::Tensor>& any_bias,
                      const std::shared_ptr<Fp8State>& state, const Fp8LinearOptions& options) {
  at::Tensor x = input, weight = any_weight;
  std::optional<at::Tensor> bias = any_bias.value_or(at::Tensor());
  if (x.device() != weight.device() || (bias->defined() && bias->device() != weight.device()))
    runtime::settle_devices("fp8_linear '" + state->name() + "'", {&x, &weight, &*bias});
  check_operands(x, weight, bias, state->name());
  runtime::ops::refuse_tangents({x, weight, bias.value_or(at::Tensor())}, "the fp8 product of fp8::te", state->name());
  const std::shared_ptr<Fp8Region>& region = current_region();
  TORCH_CHECK(region != nullptr && region->enabled(), "[fp8_linear] '", state->name(),
              "': expected an enabled fp8_autocast region, found none");
  auto call = c10::make_intrusive<Call>();
  call->state = state;
  call->region = region;
  call->recipe = state->recipe_in(*region);
  call->exact_weight_grad = recipes::scaling_of(call->recipe).exact_weight_grad;
  call->dialect = runtime::device_dialect("fp8_linear");
  call->options = options;
  call->first_microbatch =
      options.is_first_microbatch.has_value() ? options.is_first_microbatch : region->options().is_first_microbatch;
  call->activation = runtime::autocast::region_dtype().value_or(x.scalar_type());
  call->x_dtype = x.scalar_type();
  call->weight_grad = c10::isFloat8Type(weight.scalar_type()) ? gradient_dtype(weight) : weight.scalar_type();
  call->has_bias = bias.has_value() && bias->defined();
  if (call->has_bias) call->bias_dtype = bias->scalar_type();
  call->x_sizes = x.sizes().vec();
  const bool grad_mode = at::GradMode::is_enabled();
  call->x_learns = grad_mode && x.requires_grad();
  call->weight_learns = grad_mode && weight.requires_grad();
  const bool learns = x.requires_grad() || weight.requires_grad() || (call->has_bias && bias->requires_grad());
  call->needs_grad = grad_mode && learns;
  const bool first_of_two_runs = current_replay_log() != nullptr;
  // A frozen product is part of training too: it needs scales, and its backward pass leads to what learns before it.
  call->trains = options.training && (grad_mode || first_of_two_runs);
  call->begin_at_call(/*may_wait=*/true);
  const runtime::autocast::InsideOp inside(std::nullopt);
  const runtime::InterceptionPause pause;
  const runtime::ModuleScope module(state->name());
  if (!call->needs_grad) {
    const at::NoGradGuard no_grad;
    return forward_pass(x, weight, bias, call, nullptr);
  }
  return Fp8Linear::apply(x, weight, call->has_bias ? bias : std::nullopt, call);
}

void record_operands(const at::Tensor& x, const at::Tensor& weight, const std::shared_ptr<Fp8State>& state) {
  const auto& region = current_region();
  if (region == nullptr || !region->options().calibrating) return;
  const at::NoGradGuard no_grad;
  StepScales scales = state->begin_forward(*region, true);
  const float max = recipes::fp8_max(recipes::forward_format(recipes::format_of(state->recipe_in(*region))),
                                     runtime::device_dialect("fp8_autocast"));
  const float amax = runtime::amax_of(x);
  state->record(Pass::forward, scales, 0, amax, max);
  state->record_input(scales, 0, amax);
  if (!c10::isFloat8Type(weight.scalar_type())) state->record(Pass::forward, scales, 1, runtime::amax_of(weight), max);
}

}  // namespace fp8::te
