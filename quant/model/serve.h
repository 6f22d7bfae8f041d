// SPDX-License-Identifier: Apache-2.0
// For programs that do nothing but run a model.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <vector>

namespace fp8::quant {

/// Lets the weights of converted layers lie packed in their memory as long as products read them
/// (runtime/device/block.h): the same bits, and products of one token are 1.6 times as fast (AVX2). Whoever else
/// reads or writes them by an operation finds rows; an address of theirs throws while they are packed
/// (Tensor::data_ptr(), which Python's torch.save asks for). Returns how many weights that are.
std::size_t serve(const torch::nn::Module& model);
std::size_t serve(const torch::jit::Module& model);
std::size_t serve(const std::vector<at::Tensor>& weights);

}  // namespace fp8::quant
