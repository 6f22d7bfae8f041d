// SPDX-License-Identifier: Apache-2.0
// hpu::sum_fp8: the sum of fp8 values over dimensions, in f32 (as at::sum of the same values), rounded once to
// out_dtype; to fp8 it saturates as the device does.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime::ops {

/// self: fp8, f32, bf16 or f16. dim: none or empty for all. out_dtype: one of those too, default self's.
at::Tensor sum_fp8(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> out_dtype);
at::Tensor sum_fp8_meta(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType> out_dtype);

}  // namespace fp8::runtime::ops
