// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/unboxed_ops.h"

#include <ATen/ops/_softmax_ops.h>
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

#include "fp8/runtime/dispatch/cat.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/pointwise.h"
#include "fp8/runtime/dispatch/unboxed.h"

namespace fp8::runtime {
namespace {

constexpr UnboxedRow kUnboxed[] = {
    {"aten::_softmax", add_unboxed<at::_ops::_softmax, cpu_fallback>},
    {"aten::cat", [](torch::Library& aten, const char* full) { aten.impl(full, TORCH_FN(cat)); }},
    {"aten::cos", add_unboxed<at::_ops::cos, cpu_fallback>},
    {"aten::exp", add_unboxed<at::_ops::exp, cpu_fallback>},
    {"aten::gelu", add_unboxed<at::_ops::gelu, cpu_fallback>},
    {"aten::index_select", add_unboxed<at::_ops::index_select, cpu_fallback>},
    {"aten::mean.dim", add_unboxed<at::_ops::mean_dim, cpu_fallback>},
    {"aten::pow.Tensor_Scalar", add_unboxed<at::_ops::pow_Tensor_Scalar, cpu_fallback>},
    {"aten::relu", add_pointwise<kernels::Pointwise::relu, at::_ops::relu, cpu_fallback>},
    {"aten::relu_", add_pointwise<kernels::Pointwise::relu, at::_ops::relu_, cpu_fallback>},
    {"aten::rsqrt", add_unboxed<at::_ops::rsqrt, cpu_fallback>},
    {"aten::sigmoid", add_unboxed<at::_ops::sigmoid, cpu_fallback>},
    {"aten::silu", add_unboxed<at::_ops::silu, cpu_fallback>},
    {"aten::sin", add_unboxed<at::_ops::sin, cpu_fallback>},
    {"aten::sqrt", add_unboxed<at::_ops::sqrt, cpu_fallback>},
    {"aten::tanh", add_unboxed<at::_ops::tanh, cpu_fallback>},
    {"aten::where.self", add_unboxed<at::_ops::where_self, cpu_fallback>},
};

}  // namespace

bool has_unboxed_kernel(const std::string& full) { return has_row(kUnboxed, full); }

void register_unboxed_kernels(torch::Library& aten) { register_rows(kUnboxed, aten); }

}  // namespace fp8::runtime
