// SPDX-License-Identifier: Apache-2.0
// The attention family as C++ functions. They go through the dispatcher, so traces and profilers see them by name.
// fused_sdpa, fused_rms_norm and apply_rotary_pos_emb have first-order gradients (the vendor's FusedSDPA, FusedRMSNorm
// and RotaryPosEmbeddingHelper do); a second derivative throws by name. The others have none.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace fp8::runtime::ops {

/// hpu::softmax_fp8: softmax(x * inv_attn_heads * input_scale + fused_add) * output_scale over the last dimension; E4M3
/// with both scales (f32, one element each), bf16 without. x: bf16, or E4M3 with scales.
at::Tensor call_softmax_fp8(const at::Tensor& x, int64_t dim, const std::optional<at::Tensor>& input_scale,
                            const std::optional<at::Tensor>& output_scale,
                            const std::optional<at::Tensor>& inv_attn_heads = std::nullopt,
                            const std::optional<at::Tensor>& fused_add = std::nullopt);

/// hpu::sum_fp8.
at::Tensor call_sum_fp8(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType> out_dtype);

struct FusedSdpaOptions {
  std::optional<at::Tensor> mask;  ///< bool (true: seen) or added to the scores; broadcasts to [..., L, S]
  double dropout_p = 0.0;          ///< the seed is drawn from the default generator
  bool is_causal = false;
  std::optional<double> scale;  ///< default 1 / sqrt(D)
  std::string softmax_mode = "none";
  bool recompute = true;                    ///< keep the rows' statistics for the backward, not P
  std::optional<at::Tensor> valid_seq_len;  ///< int32 or int64 [batch]; inference with is_causal and no mask only
  std::string seq_padding_type = "left";
};

/// hpu::sdpa_recomp_fwd or sdpa_fwd. q: [..., L, D], k: [..., S, D], v: [..., S, Dv] in f32, bf16 or f16; 4-D inputs
/// may have a multiple of k's heads in q (grouped queries). Result: [..., L, Dv].
at::Tensor fused_sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const FusedSdpaOptions& options);

/// f32, one element each, or none. d_*: dequantization multipliers of codes; q_*: multipliers into codes.
struct Fp8SdpaScales {
  std::optional<at::Tensor> d_q, d_k, d_v;
  std::optional<at::Tensor> q_s, q_o;  ///< of P (default 1), of the output (default: none, a bf16 output)
  std::optional<at::Tensor> d_s;       ///< default 1 / q_s
};

struct Fp8SdpaOutput {
  at::Tensor out, amax_s, amax_o;  ///< amaxes: f32 {1} of P and of the output, unscaled; 0 where not asked for
};

/// hpu::fp8_sdpa_recomp_fwd, or fp8_sdpa_fwd without recompute (which has no amax_o). q, k, v: codes; or high precision
/// without scales, to measure. Forward only: throws where a gradient is needed.
Fp8SdpaOutput fp8_fused_sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const FusedSdpaOptions& options, const Fp8SdpaScales& scales, bool is_amax_s = false,
                             bool is_amax_o = false);

/// hpu::rms_norm: x / sqrt(mean(x^2) + eps) * gamma over the last dimension. gamma: [N].
at::Tensor fused_rms_norm(const at::Tensor& x, const at::Tensor& gamma, double eps, bool fast_math = false);

enum class RotaryMode { blockwise = 0, pairwise = 1 };

/// hpu::rotary_pos_embedding: x * cos + rotate(x) * sin. Shapes: attention.h. Gradient for x alone.
at::Tensor apply_rotary_pos_emb(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                const std::optional<at::Tensor>& position_ids = std::nullopt, int64_t offset = 0,
                                RotaryMode mode = RotaryMode::blockwise);

}  // namespace fp8::runtime::ops
