// SPDX-License-Identifier: Apache-2.0
// Fused attention in fp8: o = cast(softmax(q . k^T * scale + mask)) . v on codes.
//
//   S = q' . k'^T * scale_inv_q * scale_inv_k * scale + mask      f32
//   P = cast(softmax(S) * (1 / scale_inv_p))                      fp8
//   o = P . v' * scale_inv_p * scale_inv_v                        cast once more, and read back,
//                                                                 where the scheme has an output scale
//
// All of it is hpu::fp8_sdpa_recomp_fwd, whose result is bf16 where o is not cast. Rows that see nothing give zeros.
// Gradients are straight-through: those of attention on the dequantized q, k and v. qdq: attention in high precision on
// the values that the casts of q, k and v leave.
#pragma once

#include "fp8/quant/handlers/node_handler.h"

namespace fp8::quant {

class Fp8AttentionHandler final : public NodeHandler {
 public:
  explicit Fp8AttentionHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  at::Tensor attention(const runtime::AttentionCall& call) override;

 private:
  at::Tensor fused(const runtime::AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v) const;
};

// softmax whose result is kept in fp8: P = cast(softmax(x) * (1 / s)), read back as P * s. Inputs need no scale. bf16
// goes through hpu::softmax_fp8. Gradients are those of softmax itself (straight-through).

class Fp8SoftmaxHandler final : public NodeHandler {
 public:
  explicit Fp8SoftmaxHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  at::Tensor softmax(const runtime::SoftmaxCall& call) override;
};

// a . b of two activations, as attention multiplies them.
//
//   static         hpu::fp8_gemm_v2(cast(a), cast(b), a_scale_inv, b_scale_inv)
//   dynamic        a scale per row of a (dim -1 shares it) and per column of b (dim -2):
//                  they factor out of the product of codes
//   qdq, fake      at::matmul of the values that the casts leave
//
// Gradients are straight-through: da = dy . b'^T, db = a'^T . dy with a', b' the dequantized operands.

class Fp8MatmulHandler final : public NodeHandler {
 public:
  explicit Fp8MatmulHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  at::Tensor matmul(const runtime::MatmulCall& call) override;
};

/// codes(a) . codes(b) * their scales -> out_dtype, batched as at::matmul; any form of scales.
at::Tensor product_of_codes(const runtime::Fp8Tensor& a, const runtime::Fp8Tensor& b, at::ScalarType out_dtype);

// Keys or values kept as fp8 codes: stored with static scales, read back as codes * scale_inv. A cache is inference: no
// gradients. qdq: the cache stays in high precision and holds the values that the cast leaves.
//
//   one scale            current of any shape
//   a scale per head     current [B, H, S, E]: head h with scale h

class Fp8KvCacheHandler final : public NodeHandler {
 public:
  /// Throws std::invalid_argument for a dynamic scheme: a cache has no place for the scales of each call.
  explicit Fp8KvCacheHandler(const NodeScheme& scheme);
  const Fp8KvCacheHandler* kv_cache() const override { return this; }
  at::ScalarType cache_dtype(at::ScalarType dtype) const override;
  /// Throws c10::Error for another shape than the scales are for.
  at::Tensor store(const at::Tensor& current) override;
  at::Tensor fetch(const at::Tensor& stored, at::ScalarType dtype) override;
  /// store() gives codes of one scale: codes_of() is for who reads them as they are.
  bool keeps_codes() const { return scheme().compute == Compute::fp8 && heads() == 1; }
  runtime::Fp8Tensor codes_of(const at::Tensor& stored) const { return input(0).with_scale(stored); }

 private:
  /// 1: all heads share a scale.
  std::int64_t heads() const { return static_cast<std::int64_t>(scheme().input_scale_inv.size()); }
  void check_heads(const at::Tensor& x) const;
  at::Tensor cast_heads(const at::Tensor& current) const;
  at::Tensor values_of_heads(const at::Tensor& codes, at::ScalarType dtype) const;
};

/// Of `nodes`, the caches of keys and values of attention modules: names of those modules ("model.layers.0.self_attn").
std::vector<std::string> cached_attention(const std::vector<measure::OpNode>& nodes);

/// Puts the scales in force in the caches "ATTENTION.k_cache" and "ATTENTION.v_cache" of the modules they are for.
/// Throws io::Error, its message begun with `where`, for a module that is not in `nodes`, a module of `nodes` without
/// scales (engines would take 1.0), scales that are not positive and finite, and caches that are handled already;
/// nothing is changed then.
void attach_kv_cache(const std::vector<measure::OpNode>& nodes, const std::vector<KvScales>& kv, const Numbers& numbers,
                     const std::string& where);

/// Back to high precision.
void detach_kv_cache(const std::vector<measure::OpNode>& nodes);

/// The scheme in force in the model's key-value caches; null: they are in high precision.
const NodeScheme* kv_cache_scheme(const std::vector<measure::OpNode>& nodes);

}  // namespace fp8::quant
