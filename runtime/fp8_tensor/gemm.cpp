// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/gemm.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include "fp8/runtime/fp8_tensor/dense_codes.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/gemm.h"

namespace fp8::runtime {
namespace {

at::Tensor swapped(const at::Tensor& t) { return t.transpose(-2, -1); }

/// Matrices broadcast to `batch`.
at::Tensor expanded(const at::Tensor& t, std::vector<std::int64_t> batch) {
  batch.insert(batch.end(), {t.size(-2), t.size(-1)});
  return t.expand(batch);
}

}  // namespace

GemmShape::GemmShape(const char* op, const at::Tensor& a_codes, bool transpose_a, const at::Tensor& b_codes,
                     bool transpose_b) {
  check_fp8(op, "A", a_codes.scalar_type());
  check_fp8(op, "B", b_codes.scalar_type());
  TORCH_CHECK(a_codes.dim() >= 1 && b_codes.dim() >= 1, "[", op, "] expected A and B of at least one dimension, got ",
              a_codes.dim(), " and ", b_codes.dim());
  a = a_codes.dim() == 1 ? a_codes.unsqueeze(0) : transpose_a ? swapped(a_codes) : a_codes;
  bt = b_codes.dim() == 1 ? b_codes.unsqueeze(0) : transpose_b ? b_codes : swapped(b_codes);
  m = a.size(-2);
  k = a.size(-1);
  n = bt.size(-2);
  TORCH_CHECK(bt.size(-1) == k, "[", op, "] expected the inner dimensions to be equal, got A ", a_codes.sizes(),
              (transpose_a ? " (transposed)" : ""), " and B ", b_codes.sizes(), (transpose_b ? " (transposed)" : ""));
  batch = at::infer_size(a.sizes().slice(0, a.dim() - 2), bt.sizes().slice(0, bt.dim() - 2));
  sizes = batch;
  if (a_codes.dim() > 1) sizes.push_back(m);
  if (b_codes.dim() > 1) sizes.push_back(n);
}

std::int64_t GemmShape::all_rows() const {
  std::int64_t rows = m;
  for (auto size : batch) rows *= size;
  return rows;
}

void set_bias(kernels::GemmArgs& args, const at::Tensor& bias, const char* op) {
  if (!bias.defined()) return;
  TORCH_CHECK(is_high_precision(bias.scalar_type()) && bias.numel() == args.n, "[", op, "] expected a bias of ", args.n,
              " elements of dtype Float, BFloat16 or Half, got ", bias.numel(), " of ", bias.scalar_type());
  args.bias = bias.const_data_ptr();
  args.bias_type = float_type_of(bias.scalar_type());
}

at::Tensor gemm(const GemmShape& p, at::ScalarType out_dtype, const GemmTerms& terms) {
  at::Tensor out = at::empty(p.sizes, p.a.options().dtype(out_dtype));
  if (terms.add.defined()) out.copy_(terms.add);
  const at::Tensor bias = terms.bias.defined() ? terms.bias.contiguous() : at::Tensor();
  std::int64_t batches = 1;
  for (auto size : p.batch) batches *= size;
  const bool one_weight = p.bt.dim() == 2;  // every batch meets the same weight: one tall product
  thread_local kernels::Scratch a_scratch, w_scratch;
  const DenseCodes a_codes(one_weight || batches == 1 ? p.a : expanded(p.a, p.batch), a_scratch);
  const std::int64_t products = one_weight ? 1 : batches;
  const at::Tensor bt = one_weight ? p.bt : expanded(p.bt, p.batch).reshape({batches, p.n, p.k});
  const std::int64_t rows = one_weight ? batches * p.m : p.m;
  for (std::int64_t i = 0; i < products; ++i) {
    const WeightCodes w(one_weight ? bt : bt[i], terms.again && one_weight, w_scratch);
    kernels::GemmArgs g;
    g.m = rows;
    g.n = p.n;
    g.k = p.k;
    g.a = a_codes.data() + i * rows * p.k;
    g.a_type = storage_of(p.a.scalar_type());
    g.a_stride = p.k;
    g.w = w.data();
    g.w_layout = w.layout();
    g.w_format = format_of(p.bt.scalar_type());
    g.a_scale_inv = terms.rows.empty() ? nullptr : terms.rows.data() + (terms.rows.size() > 1 ? i * rows : 0);
    g.a_scale_stride = terms.rows.size() > 1 ? 1 : 0;
    g.w_scale_inv = terms.columns.empty() ? nullptr : terms.columns.data();
    g.w_scale_stride = terms.columns.size() > 1 ? 1 : 0;
    set_bias(g, bias, "fp8_gemm_v2");
    g.y = static_cast<char*>(out.mutable_data_ptr()) + i * rows * p.n * out.element_size();
    g.y_type = float_type_of(out_dtype);
    g.y_stride = p.n;
    g.accumulate = terms.add.defined();
    g.dialect = terms.dialect;
    kernels::gemm(g);
  }
  return out;
}

}  // namespace fp8::runtime
