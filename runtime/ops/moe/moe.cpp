// SPDX-License-Identifier: Apache-2.0
// mixture_of_experts in high precision: per expert the tokens routed to it are gathered, multiplied and added back.
// Only aten ops on hpu tensors, so gradients and the handlers of tagged weights come for free.
#include "fp8/runtime/ops/moe/moe.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/moe/moe_ops.h"

namespace fp8::runtime::ops {
namespace {

at::Tensor indices_of(const std::vector<std::int64_t>& values, const at::Tensor& like) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(values.size())}, like.options().dtype(at::kLong));
  std::copy(values.begin(), values.end(), static_cast<std::int64_t*>(out.mutable_data_ptr()));
  return out;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& w, bool permuted) {
  return permuted ? at::linear(x, w) : at::mm(x, w);
}

at::Tensor activated(const at::Tensor& x, const std::string& name) {
  return name == "gelu" ? at::gelu(x) : name == "relu" ? at::relu(x) : at::silu(x);
}

/// h = act(x . w1) * (x . w2)
at::Tensor intermediate(const MoeCall& c, std::size_t e, const at::Tensor& x) {
  if (!c.fused()) {
    return at::mul(activated(product(x, c.w1[e], c.permuted), c.activation), product(x, c.w2[e], c.permuted));
  }
  const auto both = product(x, c.w1[e], c.permuted);
  const std::int64_t inner = both.size(1) / 2;
  return at::mul(activated(both.narrow(1, 0, inner), c.activation), both.narrow(1, inner, inner));
}

float amax_of(const at::Tensor& t) {
  const at::Tensor host = cpu_alias(t.detach()).contiguous();
  return kernels::amax(host.const_data_ptr(), float_type_of(host.scalar_type()), host.numel());
}

}  // namespace

at::Tensor mixture_of_experts(const MoeCall& c, at::Tensor* amax) {
  LeafScope leaf("hpu::mixture_of_experts", c.hidden, c.table, c.router_weights, c.w1, c.w2, c.w3);
  check_high_precision("mixture_of_experts", "hidden_states of dtype", c.hidden.scalar_type());
  const std::vector<ExpertRows> rows = group_tokens(c);
  const std::int64_t slots = c.table.size(1);
  const at::Tensor router = c.router_weights.reshape({-1}).to(at::kFloat);
  at::Tensor sum = at::zeros(c.hidden.sizes(), c.hidden.options().dtype(at::kFloat).requires_grad(false));
  if (amax != nullptr) *amax = at::zeros({static_cast<std::int64_t>(rows.size())}, sum.options());
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (rows[e].token.empty()) continue;
    std::vector<std::int64_t> places(rows[e].token.size());
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = rows[e].token[i] * slots + rows[e].slot[i];
    const at::Tensor tokens = indices_of(rows[e].token, c.hidden);
    const at::Tensor h = intermediate(c, e, at::index_select(c.hidden, 0, tokens));
    if (amax != nullptr) static_cast<float*>(amax->mutable_data_ptr())[e] = amax_of(h);
    const at::Tensor y = product(h, c.w3[e], c.permuted).to(at::kFloat);
    sum.index_add_(0, tokens, at::mul(y, at::index_select(router, 0, indices_of(places, c.hidden)).unsqueeze(1)));
  }
  const at::Tensor y = sum.to(c.hidden.scalar_type());
  leaf.gives(y);
  leaf.flops(flops_of(c, rows));
  return y;
}

// The checks of mixture_of_experts and which tokens go to which expert.

namespace {

void check_inputs(const MoeCall& c) {
  TORCH_CHECK(c.activation == "gelu" || c.activation == "relu" || c.activation == "silu", "Activation \"", c.activation,
              "\" not found among MoeActivationMode_t enum values.");
  TORCH_CHECK(c.hidden.dim() == 2, "[mixture_of_experts] expected hidden_states [tokens, hidden], got sizes ",
              c.hidden.sizes());
  TORCH_CHECK(c.table.scalar_type() == at::kLong || c.table.scalar_type() == at::kInt,
              "[mixture_of_experts] expected expert_routing_table of dtype Int or Long, got ", c.table.scalar_type());
  TORCH_CHECK(c.table.dim() == 2 && c.table.size(0) == c.hidden.size(0) && c.table.sizes() == c.router_weights.sizes(),
              "[mixture_of_experts] expected expert_routing_table and router_weights [", c.hidden.size(0),
              ", experts per token], got sizes ", c.table.sizes(), " and ", c.router_weights.sizes());
  check_high_precision("mixture_of_experts", "router_weights of dtype", c.router_weights.scalar_type());
}

void check_weight(const MoeCall& c, const char* name, std::size_t e, const at::Tensor& w, std::int64_t in,
                  std::int64_t out) {
  const std::int64_t rows = c.permuted ? out : in, cols = c.permuted ? in : out;
  TORCH_CHECK(w.dim() == 2 && w.size(0) == rows && w.size(1) == cols, "[mixture_of_experts] expected ", name, "[", e,
              "] of sizes [", rows, ", ", cols, "] (permuted_weights ", (c.permuted ? "true" : "false"), "), got ",
              w.sizes());
}

void check_weights(const MoeCall& c) {
  const std::size_t n = c.experts();
  TORCH_CHECK(n > 0 && c.w1.size() == n && (c.fused() || c.w2.size() == n),
              "[mixture_of_experts] expected weight lists of one length and at least one expert, got ", c.w1.size(),
              ", ", c.w2.size(), " and ", n);
  const std::int64_t range = c.experts_max - c.experts_min;
  TORCH_CHECK(c.experts_min >= 0 && range >= 0 && range < static_cast<std::int64_t>(n),
              "[mixture_of_experts] expected 0 <= experts_min <= experts_max and a weight for each of them, got [",
              c.experts_min, ", ", c.experts_max, "] and ", n, " weights");
  TORCH_CHECK(range + 1 == static_cast<std::int64_t>(n) || c.experts_max < static_cast<std::int64_t>(n),
              "[mixture_of_experts] expected ", range + 1, " weights for the experts [", c.experts_min, ", ",
              c.experts_max, "], or those of all experts, got ", n);
  const std::int64_t hidden = c.hidden.size(1);
  for (std::size_t e = 0; e < n; ++e) {
    TORCH_CHECK(c.w3[e].dim() == 2, "[mixture_of_experts] expected w3[", e, "] of 2 dimensions, got sizes ",
                c.w3[e].sizes());
    const std::int64_t inner = c.w3[e].size(c.permuted ? 1 : 0);
    check_weight(c, "w3", e, c.w3[e], inner, hidden);
    check_weight(c, c.fused() ? "w12" : "w1", e, c.w1[e], hidden, c.fused() ? 2 * inner : inner);
    if (!c.fused()) check_weight(c, "w2", e, c.w2[e], hidden, inner);
  }
}

template <typename Id>
void group(const MoeCall& c, const Id* ids, std::vector<ExpertRows>& rows) {
  const std::int64_t tokens = c.table.size(0), slots = c.table.size(1);
  const bool local = c.experts_max - c.experts_min + 1 == static_cast<std::int64_t>(rows.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t s = 0; s < slots; ++s) {
      const std::int64_t id = ids[t * slots + s];
      if (id < c.experts_min || id > c.experts_max) continue;
      ExpertRows& expert = rows[static_cast<std::size_t>(local ? id - c.experts_min : id)];
      expert.token.push_back(t);
      expert.slot.push_back(s);
    }
  }
}

}  // namespace

std::vector<ExpertRows> group_tokens(const MoeCall& c) {
  check_inputs(c);
  check_weights(c);
  std::vector<ExpertRows> rows(c.experts());
  const at::Tensor host = cpu_alias(c.table.detach()).contiguous();
  if (host.scalar_type() == at::kInt) {
    group(c, host.const_data_ptr<std::int32_t>(), rows);
  } else {
    group(c, host.const_data_ptr<std::int64_t>(), rows);
  }
  return rows;
}

std::int64_t flops_of(const MoeCall& c, const std::vector<ExpertRows>& rows) {
  std::int64_t count = 0;
  for (std::size_t e = 0; e < rows.size(); ++e)
    count += 6 * static_cast<std::int64_t>(rows[e].token.size()) * c.w3[e].numel();
  return count;
}

at::Tensor mixture_of_experts_meta(const MoeCall& c, at::ScalarType dtype) {
  check_inputs(c);
  check_weights(c);
  return at::empty(c.hidden.sizes(), c.hidden.options().dtype(dtype));
}

// moe_ops.h

at::Tensor call_mixture_of_experts(const MoeRoute& r, at::TensorList w1, at::TensorList w2, at::TensorList w3) {
  return call_op<"hpu::mixture_of_experts", at::Tensor>(r.hidden_states, r.expert_routing_table, r.router_weights, w1,
                                                        w2, w3, r.permuted_weights, r.activation, r.experts_min,
                                                        r.experts_max);
}

at::Tensor call_mixture_of_experts_fused(const MoeRoute& r, at::TensorList w12, at::TensorList w3) {
  return call_op<"hpu::mixture_of_experts.fused_weights", at::Tensor>(r.hidden_states, r.expert_routing_table,
                                                                      r.router_weights, w12, w3, r.permuted_weights,
                                                                      r.activation, r.experts_min, r.experts_max);
}

at::Tensor call_mixture_of_experts_fp8(const MoeRoute& r, at::TensorList w12, at::TensorList w3,
                                       const at::Tensor& d_hidden, at::TensorList d_intermediate, at::TensorList d_w12,
                                       at::TensorList d_w3) {
  const CodesWithScale given;
  if (d_intermediate.empty())
    return call_op<"hpu::mixture_of_experts.fp8_fused_weights_dynamic", at::Tensor>(
        r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_hidden, d_w12, d_w3, r.permuted_weights,
        r.activation, r.experts_min, r.experts_max, int64_t{0}, int64_t{0});
  return call_op<"hpu::mixture_of_experts.fp8_fused_weights", at::Tensor>(
      r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_hidden, d_intermediate, d_w12, d_w3,
      r.permuted_weights, r.activation, r.experts_min, r.experts_max, int64_t{0}, int64_t{0});
}

at::Tensor call_mixture_of_experts_blockwise(const MoeRoute& r, at::TensorList w12, at::TensorList w3,
                                             at::TensorList d_w12, at::TensorList d_w3, int64_t block_size) {
  const CodesWithScale given;
  return call_op<"hpu::mixture_of_experts.fp8_fused_weights_blockwise", at::Tensor>(
      r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_w12, d_w3, block_size, r.permuted_weights,
      r.activation, r.experts_min, r.experts_max, int64_t{0}, int64_t{0});
}

}  // namespace fp8::runtime::ops
