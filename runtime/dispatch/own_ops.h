// SPDX-License-Identifier: Apache-2.0
// mm and addmm of one or two bf16 rows with a large bf16 weight, as linear() makes them of one token: by our own kernel
// (kernels/gemm.h), which reads the weight as fast as memory gives it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <tuple>

#include "fp8/runtime/kernels/attention.h"

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

// aten::_grouped_mm of operands that the CPU's kernel refuses: rows that are no multiple of 16 bytes, expanded
// gradients.

/// Such an operand is copied into rows that fit. Takes no call (BeforeFallback).
bool fit_grouped_mm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// aten::histc of integers, which the CPU has no kernel for.

/// aten::histc and histc.out. An integer tensor is counted exactly, as a device does: element v falls into bin floor((v
/// - min) * bins / (max - min)), v = max into the last, what lies outside into none; min = max: the tensor's own (where
/// they are equal too: min - 1 and max + 1). The counts have its dtype. c10::Error: bins < 1, min > max, bounds that
/// are no whole numbers, more elements in a bin than the dtype counts. Nothing else is taken (BeforeFallback).
bool histc_of_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Which attention kernel scaled_dot_product_attention takes on hpu: the one the CPU would take. Without an answer of
// our own the fallback would ask about aliases that need no gradient, and the composite would pick a kernel that has
// none for the mask. And that kernel for few rows of queries, as of one token over its cache, by our own.

/// at::SDPBackend as a number, asked of the CPU for aliases that need a gradient where the arguments do. q, k, v: [...,
/// L, E].
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa);

/// True if kernels/attention.h is for so many rows over so many keys, of heads of this width and dtype.
bool takes_few_rows(at::ScalarType dtype, std::int64_t rows, std::int64_t keys, std::int64_t width);

/// The part of t [B, H, L, E] that the kernel reads by its alias; sizes of 1 that are expanded have stride 0.
kernels::HeadsOf<const void> heads_of(const at::Tensor& t, const at::Tensor& alias);

/// aten::_scaled_dot_product_flash_attention_for_cpu. Up to 16 rows of bf16, f16 or f32 over 64 keys or more, without
/// dropout, causality or gradient, take kernels/attention.h; all else unboxed.h.
std::tuple<at::Tensor, at::Tensor> flash_attention(c10::DispatchKeySet keys, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value, double dropout_p,
                                                   bool is_causal, const std::optional<at::Tensor>& attn_mask,
                                                   std::optional<double> scale);

}  // namespace fp8::runtime
