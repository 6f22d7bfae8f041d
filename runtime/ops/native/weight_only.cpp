// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/native/weight_only.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "fp8/runtime/autocast/rules.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/ops/native/arguments.h"
#include "fp8/runtime/profile/trace.h"

namespace fp8::runtime::ops {
namespace {

kernels::ActivationType activation_of(at::ScalarType type) {
  return type == at::kFloat      ? kernels::ActivationType::F32
         : type == at::kBFloat16 ? kernels::ActivationType::BF16
                                 : kernels::ActivationType::F16;
}

at::Tensor result_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale_inv,
                     const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(is_high_precision(x.scalar_type()),
              "[weight_only_linear] expected x of dtype Float, BFloat16 or Half, got ", x.scalar_type());
  check_fp8("weight_only_linear", "weight", weight.scalar_type());
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "[weight_only_linear] expected x [..., K] and weight [N, K], got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(scale_inv.numel() == 1 || scale_inv.numel() == weight.size(0),
              "[weight_only_linear] expected scale_inv of 1 or ", weight.size(0), " elements, got ", scale_inv.numel());
  TORCH_CHECK(!bias.has_value() || !bias->defined() || bias->numel() == weight.size(0),
              "[weight_only_linear] expected a bias of ", weight.size(0), " elements");
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options());
}

}  // namespace

at::Tensor weight_only_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale_inv,
                              const std::optional<at::Tensor>& bias) {
  trace_op("fp8::weight_only_linear", {x, weight});
  const at::Tensor y = result_of(x, weight, scale_inv, bias);
  const at::Tensor a = x.contiguous(), codes = weight.is_contiguous() ? weight : weight.view(at::kByte).contiguous();
  const Scale scale = scale_of(scale_inv, std::nullopt);
  kernels::GemmArgs g;
  g.k = weight.size(1);
  g.n = weight.size(0);
  g.m = g.k == 0 ? 0 : a.numel() / g.k;
  g.a = a.const_data_ptr();
  g.a_type = activation_of(a.scalar_type());
  g.a_stride = g.k;
  g.w = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  g.w_format = format_of(weight.scalar_type());
  g.w_scale_inv = scale.values.data();
  g.w_scale_stride = scale.values.size() > 1 ? 1 : 0;
  const at::Tensor b = bias.has_value() && bias->defined() ? bias->contiguous() : at::Tensor();
  if (b.defined()) {
    TORCH_CHECK(is_high_precision(b.scalar_type()),
                "[weight_only_linear] expected a bias of dtype Float, BFloat16 or Half, got ", b.scalar_type());
    g.bias = b.const_data_ptr();
    g.bias_type = float_type_of(b.scalar_type());
  }
  g.y = y.mutable_data_ptr();
  g.y_type = float_type_of(y.scalar_type());
  g.y_stride = g.n;
  kernels::gemm(g);
  return y;
}

TORCH_LIBRARY_FRAGMENT(fp8, m) {
  m.def("weight_only_linear(Tensor x, Tensor weight, Tensor scale_inv, Tensor? bias=None) -> Tensor");
  autocast::keep_out_of_own_ops();
}
TORCH_LIBRARY_IMPL(fp8, HPU, m) { m.impl("weight_only_linear", &weight_only_linear); }
TORCH_LIBRARY_IMPL(fp8, Meta, m) { m.impl("weight_only_linear", &result_of); }

}  // namespace fp8::runtime::ops
