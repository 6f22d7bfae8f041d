// SPDX-License-Identifier: Apache-2.0
// dequantize() of cast.h.
#include "fp8/runtime/kernels/decode.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

/// codes and values as matrices of `cols` columns.
struct Decoding {
  const at::Tensor codes, values;
  std::int64_t rows, cols;
  kernels::Format format;

  Decoding(const Fp8Tensor& x, at::ScalarType dtype)
      : codes(x.codes.is_contiguous() ? x.codes.view(at::kByte) : x.codes.view(at::kByte).contiguous()),
        values(at::empty(codes.sizes(), codes.options().dtype(dtype))),
        cols(codes.dim() == 0 ? 1 : codes.size(-1)),
        format(format_of(x.codes.scalar_type())) {
    rows = cols == 0 ? 0 : codes.numel() / cols;
  }
};

void decode_scales(const Fp8Tensor& x, const Decoding& d, const float* scale_inv) {
  kernels::DecodeArgs args;
  args.codes = d.codes.const_data_ptr<std::uint8_t>();
  args.rows = d.rows;
  args.cols = d.cols;
  args.format = d.format;
  args.y = d.values.mutable_data_ptr();
  args.type = float_type_of(d.values.scalar_type());
  args.scale_inv = scale_inv;
  args.scale_row_stride = x.layout.rows;
  args.scale_col_stride = x.layout.cols;
  args.dialect = x.dialect;
  kernels::decode_from_fp8(args);
}

/// Rows [row, row + n), which start a block or lie within one.
void decode_band(const Fp8Tensor& x, const Decoding& d, const at::Tensor& grid, std::int64_t row, std::int64_t n) {
  const std::int64_t groups = kernels::blocks_of(d.cols, x.layout.cols),
                     first = (x.layout.first_row + row) / x.layout.rows * groups;
  kernels::BlockDecodeArgs args;
  args.codes = d.codes.const_data_ptr<std::uint8_t>() + row * d.cols;
  args.rows = n;
  args.cols = d.cols;
  args.format = d.format;
  args.block_rows = x.layout.rows;
  args.block_cols = x.layout.cols;
  if (grid.scalar_type() == at::kFloat) {
    args.scale_inv = grid.const_data_ptr<float>() + first;
  } else {
    args.e8m0 = grid.const_data_ptr<std::uint8_t>() + first;
  }
  args.y = static_cast<char*>(d.values.mutable_data_ptr()) +
           row * d.cols * static_cast<std::int64_t>(d.values.element_size());
  args.type = float_type_of(d.values.scalar_type());
  kernels::decode_blocks(args);
}

void decode_blocks(const Fp8Tensor& x, const Decoding& d) {
  const ScaleLayout& l = x.layout;
  const auto type = x.grid.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kFloat8_e8m0fnu || type == at::kByte,
              "[dequantize] expected scales of dtype Float, Float8_e8m0fnu or Byte, got ", type);
  const std::int64_t bands = kernels::blocks_of(l.first_row % l.rows + d.rows, l.rows) + l.first_row / l.rows,
                     groups = kernels::blocks_of(d.cols, l.cols);
  TORCH_CHECK(
      d.codes.numel() == 0 || (x.grid.dim() > 0 && x.grid.size(-1) == groups && x.grid.numel() / groups >= bands),
      "[dequantize] expected a grid of ", bands, " x ", groups, " scales, got sizes ", x.grid.sizes());
  const at::Tensor grid = type == at::kFloat ? x.grid.contiguous() : x.grid.view(at::kByte).contiguous();
  const std::int64_t begun = l.first_row % l.rows, rest = begun == 0 ? 0 : std::min(d.rows, l.rows - begun);
  if (rest > 0) decode_band(x, d, grid, 0, rest);
  if (rest < d.rows) decode_band(x, d, grid, rest, d.rows - rest);
}

}  // namespace

at::Tensor decode(const Fp8Tensor& x, at::ScalarType dtype) {
  const bool per_column = x.layout == ScaleLayout::per_column();
  if (per_column && !(x.codes.is_contiguous() && x.grid.numel() == x.codes.size(-1))) {
    Fp8Tensor turned = x;  // as rows of the transposed matrices
    turned.codes = x.codes.transpose(-2, -1);
    turned.grid = x.grid.transpose(-2, -1);
    turned.layout = ScaleLayout::per_row();
    return decode(turned, dtype).transpose(-2, -1);
  }
  const CodesReader by_rows(x.codes);
  const Decoding d(x, dtype);
  if (x.layout.has_blocks()) {
    decode_blocks(x, d);
  } else if (x.layout.one()) {
    decode_scales(x, d, &x.scale_inv);
  } else {
    TORCH_CHECK(per_column || x.grid.numel() == d.rows || d.codes.numel() == 0, "[dequantize] expected ", d.rows,
                " scales of rows, got sizes ", x.grid.sizes());
    const at::Tensor grid = x.grid.contiguous();
    decode_scales(x, d, grid.const_data_ptr<float>());
  }
  return d.values;
}

at::Tensor dequantize(const Fp8Tensor& x, at::ScalarType dtype) {
  OpScope leaf("fp8::dequantize", x.codes);
  check_fp8("dequantize", "codes", x.codes.scalar_type());
  TORCH_CHECK(is_high_precision(dtype), "[dequantize] expected an output of dtype Float, BFloat16 or Half, got ",
              dtype);
  at::Tensor y = decode(x, dtype);
  leaf.gives(y);
  return y;
}

}  // namespace fp8::runtime
