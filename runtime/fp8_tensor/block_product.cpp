// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/block_product.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fp8/runtime/fp8_tensor/dense_codes.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/fp8_tensor/gemm.h"
#include "fp8/runtime/kernels/block_cast.h"

namespace fp8::runtime {
namespace {

struct Sizes {
  std::int64_t m, n, k, groups;
};

at::Tensor contiguous_or_none(const at::Tensor& t) { return t.defined() ? t.contiguous() : t; }

/// Dense bytes, whose groups are no multiple of 4 columns, filled up with zeros to `to`.
at::Tensor filled_groups(const at::Tensor& t, std::int64_t rows, const Sizes& p, std::int64_t group, std::int64_t to) {
  const at::Tensor from = is_fp8(t.scalar_type()) ? t.view(at::kByte).contiguous() : t.contiguous();
  const auto size = static_cast<std::int64_t>(from.element_size());
  at::Tensor out = at::empty({rows, p.groups * to}, from.options());
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* into = static_cast<char*>(out.mutable_data_ptr());
  std::memset(into, 0, out.nbytes());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < p.groups; ++g) {
      std::memcpy(into + (r * p.groups + g) * to * size, source + (r * p.k + g * group) * size,
                  static_cast<std::size_t>(std::min(group, p.k - g * group) * size));
    }
  }
  return out;
}

/// Rows of x, and what the product has in common with others; `y`: the result.
kernels::GemmArgs arguments_of(const at::Tensor& x, const Fp8Tensor& w, const at::Tensor& y) {
  kernels::GemmArgs g;
  g.k = g.a_stride = w.codes.size(1);
  g.n = g.y_stride = w.codes.size(0);
  g.m = c10::multiply_integers(x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1));
  g.a_type = storage_of(x.scalar_type());
  g.w_format = format_of(w.codes.scalar_type());
  g.y = y.mutable_data_ptr();
  g.y_type = float_type_of(y.scalar_type());
  g.dialect = w.dialect;
  return g;
}

at::Tensor result_of(const at::Tensor& x, const Fp8Tensor& w, at::ScalarType out) {
  auto sizes = x.sizes().vec();
  sizes.back() = w.codes.size(0);
  return at::empty(sizes, x.options().dtype(out));
}

}  // namespace

at::Tensor block_product(const at::Tensor& x, const at::Tensor& x_scale_inv, const Fp8Tensor& w, at::ScalarType out,
                         const at::Tensor& bias) {
  const at::Tensor y = result_of(x, w, out);
  kernels::GemmArgs g = arguments_of(x, w, y);
  const ScaleLayout& l = w.layout;
  const Sizes p{g.m, g.n, g.k, kernels::blocks_of(g.k, l.cols)};
  const std::int64_t to = columns_of_group(l, p.k);
  const std::int64_t as_it_is = p.groups <= 1 ? to : l.cols;  // one group may end anywhere
  const at::Tensor w_scale = w.grid.contiguous(), x_scale = contiguous_or_none(x_scale_inv),
                   addend = contiguous_or_none(bias);
  thread_local kernels::Scratch x_scratch, w_scratch;
  std::optional<DenseCodes> x_codes;
  std::optional<WeightCodes> w_codes;
  at::Tensor x_values, w_filled;  // what is not read where it is, or is no code
  if (as_it_is == to) {
    is_fp8(x.scalar_type()) ? void(x_codes.emplace(x, x_scratch)) : void(x_values = x.contiguous());
    w_codes.emplace(w.codes, w.again, w_scratch);
    g.w = w_codes->data(), g.w_layout = w_codes->layout();
  } else {
    x_values = filled_groups(x, p.m, p, as_it_is, to);
    const CodesReader reader(w.codes);
    w_filled = filled_groups(w.codes, p.n, p, as_it_is, to);
    g.w = static_cast<const std::uint8_t*>(w_filled.const_data_ptr());
    g.k = g.a_stride = p.groups * to;
  }
  g.a = x_codes.has_value() ? x_codes->data() : x_values.const_data_ptr();
  g.k_group = to;
  g.power_of_two_scales = w.power_of_two;
  g.w_block_rows = std::min(l.rows, l.first_row + p.n + 1);  // a larger block is the same
  g.w_first_row = l.first_row % l.rows;
  g.w_scale_inv = w_scale.const_data_ptr<float>() + l.first_row / l.rows * p.groups;
  g.a_scale_inv = x_scale.defined() ? x_scale.const_data_ptr<float>() : nullptr;
  set_bias(g, addend, "block_linear");
  kernels::gemm(g);
  return y;
}

at::Tensor weight_only_product(const at::Tensor& x, const Fp8Tensor& w, at::ScalarType out, const at::Tensor& bias) {
  const at::Tensor y = result_of(x, w, out);
  kernels::GemmArgs g = arguments_of(x, w, y);
  const at::Tensor a = x.contiguous(), addend = contiguous_or_none(bias), scales = contiguous_or_none(w.grid);
  thread_local kernels::Scratch scratch;
  const WeightCodes codes(w.codes, w.again, scratch);
  g.a = a.const_data_ptr();
  g.w = codes.data(), g.w_layout = codes.layout();
  g.w_scale_inv = w.layout.one() ? &w.scale_inv : scales.const_data_ptr<float>();
  g.w_scale_stride = w.layout.one() ? 0 : 1;
  set_bias(g, addend, "weight_only_linear");
  kernels::gemm(g);
  return y;
}

}  // namespace fp8::runtime
