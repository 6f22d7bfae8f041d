// SPDX-License-Identifier: Apache-2.0
// Modules as a fresh model has them: each weight has its shape and one NaN behind it. No memory and no time is spent on
// random numbers, and use before loading gives NaN.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace fp8::models {

/// A tensor of that shape with one NaN behind all its elements, f32.
at::Tensor placeholder(at::IntArrayRef shape);

torch::nn::Linear make_linear(std::int64_t in, std::int64_t out, bool bias);
torch::nn::Embedding make_embedding(std::int64_t rows, std::int64_t width);

/// Makes linear's weight the very tensor `weight`.
void tie(torch::nn::Linear linear, const at::Tensor& weight);

}  // namespace fp8::models
