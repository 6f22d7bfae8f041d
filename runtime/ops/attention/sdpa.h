// SPDX-License-Identifier: Apache-2.0
// hpu::sdpa_*, fp8_sdpa_*: what their arguments mean, their checks and their results; the arithmetic is attention.h's.
//
//   d_scale_*  dequantization multipliers    q_scale_*  multipliers into fp8    s = softmax, o = output, do, ds = grads
//   P is cast with q_scale_s (default 1) and undone with d_scale_s (default 1 / q_scale_s); dS likewise, in grad's
//   format (E5M2 where grad is in high precision). fp8 q: out has q's dtype if q_scale_o is given, else bf16; P has q's
//   dtype.
//   amax_*: f32, shape {1}, of the unscaled values; 0 where not asked for.
//
// Scales belong to fp8 operands: beside high-precision q, k, v they are refused by name. softmax_mode "fast" changes no
// number here, only linv's dtype (as the vendor's). mask and is_causal may be given together: both apply. fwd_out is
// what the forward gave; the sum over keys of P dP is taken as it stands, so only its sizes are read.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {

/// The arguments that every forward has.
struct SdpaOptions {
  const std::optional<at::Tensor>& mask;
  double p = 0;      ///< dropout
  double scale = 1;  ///< of q . k^T
  bool is_causal = false;
  std::string_view softmax_mode;
  const std::optional<at::Tensor>& valid_seq_len;  ///< int32 or int64 [batch], of the keys
  std::string_view seq_padding_type;               ///< left | right
  std::optional<at::Tensor> seed;                  ///< one int32 or int64; without it one is drawn when p > 0
};

/// One element each, or none. With none of them an operand's multiplier is 1.
struct SdpaScales {
  Scale d_q, d_k, d_v, d_s, d_do, d_ds;
  Scale q_s, q_o, q_ds;
};

/// Tensors only, no arithmetic: sizes and dtypes of the results, for meta tensors too.
enum class Run { meta, real };

using SdpaResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;                    // out, P, dm
using SdpaRecompResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // out, m, linv, seed
using Fp8SdpaResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;     // out, P, dm, amax_s
using Fp8SdpaRecompResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // ..., seed, amax_s, amax_o
using SdpaGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;                    // dq, dk, dv
using Fp8SdpaGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;     // ..., amax_ds

/// q: [..., L, D], k: [..., S, D], v: [..., S, Dv] of one rank >= 3, batch dimensions broadcast. dm: int8, {1} when p
/// is 0.
Fp8SdpaResult sdpa_forward(const char* op, Run run, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SdpaOptions& options, const SdpaScales& scales, bool is_amax_s);

/// m, linv: [..., L, 1], seed: int32 {1}; {1} each (and 0) unless requires_backward.
Fp8SdpaRecompResult sdpa_recomp_forward(const char* op, Run run, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const SdpaOptions& options, const SdpaScales& scales,
                                        bool requires_backward, bool is_amax_s, bool is_amax_o);

/// The results of a forward that its backward needs: P and dm, or m, linv, seed and the mask.
struct SdpaSaved {
  at::Tensor p, m, linv;
  std::optional<at::Tensor> dm, seed, mask;
};

/// grad, fwd_out: [..., L, Dv]. Gradients in `dtype`; amax_ds {1}.
Fp8SdpaGradients sdpa_backward(const char* op, Run run, const at::Tensor& grad, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const SdpaSaved& saved, bool is_causal,
                               double p, double scale, const SdpaScales& scales, bool is_amax_ds,
                               const at::Tensor& fwd_out, at::ScalarType dtype);

}  // namespace fp8::runtime::ops
