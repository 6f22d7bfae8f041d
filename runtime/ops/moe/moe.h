// SPDX-License-Identifier: Apache-2.0
// hpu::mixture_of_experts, all overloads. With e = list position of an expert, x = hidden states of the tokens routed
// to it, rw = their router weights:
//
//   g = x . w1[e]      u = x . w2[e]      h = act(g) * u      y[token] += rw * (h . w3[e])
//
//   high precision    every step in x's dtype, the sum over experts in f32
//   fp8               x and w are codes: g, u and h f32; h is cast to x's fp8 dtype with 1 / d_scale_intermediate, or
//                     dynamically with one scale per token (amax / max); result bf16. All d_scale_* multiply out.
//   blockwise         x in high precision, w codes with one d_scale per block_size x block_size block; result bf16
//
// Which experts: the routing table holds global ids. Those outside of [experts_min, experts_max] belong to other ranks
// and are passed over. A list of experts_max - experts_min + 1 weights is this rank's (position = id - experts_min); a
// longer one is that of all ranks (position = id).
#pragma once

#include <tuple>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {

struct MoeCall {
  at::Tensor hidden;                   ///< [T, H]
  at::Tensor table;                    ///< [T, k] int32 or int64, expert ids
  at::Tensor router_weights;           ///< [T, k] f32, bf16 or f16
  std::vector<at::Tensor> w1, w2, w3;  ///< w2 empty: w1 holds both, w1's outputs first
  bool permuted = false;               ///< w1, w2 [F, H] and w3 [H, F] instead of [H, F] and [F, H]
  std::string activation;              ///< gelu (erf), relu or silu
  std::int64_t experts_min = 0, experts_max = 0;

  std::size_t experts() const { return w3.size(); }
  bool fused() const { return w2.empty(); }
  at::Tensor activated(const at::Tensor& x) const;
};

/// The multipliers out of fp8. Each list holds one entry per expert.
struct MoeScales {
  Scale hidden;                     ///< one value or one per token
  std::vector<Scale> intermediate;  ///< one value each; empty: dynamic, per token
  std::vector<Scale> w1, w2, w3;    ///< one value or one per output; w2 empty when fused
  std::int64_t block_size = 0;      ///< > 0: blockwise; w1, w2, w3 then are 2-D, in the orientation of the weights
};

/// Result [T, H] in hidden's dtype (f32, bf16, f16). Made of aten ops, so it has gradients, and a tagged weight's
/// handler is asked. amax (f32 [experts], or nullptr): max |h| per expert, 0 where no token came.
at::Tensor mixture_of_experts(const MoeCall& call, at::Tensor* amax);

/// Result [T, H] bf16. Throws when tokens meet an expert whose intermediate scale is not positive and finite.
at::Tensor mixture_of_experts_fp8(const MoeCall& call, const MoeScales& scales);

/// The checks of both, and an empty result of `dtype`; for meta tensors.
at::Tensor mixture_of_experts_meta(const MoeCall& call, at::ScalarType dtype);

// --- shared by the two
/// Rows of one expert: the token and the place in its routing row.
struct ExpertRows {
  std::vector<std::int64_t> token, slot;
};
/// Per list position, tokens ascending. Throws for shapes, dtypes and names that do not fit.
std::vector<ExpertRows> group_tokens(const MoeCall& call);

/// 2 M N K of g, u and h . w3: 6 H F of each row.
std::int64_t flops_of(const MoeCall& call, const std::vector<ExpertRows>& rows);

}  // namespace fp8::runtime::ops
