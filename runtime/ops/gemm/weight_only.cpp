// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/gemm/weight_only.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/ops/common/arguments.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/profile/trace.h"

namespace fp8::runtime::ops {
namespace {

kernels::ActivationType activation_of(at::ScalarType type) {
  return type == at::kFloat         ? kernels::ActivationType::F32
         : type == at::kBFloat16    ? kernels::ActivationType::BF16
         : type == at::kHalf        ? kernels::ActivationType::F16
         : type == at::kFloat8_e5m2 ? kernels::ActivationType::E5M2
                                    : kernels::ActivationType::E4M3;
}

void set_bias(kernels::GemmArgs& g, const at::Tensor& b, const char* op) {
  if (!b.defined()) return;
  TORCH_CHECK(is_high_precision(b.scalar_type()) && b.numel() == g.n, "[", op, "] expected a bias of ", g.n,
              " elements of dtype Float, BFloat16 or Half, got ", b.numel(), " of ", b.scalar_type());
  g.bias = b.const_data_ptr();
  g.bias_type = float_type_of(b.scalar_type());
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

/// A product with scales per block. Throws naming what doesn't fit.
struct BlockProduct {
  std::int64_t n, k, m, groups;

  BlockProduct(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv, const at::Tensor& weight,
               const at::Tensor& scale_inv, std::int64_t block_rows, std::int64_t block_cols, std::int64_t first_row) {
    check_fp8("block_linear", "weight", weight.scalar_type());
    TORCH_CHECK(is_high_precision(x.scalar_type()) || is_fp8(x.scalar_type()),
                "[block_linear] expected x of dtype Float, BFloat16, Half or fp8, got ", x.scalar_type());
    TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
                "[block_linear] expected x [..., K] and weight [N, K], got ", x.sizes(), " and ", weight.sizes());
    TORCH_CHECK(block_rows >= 1 && block_cols >= 1 && first_row >= 0,
                "[block_linear] expected blocks of at least 1 x 1 and a first row >= 0, got ", block_rows, " x ",
                block_cols, " and ", first_row);
    n = weight.size(0), k = weight.size(1);
    m = c10::multiply_integers(x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1));
    groups = kernels::blocks_of(k, block_cols);
    TORCH_CHECK(
        scale_inv.scalar_type() == at::kFloat && scale_inv.dim() == 2 && scale_inv.size(1) == groups &&
            first_row / block_rows + kernels::blocks_of(first_row % block_rows + n, block_rows) <= scale_inv.size(0),
        "[block_linear] expected scales of rows ", first_row, " to ", first_row + n, " in ", groups, " groups, got ",
        scale_inv.sizes());
    const bool codes = is_fp8(x.scalar_type());
    TORCH_CHECK(x_scale_inv.has_value() == codes &&
                    (!codes || (x_scale_inv->scalar_type() == at::kFloat && x_scale_inv->numel() == m * groups)),
                "[block_linear] expected ", codes ? m * groups : 0, " scales of x, got ",
                x_scale_inv.has_value() ? x_scale_inv->numel() : 0);
  }
};

at::Tensor block_result(const at::Tensor& x, const at::Tensor& weight, at::ScalarType out_dtype) {
  TORCH_CHECK(is_high_precision(out_dtype), "[block_linear] expected out_dtype Float, BFloat16 or Half, got ",
              out_dtype);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options().dtype(out_dtype));
}

/// Dense bytes; groups that are no multiple of 4 columns are filled up with zeros to `to`.
at::Tensor dense_groups(const at::Tensor& t, std::int64_t rows, const BlockProduct& p, std::int64_t group,
                        std::int64_t to) {
  const at::Tensor dense = is_fp8(t.scalar_type()) ? t.view(at::kByte).contiguous() : t.contiguous();
  if (group == to) return dense;
  const auto size = static_cast<std::int64_t>(dense.element_size());
  at::Tensor out = at::empty({rows, p.groups * to}, dense.options());
  const char* from = static_cast<const char*>(dense.const_data_ptr());
  char* into = static_cast<char*>(out.mutable_data_ptr());
  std::memset(into, 0, out.nbytes());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < p.groups; ++g) {
      std::memcpy(into + (r * p.groups + g) * to * size, from + (r * p.k + g * group) * size,
                  static_cast<std::size_t>(std::min(group, p.k - g * group) * size));
    }
  }
  return out;
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
  g.m = c10::multiply_integers(x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1));
  g.a = a.const_data_ptr();
  g.a_type = activation_of(a.scalar_type());
  g.a_stride = g.k;
  g.w = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  g.w_format = format_of(weight.scalar_type());
  g.w_scale_inv = scale.values.data();
  g.w_scale_stride = scale.values.size() > 1 ? 1 : 0;
  const at::Tensor b = bias.has_value() && bias->defined() ? bias->contiguous() : at::Tensor();
  set_bias(g, b, "weight_only_linear");
  g.y = y.mutable_data_ptr();
  g.y_type = float_type_of(y.scalar_type());
  g.y_stride = g.n;
  g.dialect = reading();
  kernels::gemm(g);
  return y;
}

at::Tensor block_linear(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv, const at::Tensor& weight,
                        const at::Tensor& weight_scale_inv, std::int64_t block_rows, std::int64_t block_cols,
                        std::int64_t first_row, const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  trace_op("fp8::block_linear", {x, weight});
  const BlockProduct p(x, x_scale_inv, weight, weight_scale_inv, block_rows, block_cols, first_row);
  const at::Tensor y = block_result(x, weight, out_dtype);
  const std::int64_t group = p.groups <= 1 ? std::max<std::int64_t>(p.k, 1) : block_cols, to = (group + 3) / 4 * 4;
  const std::int64_t as_it_is = p.groups <= 1 ? to : group;  // one group may end anywhere
  const at::Tensor a = dense_groups(x, p.m, p, as_it_is, to), w = dense_groups(weight, p.n, p, as_it_is, to);
  const at::Tensor w_scale = weight_scale_inv.contiguous();
  const at::Tensor x_scale = x_scale_inv.has_value() ? x_scale_inv->contiguous() : at::Tensor();
  kernels::GemmArgs g;
  g.m = p.m, g.n = p.n;
  g.k = g.a_stride = as_it_is == to ? p.k : p.groups * to;
  g.a = a.const_data_ptr();
  g.a_type = activation_of(x.scalar_type());
  g.w = static_cast<const std::uint8_t*>(w.const_data_ptr());
  g.w_format = format_of(weight.scalar_type());
  g.k_group = to;
  g.w_block_rows = std::min(block_rows, first_row + p.n + 1);  // a larger block is the same
  g.w_first_row = first_row % block_rows;
  g.w_scale_inv = w_scale.const_data_ptr<float>() + first_row / block_rows * p.groups;
  g.a_scale_inv = x_scale.defined() ? x_scale.const_data_ptr<float>() : nullptr;
  const at::Tensor b = bias.has_value() && bias->defined() ? bias->contiguous() : at::Tensor();
  set_bias(g, b, "block_linear");
  g.y = y.mutable_data_ptr();
  g.y_type = float_type_of(out_dtype);
  g.y_stride = g.n;
  g.dialect = reading();
  kernels::gemm(g);
  return y;
}

namespace {
at::Tensor block_linear_meta(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv,
                             const at::Tensor& weight, const at::Tensor& weight_scale_inv, std::int64_t block_rows,
                             std::int64_t block_cols, std::int64_t first_row, const std::optional<at::Tensor>&,
                             at::ScalarType out_dtype) {
  const BlockProduct checked(x, x_scale_inv, weight, weight_scale_inv, block_rows, block_cols, first_row);
  return block_result(x, weight, out_dtype);
}
}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def(
      "block_linear(Tensor x, Tensor? x_scale_inv, Tensor weight, Tensor weight_scale_inv, int block_rows, int "
      "block_cols, int first_row, "
      "Tensor? bias, ScalarType out_dtype) -> Tensor");
  m.def("weight_only_linear(Tensor x, Tensor weight, Tensor scale_inv, Tensor? bias=None) -> Tensor");
  autocast::keep_out_of_own_ops();
}
FP8_LIBRARY_IMPL(fp8, HPU, m) {
  Edge edge(m, "fp8");
  edge.impl("weight_only_linear", &weight_only_linear);
  edge.impl("block_linear", &block_linear);
}
FP8_LIBRARY_IMPL(fp8, Meta, m) {
  m.impl("weight_only_linear", &result_of);
  m.impl("block_linear", &block_linear_meta);
}

}  // namespace fp8::runtime::ops
