// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/gemm.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

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
    const WeightCodes w(one_weight ? bt : bt[i], terms.reused && one_weight, w_scratch);
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
    g.a_scale_inv =
        terms.a_scale_inv.empty() ? nullptr : terms.a_scale_inv.data() + (terms.a_scale_inv.size() > 1 ? i * rows : 0);
    g.a_scale_stride = terms.a_scale_inv.size() > 1 ? 1 : 0;
    g.w_scale_inv = terms.w_scale_inv.empty() ? nullptr : terms.w_scale_inv.data();
    g.w_scale_stride = terms.w_scale_inv.size() > 1 ? 1 : 0;
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

namespace {

constexpr std::int64_t kKept = std::int64_t{32} << 20;  // bytes of scratch that a thread keeps between calls

}  // namespace

DenseCodes::DenseCodes(const at::Tensor& t, CodesReader by_rows, kernels::Scratch& scratch)
    : reader_(std::move(by_rows)), tensor_(t.view(at::kByte)), scratch_(scratch) {
  if (tensor_.is_contiguous()) {
    data_ = tensor_.const_data_ptr<std::uint8_t>();
  } else if (tensor_.numel() > 0 && tensor_.stride(-2) == 1 && tensor_.stride(-1) >= tensor_.size(-2)) {
    data_ = transposed();
  } else {
    tensor_ = tensor_.contiguous();
    data_ = tensor_.const_data_ptr<std::uint8_t>();
  }
}

DenseCodes::~DenseCodes() { scratch_.shrink(kKept); }

const std::uint8_t* DenseCodes::transposed() {
  const std::int64_t rows = tensor_.size(-2), cols = tensor_.size(-1), matrix = rows * cols;
  std::uint8_t* out = scratch_.get(tensor_.numel());
  const auto* base = tensor_.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < tensor_.numel() / matrix; ++i) {
    std::int64_t offset = 0, rest = i;
    for (std::int64_t dim = tensor_.dim() - 3; dim >= 0; --dim) {
      offset += rest % tensor_.size(dim) * tensor_.stride(dim);
      rest /= tensor_.size(dim);
    }
    kernels::transpose_bytes(base + offset, cols, rows, out + i * matrix, tensor_.stride(-1));
  }
  return out;
}

WeightCodes::WeightCodes(const at::Tensor& t, bool reused, kernels::Scratch& scratch)
    : reader_(CodesReader::for_product(t, reused)) {
  if (layout() == kernels::Layout::row_major) dense_.emplace(t, std::move(reader_), scratch);
}

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
    w_codes.emplace(w.codes, w.reused, w_scratch);
    g.w = w_codes->data(), g.w_layout = w_codes->layout();
  } else {
    x_values = filled_groups(x, p.m, p, as_it_is, to);
    const CodesReader reader(w.codes);
    w_filled = filled_groups(w.codes, p.n, p, as_it_is, to);
    g.w = static_cast<const std::uint8_t*>(w_filled.const_data_ptr());
    g.k = g.a_stride = p.groups * to;
  }
  g.a = x_codes.has_value() ? x_codes->data() : x_values.const_data_ptr();
  g.power_of_two_scales = w.power_of_two;
  g.blocks = {std::min(l.rows, l.first_row + p.n + 1), to, l.first_row % l.rows};  // a larger block is the same
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
  const WeightCodes codes(w.codes, w.reused, scratch);
  g.a = a.const_data_ptr();
  g.w = codes.data(), g.w_layout = codes.layout();
  g.w_scale_inv = w.layout.one() ? &w.scale_inv : scales.const_data_ptr<float>();
  g.w_scale_stride = w.layout.one() ? 0 : 1;
  set_bias(g, addend, "weight_only_linear");
  kernels::gemm(g);
  return y;
}

}  // namespace fp8::runtime
