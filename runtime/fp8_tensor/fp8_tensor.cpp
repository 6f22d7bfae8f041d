// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

bool is_fp8(at::ScalarType type) { return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2; }
kernels::Format format_of(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? kernels::Format::E5M2 : kernels::Format::E4M3;
}
at::ScalarType dtype_of(kernels::Format format) {
  return format == kernels::Format::E5M2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}
at::ScalarType dtype_of(kernels::FloatType type) {
  return type == kernels::FloatType::F32 ? at::kFloat : type == kernels::FloatType::BF16 ? at::kBFloat16 : at::kHalf;
}
bool is_high_precision(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf; }

kernels::FloatType float_type_of(at::ScalarType type) {
  return type == at::kFloat      ? kernels::FloatType::F32
         : type == at::kBFloat16 ? kernels::FloatType::BF16
                                 : kernels::FloatType::F16;
}

kernels::Storage storage_of(at::ScalarType type) {
  return type == at::kFloat         ? kernels::Storage::F32
         : type == at::kBFloat16    ? kernels::Storage::BF16
         : type == at::kHalf        ? kernels::Storage::F16
         : type == at::kFloat8_e5m2 ? kernels::Storage::E5M2
                                    : kernels::Storage::E4M3;
}

void check_fp8(const char* op, const char* what, at::ScalarType type) {
  TORCH_CHECK(is_fp8(type), "[", op, "] expected ", what, " of dtype Float8_e4m3fn or Float8_e5m2, got ", type);
}

void check_high_precision(const char* op, const char* what, at::ScalarType type) {
  TORCH_CHECK(is_high_precision(type), "[", op, "] expected ", what, " Float, BFloat16 or Half, got ", type);
}

// dequantize() of cast.h.

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

/// All but scales, from row `row` on.
kernels::DecodeArgs decode_arguments(const Fp8Tensor& x, const Decoding& d, std::int64_t row, std::int64_t rows) {
  kernels::DecodeArgs args;
  args.codes = d.codes.const_data_ptr<std::uint8_t>() + row * d.cols;
  args.rows = rows;
  args.cols = d.cols;
  args.format = d.format;
  args.y = static_cast<char*>(d.values.mutable_data_ptr()) +
           row * d.cols * static_cast<std::int64_t>(d.values.element_size());
  args.type = float_type_of(d.values.scalar_type());
  args.layout = x.layout;
  args.dialect = x.dialect;
  return args;
}

void decode_scales(const Fp8Tensor& x, const Decoding& d, const float* scale_inv) {
  kernels::DecodeArgs args = decode_arguments(x, d, 0, d.rows);
  args.scale_inv = scale_inv;
  kernels::decode_from_fp8(args);
}

/// Rows [row, row + n), which start a block or lie within one.
void decode_band(const Fp8Tensor& x, const Decoding& d, const at::Tensor& grid, std::int64_t row, std::int64_t n) {
  const std::int64_t groups = kernels::blocks_of(d.cols, x.layout.cols),
                     first = (x.layout.first_row + row) / x.layout.rows * groups;
  kernels::DecodeArgs args = decode_arguments(x, d, row, n);
  if (grid.scalar_type() == at::kFloat) {
    args.scale_inv = grid.const_data_ptr<float>() + first;
  } else {
    args.e8m0 = grid.const_data_ptr<std::uint8_t>() + first;
  }
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
    Fp8Tensor transposed = x;  // its columns are rows
    transposed.codes = x.codes.transpose(-2, -1);
    transposed.grid = x.grid.transpose(-2, -1);
    transposed.layout = ScaleLayout::per_row();
    return decode(transposed, dtype).transpose(-2, -1);
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
  check_high_precision("dequantize", "an output of dtype", dtype);
  at::Tensor y = decode(x, dtype);
  leaf.gives(y);
  return y;
}

}  // namespace fp8::runtime
