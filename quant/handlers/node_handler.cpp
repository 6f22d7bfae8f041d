// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/node_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>

#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/ops/moe/moe_ops.h"

namespace fp8::quant {

NodeHandler::NodeHandler(NodeScheme scheme) : scheme_(std::move(scheme)) { make_quantizers(); }

void NodeHandler::make_quantizers() {
  inputs_.clear();
  outputs_.clear();
  const NodeHandlerRow needed = node_handler_row(scheme_.kind);
  if (scheme_.dynamic) {
    const auto at_each_call = [this](DynamicScale shared) {
      using runtime::ScaleLayout;
      if (shared == DynamicScale::probability) return Quantizer(scheme_, 1.0f / scheme_.fp8_max());
      const bool one = !scheme_.per_token || shared == DynamicScale::tensor;
      const ScaleLayout each = shared == DynamicScale::column ? ScaleLayout::per_column() : ScaleLayout::per_row();
      return Quantizer(scheme_, one ? ScaleLayout::per_tensor() : each, scheme_.dynamic_method);
    };
    for (const DynamicScale shared : needed.inputs) inputs_.push_back(at_each_call(shared));
    for (const DynamicScale shared : needed.outputs) outputs_.push_back(at_each_call(shared));
    return;
  }
  if (scheme_.input_scale_inv.size() < needed.inputs.size() || scheme_.output_scale_inv.size() < needed.outputs.size())
    io::fail<std::invalid_argument>("{}: expected {} input and {} output scales, found {} and {}",
                                    configs::name_of(scheme_.kind), needed.inputs.size(), needed.outputs.size(),
                                    scheme_.input_scale_inv.size(), scheme_.output_scale_inv.size());
  for (float s : scheme_.input_scale_inv) inputs_.emplace_back(scheme_, s);
  for (float s : scheme_.output_scale_inv) outputs_.emplace_back(scheme_, s);
}

void NodeHandler::set_input_scale_inv(std::size_t index, float scale_inv) {
  if (scheme_.dynamic || index >= inputs_.size())
    io::fail<std::invalid_argument>("input {}: found no such static scale in {}", index, describe());
  const Quantizer checked(scheme_, scale_inv);
  scheme_.input_scale_inv[index] = scale_inv;
  if (configs::info_of(scheme_.kind).cache && index < scheme_.output_scale_inv.size())
    scheme_.output_scale_inv[index] = scale_inv;
  make_quantizers();
}

void NodeHandler::set_output_scale_inv(std::size_t index, float scale_inv) {
  if (scheme_.dynamic || index >= outputs_.size())
    io::fail<std::invalid_argument>("output {}: found no such static scale in {}", index, describe());
  if (configs::info_of(scheme_.kind).cache) return set_input_scale_inv(index, scale_inv);
  const Quantizer checked(scheme_, scale_inv);
  scheme_.output_scale_inv[index] = scale_inv;
  make_quantizers();
}

std::shared_ptr<NodeHandler> make_node_handler(const NodeScheme& scheme) {
  return node_handler_row(scheme.kind).make(scheme);
}

namespace {

using configs::ModuleKind;

configs::KindTable<NodeHandlerRow>& node_handlers() {
  using enum DynamicScale;
  static auto& table = *new configs::KindTable<NodeHandlerRow>({
      {ModuleKind::matmul, {.inputs = {row, column}, .make = make_handler<Fp8MatmulHandler>}},
      {ModuleKind::b2b_matmul, {.inputs = {row, column}, .make = make_handler<Fp8MatmulHandler>}},
      {ModuleKind::softmax, {.outputs = {probability}, .make = make_handler<Fp8SoftmaxHandler>}},
      {ModuleKind::fused_sdpa,
       {.inputs = {tensor, tensor, tensor, probability}, .make = make_handler<Fp8AttentionHandler>}},
      {ModuleKind::kv_cache, {.inputs = {row}, .make = make_handler<Fp8KvCacheHandler>}},
      {ModuleKind::dynamic_moe, {.inputs = {row, row}, .make = make_handler<Fp8MoeHandler>}},
  });
  return table;
}

/// A scale of each of the first tensors, as many as the handler has.
NodeScaleRule one_of_each(const NodeHandlerRow& handler) {
  return [inputs = handler.inputs.size(), outputs = handler.outputs.size()](NodeScheme& scheme,
                                                                            const NodeMeasurement& from) {
    for (std::size_t i = 0; i < inputs; ++i) scheme.input_scale_inv.push_back(from.input(i));
    for (std::size_t i = 0; i < outputs; ++i) scheme.output_scale_inv.push_back(from.output(i));
  };
}

const NodeKind& with_handler(const NodeKind& kind) {
  if (kind.handler.make) return kind;
  io::fail<std::invalid_argument>("module kind {}: handler.make is missing", io::in_quotes(kind.kind.name));
}

using runtime::Fp8Tensor;

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "gelu") return at::gelu(x);
  TORCH_CHECK(name == "relu", "[mixture_of_experts] activation: found '", name, "', allowed: silu, gelu, relu");
  return at::relu(x);
}

const Fp8Handler& handler_of(const at::Tensor& weight) {
  const auto* handler = fp8_handler(weight);
  TORCH_CHECK(handler != nullptr, "[mixture_of_experts] expected experts' weights in fp8, found ", weight.scalar_type(),
              "; convert them with their module");
  TORCH_CHECK(handler->scheme().weights != Granularity::block, "[mixture_of_experts] ",
              runtime::find_tag(weight)->module_names(),
              ": found block scales, allowed are scales per tensor or channel");
  return *handler;
}

at::Tensor values_of(const at::Tensor& weight, at::ScalarType dtype) {
  return handler_of(weight).all_values(weight, dtype);
}

/// Rows of codes, with the scales of those rows.
Fp8Tensor rows_of(Fp8Tensor x, const at::Tensor& rows) {
  x.codes = x.codes.view(at::kByte).index_select(0, rows).view(x.codes.scalar_type());
  if (!x.layout.one()) x.grid = x.grid.index_select(0, rows);
  return x;
}

/// Adds each expert's result, weighted, to the tokens routed to it. expert(e, tokens) -> [n, H].
template <class Expert>
at::Tensor combine(const runtime::MoeCall& call, const at::Tensor& like, const at::Tensor& router_weights,
                   const Expert& expert) {
  at::Tensor y = at::zeros_like(like);
  for (std::size_t e = 0; e < call.w12.size(); ++e) {
    const at::Tensor chosen = call.expert_routing_table.eq(call.experts_min + static_cast<std::int64_t>(e)).nonzero();
    if (chosen.size(0) == 0) continue;
    const at::Tensor token = chosen.select(1, 0), slot = chosen.select(1, 1);
    const at::Tensor weight = router_weights.index({token, slot}).unsqueeze(-1);
    y = y.index_add(0, token, expert(e, token).mul(weight).to(y.scalar_type()));
  }
  return y;
}

}  // namespace

NodeHandlerRow node_handler_row(ModuleKind kind) {
  if (const auto row = node_handlers().find(kind)) return *row;
  io::fail<std::invalid_argument>("no handler for modules of kind {}", configs::name_of(kind));
}

NodeKindRegistration::NodeKindRegistration(NodeKind row)
    : kind_(with_handler(row).kind),
      scales_(node_scale_rules(), kind(),
              std::make_shared<const NodeScaleRule>(row.scales ? std::move(row.scales) : one_of_each(row.handler))),
      handler_(node_handlers(), kind(), std::make_shared<const NodeHandlerRow>(std::move(row.handler))) {
  if (row.show)
    show_.emplace(measure::shown_calls(), kind(), std::make_shared<const measure::ShowCall>(std::move(row.show)));
}

at::Tensor Fp8MoeHandler::expert(const runtime::MoeCall& call, std::size_t e, const Fp8Tensor& x,
                                 at::ScalarType compute) const {
  const auto product = [&](const Fp8Tensor& a, const at::Tensor& w) {
    return runtime::matmul(a, false, handler_of(w).all_of(w), true, compute);
  };
  const auto parts = product(x, call.w12[e]).chunk(2, -1);
  const at::Tensor h = activate(call.activation, parts[0]).mul(parts[1]);
  return product(intermediate(e).cast(h), call.w3[e]);
}

at::Tensor Fp8MoeHandler::with_operator(const runtime::MoeCall& call, const Fp8Tensor& x) const {
  const runtime::DeviceKindScope kind(kind_of(scheme().dialect));
  runtime::ops::MoeRoute route{x.codes,         call.expert_routing_table, call.router_weights, true,
                               call.activation, call.experts_min,          call.experts_max};
  std::vector<at::Tensor> d_intermediate, d_w12, d_w3;
  for (std::size_t e = 0; e < call.w12.size(); ++e) {
    d_intermediate.push_back(at::full({1}, intermediate(e).scale_inv(), at::kFloat));
    d_w12.push_back(handler_of(call.w12[e]).weight_scale_inv());
    d_w3.push_back(handler_of(call.w3[e]).weight_scale_inv());
  }
  return runtime::ops::call_mixture_of_experts_fp8(route, call.w12, call.w3, at::full({1}, x.scale_inv, at::kFloat),
                                                   d_intermediate, d_w12, d_w3);
}

at::Tensor Fp8MoeHandler::mix(const runtime::MoeCall& call, const at::Tensor& hidden) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::ScalarType compute = compute_dtype(hidden);
  const Fp8Tensor x = input(0).cast(hidden);
  if (compute == at::kBFloat16 && !scheme().dynamic) return with_operator(call, x);
  return combine(call, hidden.to(compute), call.router_weights,
                 [&](std::size_t e, const at::Tensor& token) { return expert(call, e, rows_of(x, token), compute); });
}

at::Tensor Fp8MoeHandler::mixture_of_experts(const runtime::MoeCall& call) {
  TORCH_CHECK(call.permuted_weights, "[mixture_of_experts] expected permuted_weights in a converted module");
  TORCH_CHECK(scheme().dynamic || scheme().input_scale_inv.size() == call.w12.size() + 1,
              "[mixture_of_experts] expected ", call.w12.size() + 1, " scales (hidden states, each expert), found ",
              scheme().input_scale_inv.size());
  TORCH_CHECK(call.hidden_states.dim() == 2, "[mixture_of_experts] expected hidden states [tokens, H], got ",
              call.hidden_states.sizes());
  for (const auto& w : call.w12) handler_of(w);
  for (const auto& w : call.w3) handler_of(w);
  // In high precision on values: what qdq computes, and what gradients are taken of. A copy of the call's lists:
  // backward comes later.
  const auto on_values = [this, call_w12 = call.w12, call_w3 = call.w3, table = call.expert_routing_table,
                          activation = call.activation, first = call.experts_min,
                          last = call.experts_max](const Tensors& in, bool cast_intermediate) {
    static const runtime::OriginalOp kNone;
    const runtime::MoeCall own{in[0], table, in[1], call_w12, call_w3, true, activation, first, last, kNone};
    const auto dtype = in[0].scalar_type();
    return combine(own, in[0], in[1], [&](std::size_t e, const at::Tensor& token) {
      const auto parts = at::linear(in[0].index_select(0, token), values_of(own.w12[e], dtype)).chunk(2, -1);
      const at::Tensor h = activate(activation, parts[0]).mul(parts[1]);
      return at::linear(cast_intermediate ? intermediate(e).through_fp8(h) : h, values_of(own.w3[e], dtype));
    });
  };
  if (scheme().compute != Compute::fp8)
    return on_values(
        {input(0).through_fp8(call.hidden_states.to(compute_dtype(call.hidden_states))), call.router_weights}, true);
  StraightThrough op;
  op.forward = [&](const Tensors& in) { return mix(call, in[0]); };
  op.values = [x = input(0)](const Tensors& in) {
    return Tensors{runtime::dequantize(x.cast(in[0]), in[0].scalar_type()), in[1]};
  };
  op.differentiable = [on_values, keep = shared_from_this()](const Tensors& in) { return on_values(in, false); };
  return straight_through(op, {call.hidden_states, call.router_weights});
}

}  // namespace fp8::quant
