// SPDX-License-Identifier: Apache-2.0
// mm and addmm of one or two bf16 rows with a large bf16 weight, as linear() makes them of one token: by our own kernel
// (kernels/gemv.h), which reads the weight as fast as memory gives it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace fp8::runtime {

/// input [m, k] . weight [n, k]^T (+ bias [n]), rounded once, if it is such a product: 1 or 2 rows, a weight of 2^19
/// elements or more whose transpose `weight_t` [k, n] is, all bf16 on one hpu device. Else nothing.
std::optional<at::Tensor> few_rows_product(const at::Tensor& input, const at::Tensor& weight_t,
                                           const std::optional<at::Tensor>& bias);

/// x [..., k] . w [n, k]^T of each weight, the same bits, if all are such products; else none. Not traced.
std::vector<at::Tensor> few_rows_products(const at::Tensor& x, at::ArrayRef<at::Tensor> weights);

/// few_rows_product() for a call of aten::mm or, where it `adds`, of aten::addmm (beta = alpha = 1): takes its
/// arguments from the stack and leaves the result, or leaves all as it is and returns false.
bool call_few_rows(bool adds, torch::jit::Stack& stack);

}  // namespace fp8::runtime
