// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/product.h"

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>

#include <utility>

#include "fp8/runtime/fp8_tensor/block_product.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/fp8_tensor/gemm.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

kernels::Dialect reading(const Fp8Tensor& a, const Fp8Tensor& b) {
  return a.dialect == kernels::Dialect::gaudi2 ? a.dialect : b.dialect;
}

/// The scales of an operand as factors of the result's rows or columns; `grid` holds them. Throws unless they lie so:
/// `along_rows` of the codes as they are stored.
std::span<const float> factors(const Fp8Tensor& x, bool along_rows, std::int64_t count, at::Tensor& grid) {
  if (x.layout.one()) return {&x.scale_inv, 1};
  const ScaleLayout wanted = along_rows ? ScaleLayout::per_row() : ScaleLayout::per_column();
  TORCH_CHECK(x.layout == wanted && x.grid.numel() == count, "[matmul] expected one scale, or ", count, " along the ",
              along_rows ? "rows" : "columns", " of an operand, got a grid of sizes ", x.grid.sizes(), " over ",
              x.layout.rows, " x ", x.layout.cols);
  grid = x.grid.to(at::kFloat).contiguous();
  return {grid.const_data_ptr<float>(), static_cast<std::size_t>(count)};
}

at::Tensor product_of_codes(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b,
                            at::ScalarType out, const at::Tensor& bias) {
  OpScope leaf("hpu::fp8_gemm_v2", a.codes, b.codes);
  const GemmShape shape("matmul", a.codes, transpose_a, b.codes, transpose_b);
  at::Tensor a_grid, b_grid;
  GemmTerms terms;
  terms.rows = factors(a, !transpose_a, shape.all_rows(), a_grid);
  terms.columns = factors(b, transpose_b, shape.n, b_grid);
  terms.bias = bias;
  terms.dialect = reading(a, b);
  terms.again = b.again;
  at::Tensor y = gemm(shape, out, terms);
  leaf.gives(y);
  leaf.flops(2 * y.numel() * shape.k);
  return y;
}

/// One scale per row and group of `cols` columns, f32: what the kernel takes; undefined where the scales don't lie so.
at::Tensor scales_of_groups(const Fp8Tensor& x, std::int64_t rows, std::int64_t cols) {
  const std::int64_t k = x.codes.size(-1), groups = kernels::blocks_of(k, cols);
  if (x.layout.one()) return at::full({rows, groups}, x.scale_inv, x.codes.options().dtype(at::kFloat));
  const at::Tensor grid = x.grid.to(x.codes.device()).to(at::kFloat);
  if (x.layout.cols == 0) return grid.reshape({rows, 1}).expand({rows, groups}).contiguous();
  if (x.layout.cols != cols) return {};
  if (x.layout.rows == 1) return grid.reshape({rows, groups}).contiguous();
  return grid.repeat_interleave(x.layout.rows, 0).narrow(0, x.layout.first_row, rows).contiguous();
}

/// The transpose, as a view.
Fp8Tensor turned(const Fp8Tensor& x) {
  Fp8Tensor result = x;
  result.codes = x.codes.transpose(-2, -1);
  if (x.grid.defined() && x.grid.dim() > 1) result.grid = x.grid.transpose(-2, -1);
  std::swap(result.layout.rows, result.layout.cols);
  return result;
}

/// The product of the values.
at::Tensor product_of_values(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b,
                             at::ScalarType out, const at::Tensor& bias) {
  const bool exact = a.power_of_two && b.power_of_two && out == at::kBFloat16 && !bias.defined();
  const at::ScalarType type = exact ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = dequantize(a, type), w = dequantize(b, type);
  const at::Tensor y = at::matmul(transpose_a ? x.t() : x, transpose_b ? w.t() : w);
  return (bias.defined() ? y.add_(bias) : y).to(out);
}

Fp8Tensor in_f32(const Fp8Tensor& w) {
  Fp8Tensor result = w;
  result.grid = w.grid.to(at::kFloat);
  return result;
}

}  // namespace

at::Tensor matmul(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b, at::ScalarType out,
                  const std::optional<at::Tensor>& any_bias) {
  const at::Tensor bias = any_bias.value_or(at::Tensor());
  if (!a.layout.has_blocks() && !b.layout.has_blocks())
    return product_of_codes(a, transpose_a, b, transpose_b, out, bias);
  // A part of a weight that begins within a block can't be turned: its first column would be that.
  const bool turns =
      (!transpose_a || (a.codes.dim() == 2 && a.layout.first_row == 0)) && (transpose_b || b.layout.first_row == 0);
  if (turns && b.layout.has_blocks() && b.codes.dim() == 2) {
    const Fp8Tensor x = transpose_a ? turned(a) : a, w = transpose_b ? b : turned(b);
    const std::int64_t k = x.codes.size(-1);
    TORCH_CHECK(w.codes.size(1) == k, "[matmul] expected the inner dimensions to be equal, got A ", a.codes.sizes(),
                transpose_a ? " (transposed)" : "", " and B ", b.codes.sizes(), transpose_b ? " (transposed)" : "");
    const at::Tensor scales = k == 0 ? at::Tensor() : scales_of_groups(x, x.codes.numel() / k, w.layout.cols);
    if (scales.defined()) {
      OpScope leaf("fp8::block_linear", a.codes, b.codes);
      Fp8Tensor factor = in_f32(w);
      factor.power_of_two = x.power_of_two && w.power_of_two;
      at::Tensor y = block_product(x.codes, scales, factor, out, bias);
      leaf.gives(y);
      leaf.flops(2 * y.numel() * k);
      return y;
    }
  }
  return product_of_values(a, transpose_a, b, transpose_b, out, bias);
}

at::Tensor linear(const at::Tensor& x, const Fp8Tensor& w, at::ScalarType out, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() >= 1 && w.codes.dim() == 2 && x.size(-1) == w.codes.size(1),
              "[linear] expected x [..., K] and a weight [N, K], got ", x.sizes(), " and ", w.codes.sizes());
  if (w.layout.has_blocks()) {
    OpScope leaf("fp8::block_linear", x, w.codes);
    at::Tensor y = block_product(x, at::Tensor(), in_f32(w), out, bias.value_or(at::Tensor()));
    leaf.gives(y);
    return y;
  }
  OpScope leaf("fp8::weight_only_linear", x, w.codes);
  TORCH_CHECK(w.layout.one() || (w.layout == ScaleLayout::per_row() && w.grid.numel() == w.codes.size(0)),
              "[linear] expected one scale or one per row of the weight, got sizes ", w.grid.sizes());
  at::Tensor y = weight_only_product(x, w, out, bias.value_or(at::Tensor()));
  leaf.gives(y);
  return y;
}

}  // namespace fp8::runtime
