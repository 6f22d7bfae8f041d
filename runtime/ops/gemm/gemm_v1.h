// SPDX-License-Identifier: Apache-2.0
// hpu::fp8_gemm, the deprecated form of fp8_gemm_v2 (gemm/gemm.h): D is always given and read only if `accumulate`;
// the result goes to `out`.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace fp8::runtime::ops {

/// out: out_dtype, of the product's sizes.
at::Tensor& fp8_gemm_v1(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                        at::ScalarType out_dtype, const std::optional<at::Tensor>& a_scale_inv,
                        const std::optional<at::Tensor>& b_scale_inv, const std::optional<at::Tensor>& bias,
                        bool accumulate, at::Tensor& out);
/// The checks alone.
at::Tensor& fp8_gemm_v1_meta(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                             at::ScalarType out_dtype, const std::optional<at::Tensor>& a_scale_inv,
                             const std::optional<at::Tensor>& b_scale_inv, const std::optional<at::Tensor>& bias,
                             bool accumulate, at::Tensor& out);

}  // namespace fp8::runtime::ops
