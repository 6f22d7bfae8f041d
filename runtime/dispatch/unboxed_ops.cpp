// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/unboxed_ops.h"

#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/where_ops.h>

#include <algorithm>
#include <iterator>

#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/unboxed.h"

namespace fp8::runtime {
namespace {

struct UnboxedRow {
  const char* full;
  void (*add)(torch::Library& aten, const char* full);
};

template <class Op>
void add_unboxed(torch::Library& aten, const char* full) {
  aten.impl(full, TORCH_FN((Unboxed<Op, cpu_fallback>::call)));
}

constexpr UnboxedRow kUnboxed[] = {
    {"aten::_softmax", add_unboxed<at::_ops::_softmax>},
    {"aten::cat", add_unboxed<at::_ops::cat>},
    {"aten::cos", add_unboxed<at::_ops::cos>},
    {"aten::exp", add_unboxed<at::_ops::exp>},
    {"aten::gelu", add_unboxed<at::_ops::gelu>},
    {"aten::index_select", add_unboxed<at::_ops::index_select>},
    {"aten::mean.dim", add_unboxed<at::_ops::mean_dim>},
    {"aten::pow.Tensor_Scalar", add_unboxed<at::_ops::pow_Tensor_Scalar>},
    {"aten::relu", add_unboxed<at::_ops::relu>},
    {"aten::rsqrt", add_unboxed<at::_ops::rsqrt>},
    {"aten::sigmoid", add_unboxed<at::_ops::sigmoid>},
    {"aten::silu", add_unboxed<at::_ops::silu>},
    {"aten::sin", add_unboxed<at::_ops::sin>},
    {"aten::sqrt", add_unboxed<at::_ops::sqrt>},
    {"aten::tanh", add_unboxed<at::_ops::tanh>},
    {"aten::where.self", add_unboxed<at::_ops::where_self>},
};

}  // namespace

bool has_unboxed_kernel(const std::string& full) {
  return std::any_of(std::begin(kUnboxed), std::end(kUnboxed), [&](const UnboxedRow& row) { return full == row.full; });
}

void register_unboxed_kernels(torch::Library& aten) {
  for (const UnboxedRow& row : kUnboxed) row.add(aten, row.full);
}

}  // namespace fp8::runtime
