// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/gemm/gemm.h"

#include <ATen/ops/empty.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/gemm.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime::ops {
namespace {

GemmShape shape_of(const at::Tensor& a, const at::Tensor& b, const GemmOptions& o) {
  TORCH_CHECK(is_high_precision(o.out_dtype), "[fp8_gemm_v2] expected out_dtype Float, BFloat16 or Half, got ",
              o.out_dtype);
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

}  // namespace fp8::runtime::ops
