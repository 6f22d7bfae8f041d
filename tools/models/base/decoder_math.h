// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embeddings and SwiGLU of decoder layers, on any device. Where no gradient is needed, tensors of one
// dtype (bf16 or f32) on the CPU or on hpu take one pass of our kernels (runtime/kernels/decoder_math.h); all others
// take PyTorch's operations, with the same roundings. A rotation is the same to the bit; a norm's sums are added in
// another order, and exponentials are others in the last bits of f32.
//
// `next`: what the result will be cast to (modules/linear_together.h, input_cast). One pass makes and keeps the codes
// too.
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/runtime/fp8_tensor/cast_beside.h"

namespace fp8::models {

/// cos and sin [1 or B, 1, L, D] of the positions of one forward, in the compute dtype.
struct RotaryAngles {
  at::Tensor cos, sin;
};

/// weight * cast(x * rsqrt(mean(x^2) + eps)), the inner part in f32; wide: cast((offset + weight) * x * rsqrt(...)),
/// all of it. x: [..., H], weight: [H].
struct RmsNormForm {
  bool wide = false;
  double offset = 0;
};
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form = {},
                    const runtime::NextCast& next = {});
/// By PyTorch's operations: in training a layer that runs again, for its gradients, must give the same bits.
at::Tensor rms_norm_by_operations(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form = {});

/// (x - mean) * rsqrt(var + eps) * weight + bias, in f32, then cast. x: [..., H]; weight and bias: [H] or undefined.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      const runtime::NextCast& next = {});

/// cast(silu(gate)) * up, of one shape.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const runtime::NextCast& next = {});

/// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin): element i turns with element i + D/2, as Hugging Face stores q and
/// k. x: [B, A, L, D].
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles);

}  // namespace fp8::models
