// SPDX-License-Identifier: Apache-2.0
// Attention with both passes in fp8, one scale per tensor.
//
//   forward    q8, k8, v8 = cast(q, k, v)    P8 = cast(softmax(scale q8 k8^T))    o = P8 v8
//   backward   do8 = cast(do)                dP = do8 v8^T    dS8 = cast(P8 (dP - sum(P8 dP)))
//              dq = scale dS8 k8             dk = scale dS8^T q8                  dv = P8^T do8
//
// o is rounded to bf16, as the vendor's operator gives it, and comes in the activation dtype.
//
// Scales: delayed, of earlier steps. current: q, k, v and do from themselves, P from its bound of 1, dS from a first
// run of the backward pass (it is seen nowhere else). Other recipes have more than one scale a tensor and are refused.
// Backward reads the forward's codes in every dialect.
#pragma once

#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

struct Fp8AttentionOptions {
  double p = 0.0;      ///< dropout; the seed comes from the default generator
  double scale = 1.0;  ///< of q . k^T
  bool is_causal = false;
  bool recompute = false;  ///< keep the rows' statistics for the backward pass, not P's codes
  std::string softmax_mode = "none";
  bool training = true;  ///< amaxes may be recorded
};

/// q: [B, H, L, D], k: [B, G, S, D], v: [B, G, S, Dv] of one dtype of f32, bf16, f16, H a multiple of G; or 3-D. mask:
/// undefined, bool (true: seen) or added. state: 4 forward tensors q, k, v, P and 2 backward tensors do, dS. Result:
/// [B, H, L, Dv] in the activation dtype. Needs an enabled region. Throws c10::Error naming the product for sizes,
/// dtypes and recipes that do not fit, and for HYBRID on Gaudi2. A second derivative throws by name.
at::Tensor fp8_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                         const std::shared_ptr<Fp8State>& state, const Fp8AttentionOptions& options);

/// In a region that calibrates: records the amaxes of q, k and v, of P its bound 1; computes nothing.
void record_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::shared_ptr<Fp8State>& state);

}  // namespace fp8::te
