// SPDX-License-Identifier: Apache-2.0
// hpu::rms_norm, rms_norm_fast and their backwards.
//
//   r = 1 / sqrt(mean(x^2) + epsilon)       y = x * r * gamma                over the last dimension, of size N
//   dx = r * (g - x r * mean(g * x r))      dgamma = sum over rows of dy * x r        g = dy * gamma
//
// f32, sums in f64, one rounding. Results have x's dtype when all inputs share it, else f32. The fast forms give the
// same numbers; use_stages and bwd_mode (0 or 1) choose kernels on the device and nothing here.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace fp8::runtime::ops {

/// data_in: [..., N], gamma: [N]; f32, bf16 or f16 each. Returns {y, r [..., 1]}.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon);
std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon);

/// grad_in: [..., N] (dy), inverse_rms: [..., 1]. Returns {dx, dgamma}.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                     const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                     bool use_stages, int64_t bwd_mode);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                          const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                          bool use_stages, int64_t bwd_mode);

}  // namespace fp8::runtime::ops
