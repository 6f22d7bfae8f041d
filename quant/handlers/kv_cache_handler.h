// SPDX-License-Identifier: Apache-2.0
// Keys or values kept as fp8 codes: stored with static scales, read back as codes * scale_inv. A cache is inference: no
// gradients. qdq: the cache stays in high precision and holds the values that the cast leaves.
//
//   one scale            current of any shape
//   a scale per head     current [B, H, S, E]: head h with scale h
#pragma once
#include <string>
#include <vector>

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/handlers/node_handler.h"
#include "fp8/quant/scheme/kv_scales.h"

namespace fp8::quant {

class Fp8KvCacheHandler final : public NodeHandler {
 public:
  /// Throws std::invalid_argument for a dynamic scheme: a cache has no place for the scales of each call.
  explicit Fp8KvCacheHandler(const NodeScheme& scheme);
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
