// SPDX-License-Identifier: Apache-2.0
// block_ops.h on tensors: checks and outputs; the work is in runtime/kernels/block_cast.h.
#include <ATen/ops/empty.h>

#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/ops/cast/block_ops.h"
#include "fp8/runtime/ops/cast/cast.h"
#include "fp8/runtime/ops/common/arguments.h"
#include "fp8/runtime/profile/trace.h"

namespace fp8::runtime::ops {
namespace {

/// x with contiguous rows, checked.
at::Tensor matrix(const char* op, const at::Tensor& x, at::ScalarType fp8) {
  check_fp8(op, "codes", fp8);
  TORCH_CHECK(x.dim() == 2 && is_high_precision(x.scalar_type()), "[", op,
              "] expected a matrix of dtype Float, BFloat16 or Half, got sizes ", x.sizes(), " of ", x.scalar_type());
  TORCH_CHECK(x.device().is_cpu() || x.device().is_hpu(), "[", op, "] expected a tensor on hpu or cpu, got ",
              x.device());
  const bool usable = x.stride(1) == 1 && x.stride(0) >= x.size(1);
  return usable || x.is_contiguous() ? x.detach() : x.detach().contiguous();
}

std::int64_t row_stride(const at::Tensor& x) { return x.is_contiguous() ? x.size(1) : x.stride(0); }

/// Fields that BlockCastArgs and MxCastArgs share.
template <class Args>
Args arguments(const at::Tensor& x, const at::Tensor& codes, kernels::Dialect dialect, bool stochastic) {
  Args args;
  args.x = x.const_data_ptr();
  args.type = float_type_of(x.scalar_type());
  args.rows = x.size(0);
  args.cols = x.size(1);
  args.row_stride = row_stride(x);
  args.codes = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  args.format = format_of(codes.scalar_type());
  args.max = kernels::fp8_max(args.format, dialect);
  args.stochastic = stochastic;
  if (stochastic) args.seed = draw_seed();
  return args;
}

BlockQuantized outputs(const at::Tensor& x, at::ScalarType fp8, std::int64_t block_rows, std::int64_t block_cols,
                       at::ScalarType scale_type) {
  return {at::empty(x.sizes(), x.options().dtype(fp8)),
          at::empty({kernels::blocks_of(x.size(0), block_rows), kernels::blocks_of(x.size(1), block_cols)},
                    x.options().dtype(scale_type)),
          block_rows, block_cols};
}

void check_block_sizes(const char* op, std::int64_t block_rows, std::int64_t block_cols) {
  if (block_rows >= 1 && block_cols >= 1) return;
  throw c10::ValueError(c10::str("[", op, "] expected blocks of at least 1 x 1, got ", block_rows, " x ", block_cols),
                        nullptr);
}

}  // namespace

BlockQuantized quantize_blocks(const at::Tensor& input, at::ScalarType fp8, kernels::Dialect dialect,
                               std::int64_t block_rows, std::int64_t block_cols, bool power_of_two, float amax_epsilon,
                               bool stochastic) {
  trace_op("fp8::quantize_blocks", {input});
  const at::Tensor x = matrix("quantize_blocks", input, fp8);
  check_block_sizes("quantize_blocks", block_rows, block_cols);
  BlockQuantized out = outputs(x, fp8, block_rows, block_cols, at::kFloat);
  auto args = arguments<kernels::BlockCastArgs>(x, out.codes, dialect, stochastic);
  args.block_rows = block_rows;
  args.block_cols = block_cols;
  args.power_of_two = power_of_two;
  args.amax_epsilon = amax_epsilon;
  args.scale_inv = out.scale_inv.mutable_data_ptr<float>();
  kernels::cast_blocks(args);
  return out;
}

BlockQuantized quantize_mx(const at::Tensor& input, at::ScalarType fp8, kernels::Dialect dialect, MxDirection direction,
                           bool stochastic) {
  trace_op("fp8::quantize_mx", {input});
  const at::Tensor x = matrix("quantize_mx", input, fp8);
  const bool columnwise = direction == MxDirection::columnwise;
  BlockQuantized out =
      outputs(x, fp8, columnwise ? kernels::kMxBlock : 1, columnwise ? 1 : kernels::kMxBlock, at::kFloat8_e8m0fnu);
  auto args = arguments<kernels::MxCastArgs>(x, out.codes, dialect, stochastic);
  args.columnwise = columnwise;
  args.e8m0 = static_cast<std::uint8_t*>(out.scale_inv.mutable_data_ptr());
  kernels::cast_mx(args);
  return out;
}

at::Tensor dequantize_blocks(const BlockQuantized& q, at::ScalarType out_dtype) {
  trace_op("fp8::dequantize_blocks", {q.codes, q.scale_inv});
  check_fp8("dequantize_blocks", "codes", q.codes.scalar_type());
  TORCH_CHECK(q.codes.dim() == 2, "[dequantize_blocks] expected a matrix of codes, got sizes ", q.codes.sizes());
  TORCH_CHECK(is_high_precision(out_dtype),
              "[dequantize_blocks] expected an output of dtype Float, BFloat16 or Half, got ", out_dtype);
  check_block_sizes("dequantize_blocks", q.block_rows, q.block_cols);
  const auto type = q.scale_inv.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kFloat8_e8m0fnu || type == at::kByte,
              "[dequantize_blocks] expected scale_inv of dtype Float, Float8_e8m0fnu or Byte, got ", type);
  const std::int64_t grid[] = {kernels::blocks_of(q.codes.size(0), q.block_rows),
                               kernels::blocks_of(q.codes.size(1), q.block_cols)};
  TORCH_CHECK(q.scale_inv.sizes() == at::IntArrayRef(grid) && q.scale_inv.device() == q.codes.device(),
              "[dequantize_blocks] expected scale_inv of sizes ", at::IntArrayRef(grid), " on ", q.codes.device(),
              ", got sizes ", q.scale_inv.sizes(), " on ", q.scale_inv.device());
  const at::Tensor codes = q.codes.view(at::kByte).contiguous();
  const at::Tensor scales = type == at::kFloat ? q.scale_inv.contiguous() : q.scale_inv.view(at::kByte).contiguous();
  at::Tensor out = at::empty(codes.sizes(), codes.options().dtype(out_dtype));
  kernels::BlockDecodeArgs args;
  args.codes = codes.const_data_ptr<std::uint8_t>();
  args.rows = codes.size(0);
  args.cols = codes.size(1);
  args.format = format_of(q.codes.scalar_type());
  args.block_rows = q.block_rows;
  args.block_cols = q.block_cols;
  if (type == at::kFloat) {
    args.scale_inv = scales.const_data_ptr<float>();
  } else {
    args.e8m0 = scales.const_data_ptr<std::uint8_t>();
  }
  args.y = out.mutable_data_ptr();
  args.type = float_type_of(out_dtype);
  kernels::decode_blocks(args);
  return out;
}

}  // namespace fp8::runtime::ops
