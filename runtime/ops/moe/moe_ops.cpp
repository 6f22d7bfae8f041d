// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/moe/moe_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using at::TensorList;

template <class Signature>
c10::TypedOperatorHandle<Signature> overload_of(const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow("hpu::mixture_of_experts", overload).typed<Signature>();
}

/// op(hidden, table, router, middle..., permuted, activation, min, max, tail...)
template <class Op, class... Middle>
auto call(const Op& op, const MoeRoute& r, Middle&&... middle) {
  return op.call(r.hidden_states, r.expert_routing_table, r.router_weights, std::forward<Middle>(middle)...,
                 r.permuted_weights, std::string_view(r.activation), r.experts_min, r.experts_max);
}

}  // namespace

Tensor call_mixture_of_experts(const MoeRoute& route, TensorList w1, TensorList w2, TensorList w3) {
  static const auto op = overload_of<Tensor(const Tensor&, const Tensor&, const Tensor&, TensorList, TensorList,
                                            TensorList, bool, std::string_view, int64_t, int64_t)>("");
  return call(op, route, w1, w2, w3);
}

Tensor call_mixture_of_experts_fused(const MoeRoute& route, TensorList w12, TensorList w3) {
  static const auto op = overload_of<Tensor(const Tensor&, const Tensor&, const Tensor&, TensorList, TensorList, bool,
                                            std::string_view, int64_t, int64_t)>("fused_weights");
  return call(op, route, w12, w3);
}

Tensor call_mixture_of_experts_fp8(const MoeRoute& r, TensorList w12, TensorList w3, const Tensor& d_hidden,
                                   TensorList d_intermediate, TensorList d_w12, TensorList d_w3) {
  const CodesWithScale given;
  if (d_intermediate.empty()) {
    static const auto dynamic =
        overload_of<Tensor(const Tensor&, const Tensor&, const Tensor&, TensorList, TensorList, const Tensor&,
                           TensorList, TensorList, bool, std::string_view, int64_t, int64_t, int64_t, int64_t)>(
            "fp8_fused_weights_dynamic");
    return dynamic.call(r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_hidden, d_w12, d_w3,
                        r.permuted_weights, r.activation, r.experts_min, r.experts_max, 0, 0);
  }
  static const auto op =
      overload_of<Tensor(const Tensor&, const Tensor&, const Tensor&, TensorList, TensorList, const Tensor&, TensorList,
                         TensorList, TensorList, bool, std::string_view, int64_t, int64_t, int64_t, int64_t)>(
          "fp8_fused_weights");
  return op.call(r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_hidden, d_intermediate, d_w12,
                 d_w3, r.permuted_weights, r.activation, r.experts_min, r.experts_max, 0, 0);
}

Tensor call_mixture_of_experts_blockwise(const MoeRoute& r, TensorList w12, TensorList w3, TensorList d_w12,
                                         TensorList d_w3, int64_t block_size) {
  const CodesWithScale given;
  static const auto op =
      overload_of<Tensor(const Tensor&, const Tensor&, const Tensor&, TensorList, TensorList, TensorList, TensorList,
                         int64_t, bool, std::string_view, int64_t, int64_t, int64_t, int64_t)>(
          "fp8_fused_weights_blockwise");
  return op.call(r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_w12, d_w3, block_size,
                 r.permuted_weights, r.activation, r.experts_min, r.experts_max, 0, 0);
}

}  // namespace fp8::runtime::ops
