// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/gemm/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "fp8/runtime/fp8_tensor/gemm.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime::ops {
namespace {

GemmShape shape_of(const at::Tensor& a, const at::Tensor& b, const GemmOptions& o) {
  check_high_precision("fp8_gemm_v2", "out_dtype", o.out_dtype);
  return {"fp8_gemm_v2", a, o.trans_a, b, o.trans_b};
}

/// Row and column factors of the output: `col` has 1 or N values, `row` 1 or one per row of every batch; empty means 1.
struct Factors {
  std::vector<float> row, col;
};

void multiply_into(std::vector<float>& target, std::vector<float> values) {
  if (target.size() < values.size()) std::swap(target, values);  // empty or one value against many
  const std::size_t n = values.size();
  for (std::size_t i = 0; n > 0 && i < target.size(); ++i) target[i] *= values[n == 1 ? 0 : i];
}

/// A's scale is one value or one per row; B's is shaped against the output: [N], [1, N] per column or [M, 1] per row.
void place(const Scale& s, bool is_a, const GemmShape& p, Factors& f) {
  if (s.none()) return;
  const auto count = static_cast<std::int64_t>(s.values.size());
  const bool per_row = is_a || (count > 1 && s.shape.size() >= 2 && s.shape.back() == 1);
  const std::int64_t rows = p.all_rows(), expected = is_a ? rows : per_row ? p.m : p.n;
  TORCH_CHECK(count == 1 || count == expected || (per_row && (count == p.m || count == rows)),
              "[fp8_gemm_v2] expected ", (is_a ? "A" : "B"), "_scale_inv of 1 or ", expected, " elements, got ", count);
  if (!per_row || count == 1 || count == rows) return multiply_into(per_row ? f.row : f.col, s.values);
  std::vector<float> tiled;  // the same M values for every batch
  tiled.reserve(static_cast<std::size_t>(rows));
  while (static_cast<std::int64_t>(tiled.size()) < rows) tiled.insert(tiled.end(), s.values.begin(), s.values.end());
  multiply_into(f.row, std::move(tiled));
}

void check_addends(const GemmShape& p, const std::optional<at::Tensor>& d, const std::optional<at::Tensor>& bias,
                   bool accumulate) {
  TORCH_CHECK(!accumulate || (d.has_value() && d->defined()), "[fp8_gemm_v2] accumulate needs D, got none");
  if (accumulate) {
    TORCH_CHECK(d->sizes() == at::IntArrayRef(p.sizes), "[fp8_gemm_v2] expected D of sizes ", at::IntArrayRef(p.sizes),
                ", got ", d->sizes());
  }
  if (bias.has_value() && bias->defined()) {
    TORCH_CHECK(bias->numel() == p.n && is_high_precision(bias->scalar_type()), "[fp8_gemm_v2] expected a bias of ",
                p.n, " elements of dtype Float, BFloat16 or Half, got ", bias->sizes(), " of ", bias->scalar_type());
  }
}

}  // namespace

at::Tensor fp8_gemm_meta(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& d,
                         const std::optional<at::Tensor>& bias, const GemmOptions& o) {
  const GemmShape p = shape_of(a, b, o);
  check_addends(p, d, bias, o.accumulate);
  return at::empty(p.sizes, a.options().dtype(o.out_dtype));
}

at::Tensor fp8_gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& d,
                    const std::optional<at::Tensor>& bias, const GemmOptions& o) {
  LeafScope leaf("hpu::fp8_gemm_v2", a, b);
  const kernels::Dialect dialect = device_dialect("fp8_gemm_v2");  // refuses the first generation
  const GemmShape p = shape_of(a, b, o);
  check_addends(p, d, bias, o.accumulate);
  Factors f;
  place(o.a_scale_inv, true, p, f);
  place(o.b_scale_inv, false, p, f);
  at::Tensor y =
      gemm(p, o.out_dtype, {f.row, f.col, bias.value_or(at::Tensor()), o.accumulate ? *d : at::Tensor(), dialect});
  leaf.gives(y);
  leaf.flops(2 * y.numel() * p.k);
  return y;
}

namespace {

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor addend(const at::Tensor& d, bool accumulate) {
  return accumulate && d.defined() ? OptionalTensor(d) : std::nullopt;
}

void check_out(const at::Tensor& out, at::IntArrayRef sizes, at::ScalarType dtype) {
  TORCH_CHECK(out.scalar_type() == dtype && out.sizes() == sizes, "[fp8_gemm] expected out of dtype ", dtype,
              " and sizes ", sizes, ", got ", out.scalar_type(), " and ", out.sizes());
}

}  // namespace

at::Tensor& fp8_gemm_v1_meta(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                             at::ScalarType out_dtype, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor& bias, bool accumulate, at::Tensor& out) {
  const GemmOptions options{trans_a, trans_b, out_dtype, {}, {}, accumulate};
  const at::Tensor y = fp8_gemm_meta(a, b, addend(d, accumulate), bias, options);
  check_out(out, y.sizes(), out_dtype);
  return out;
}

at::Tensor& fp8_gemm_v1(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                        at::ScalarType out_dtype, const OptionalTensor& a_scale_inv, const OptionalTensor& b_scale_inv,
                        const OptionalTensor& bias, bool accumulate, at::Tensor& out) {
  const GemmOptions options{
      trans_a,   trans_b, out_dtype, scale_of(a_scale_inv, std::nullopt), scale_of(b_scale_inv, std::nullopt),
      accumulate};
  const at::Tensor y = fp8_gemm(a, b, addend(d, accumulate), bias, options);
  check_out(out, y.sizes(), out_dtype);
  return out.copy_(y);
}

namespace {

void check_weight_only(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale_inv,
                       const std::optional<at::Tensor>& bias) {
  check_high_precision("weight_only_linear", "x of dtype", x.scalar_type());
  check_fp8("weight_only_linear", "weight", weight.scalar_type());
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "[weight_only_linear] expected x [..., K] and weight [N, K], got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(scale_inv.numel() == 1 || scale_inv.numel() == weight.size(0),
              "[weight_only_linear] expected scale_inv of 1 or ", weight.size(0), " elements, got ", scale_inv.numel());
  TORCH_CHECK(!bias.has_value() || !bias->defined() || bias->numel() == weight.size(0),
              "[weight_only_linear] expected a bias of ", weight.size(0), " elements");
}

/// Of a product with scales per block.
void check_blocks(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv, const at::Tensor& weight,
                  const at::Tensor& scale_inv, std::int64_t block_rows, std::int64_t block_cols,
                  std::int64_t first_row) {
  check_fp8("block_linear", "weight", weight.scalar_type());
  TORCH_CHECK(is_high_precision(x.scalar_type()) || is_fp8(x.scalar_type()),
              "[block_linear] expected x of dtype Float, BFloat16, Half or fp8, got ", x.scalar_type());
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "[block_linear] expected x [..., K] and weight [N, K], got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(block_rows >= 1 && block_cols >= 1 && first_row >= 0,
              "[block_linear] expected blocks of at least 1 x 1 and a first row >= 0, got ", block_rows, " x ",
              block_cols, " and ", first_row);
  const std::int64_t n = weight.size(0), k = weight.size(1), groups = kernels::blocks_of(k, block_cols);
  const std::int64_t m = c10::multiply_integers(x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1));
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

void check_out_dtype(at::ScalarType out_dtype) { check_high_precision("block_linear", "out_dtype", out_dtype); }

/// [..., K] -> [..., N].
at::Tensor empty_result(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options().dtype(dtype));
}

}  // namespace

at::Tensor weight_only_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale_inv,
                              const std::optional<at::Tensor>& bias) {
  LeafScope leaf("fp8::weight_only_linear", x, weight);
  check_weight_only(x, weight, scale_inv, bias);
  const Scale scale = scale_of(scale_inv, std::nullopt);
  Fp8Tensor w{weight};
  w.dialect = reading();
  if (scale.per_tensor()) {
    w.scale_inv = scale.values[0];
  } else {
    w.layout = ScaleLayout::per_row();
    w.grid = at::from_blob(const_cast<float*>(scale.values.data()), weight.size(0), at::kFloat);
  }
  at::Tensor y = weight_only_product(x, w, x.scalar_type(), bias.value_or(at::Tensor()));
  leaf.gives(y);
  return y;
}

at::Tensor block_linear(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv, const at::Tensor& weight,
                        const at::Tensor& weight_scale_inv, std::int64_t block_rows, std::int64_t block_cols,
                        std::int64_t first_row, const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  LeafScope leaf("fp8::block_linear", x, weight);
  check_blocks(x, x_scale_inv, weight, weight_scale_inv, block_rows, block_cols, first_row);
  check_out_dtype(out_dtype);
  Fp8Tensor w{weight};
  w.grid = weight_scale_inv;
  w.layout = {block_rows, block_cols, first_row};
  w.dialect = reading();
  at::Tensor y = block_product(x, x_scale_inv.value_or(at::Tensor()), w, out_dtype, bias.value_or(at::Tensor()));
  leaf.gives(y);
  return y;
}

namespace {

at::Tensor weight_only_linear_meta(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale_inv,
                                   const std::optional<at::Tensor>& bias) {
  check_weight_only(x, weight, scale_inv, bias);
  return empty_result(x, weight, x.scalar_type());
}

at::Tensor block_linear_meta(const at::Tensor& x, const std::optional<at::Tensor>& x_scale_inv,
                             const at::Tensor& weight, const at::Tensor& weight_scale_inv, std::int64_t block_rows,
                             std::int64_t block_cols, std::int64_t first_row, const std::optional<at::Tensor>&,
                             at::ScalarType out_dtype) {
  check_blocks(x, x_scale_inv, weight, weight_scale_inv, block_rows, block_cols, first_row);
  check_out_dtype(out_dtype);
  return empty_result(x, weight, out_dtype);
}

}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  define(m, R"(
    block_linear(Tensor x, Tensor? x_scale_inv, Tensor weight, Tensor weight_scale_inv, int block_rows, int
        block_cols, int first_row, Tensor? bias, ScalarType out_dtype) -> Tensor;
    weight_only_linear(Tensor x, Tensor weight, Tensor scale_inv, Tensor? bias=None) -> Tensor;)");
}
FP8_LIBRARY_IMPL(fp8, HPU, m) {
  Edge edge(m, "fp8");
  edge.impl("weight_only_linear", &weight_only_linear);
  edge.impl("block_linear", &block_linear);
}
FP8_LIBRARY_IMPL(fp8, Meta, m) {
  m.impl("weight_only_linear", &weight_only_linear_meta);
  m.impl("block_linear", &block_linear_meta);
}

}  // namespace fp8::runtime::ops
