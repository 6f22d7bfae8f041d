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

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/leaf/leaf.h"

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
  TORCH_CHECK(is_high_precision(c.hidden.scalar_type()),
              "[mixture_of_experts] expected hidden_states of dtype Float, BFloat16 or Half, got ",
              c.hidden.scalar_type());
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

}  // namespace fp8::runtime::ops
