// SPDX-License-Identifier: Apache-2.0
// quantized_decomposed::{quantize,dequantize}_per_{tensor,channel,token} on hpu.
//
//   float8     q = RNE(clamp(x / scale + zero_point, quant_min, quant_max)): not rounded to integers; f32 arithmetic,
//              saturating as the device does. Per channel and per token x * (1 / scale), as the device does.
//              y = (q - zero_point) * scale in f32, rounded once to the output dtype
//   integers   as PyTorch defines the ops: rounded to integers, its arithmetic step by step
//
// int8, uint8, int16, uint16, int32, float8_e4m3fn and float8_e5m2; quant_min and quant_max within the dtype's bounds.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime::ops {

/// The quantized side: its dtype and the range codes are clamped to.
struct QuantRange {
  std::int64_t min = 0, max = 0;
  at::ScalarType dtype = at::kChar;
};

/// input: f32, bf16 or f16; result of range.dtype and input's sizes.
at::Tensor quantize_per_tensor(const at::Tensor& input, double scale, double zero_point, const QuantRange& range);
/// scales, zero_points: one element per index of `axis` (negative counts from the end); one element stands for all.
at::Tensor quantize_per_channel(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                                int64_t axis, const QuantRange& range);
/// scales, zero_points: one element per token, which is a row of the last dimension; one element stands for all.
at::Tensor quantize_per_token(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                              const QuantRange& range);

/// input: of range.dtype; result of out_dtype (f32, bf16 or f16).
at::Tensor dequantize_per_tensor(const at::Tensor& input, double scale, double zero_point, const QuantRange& range,
                                 at::ScalarType out_dtype);
at::Tensor dequantize_per_channel(const at::Tensor& input, const at::Tensor& scales,
                                  const std::optional<at::Tensor>& zero_points, int64_t axis, const QuantRange& range,
                                  at::ScalarType out_dtype);
at::Tensor dequantize_per_token(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                                const QuantRange& range, at::ScalarType out_dtype);

/// The checks on both sides; for meta tensors.
void check_quantize(const at::Tensor& input, const QuantRange& range);
void check_dequantize(const at::Tensor& input, const QuantRange& range, at::ScalarType out_dtype);

}  // namespace fp8::runtime::ops
