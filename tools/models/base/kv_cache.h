// SPDX-License-Identifier: Apache-2.0
// The key-value cache of models with attention.
#pragma once

#include <optional>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/modules/op_modules.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {

/// Keys and values of the tokens seen so far, per layer [B, K, capacity, D], allocated at the first use. What they are
/// stored in (fp8 codes after conversion) is the word of the layer's runtime::KVCache modules; the memory is this
/// object's.
class KVCache : public Cache {
 public:
  using Cache::Cache;
  /// `cache` of a model that makes KVCaches; null stays null. Throws c10::Error for a cache of another kind.
  static KVCache* of(Cache* cache);
  /// As CausalLM::join(): sequences end in one column, those in front of a sequence are zeros that no row may see.
  static std::unique_ptr<KVCache> join(const std::vector<Cache*>& caches, std::int64_t capacity);
  void keep(const std::vector<std::int64_t>& sequences) override;

  /// Appends k, v [B, K, L, D] of one layer; returns all keys and values so far, [B, K, length + L, D], as their
  /// readers see them.
  std::pair<at::Tensor, at::Tensor> append(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                           const runtime::KVCache& keys, const runtime::KVCache& values);
  /// Appends without reading if keys and values are both kept as codes of one scale; else does nothing and returns
  /// nothing.
  using Codes = std::pair<runtime::Fp8Tensor, runtime::Fp8Tensor>;
  std::optional<Codes> append_codes(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                    const runtime::KVCache& keys, const runtime::KVCache& values);
  /// Appends the one vector that keys and values are made of, which is kept as keys.
  at::Tensor append(std::size_t layer, const at::Tensor& latent, const runtime::KVCache& keys);

  /// Of layers that look at a source text: its keys and values [B, K, S, D], made once.
  void keep_source(std::size_t layer, const at::Tensor& k, const at::Tensor& v, const runtime::KVCache& keys,
                   const runtime::KVCache& values);
  /// The source that keep_source() kept, as its readers see it.
  std::pair<at::Tensor, at::Tensor> source(std::size_t layer, at::ScalarType dtype, const runtime::KVCache& keys,
                                           const runtime::KVCache& values) const;
  /// The columns that each joined sequence's source has, bool [B, 1, 1, S]; undefined: all of them.
  at::Tensor source_mask() const;

 private:
  static void join_sources(const std::vector<KVCache*>& parts, KVCache& all);
  std::int64_t sequences() const;
  std::pair<at::Tensor, at::Tensor>& room_for(std::size_t layer, std::int64_t tokens);
  at::Tensor put(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const;
  at::Tensor append(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const;

  std::vector<std::pair<at::Tensor, at::Tensor>> layers_, sources_;
  std::vector<std::int64_t> source_starts_;  ///< of each sequence, where they differ
};

}  // namespace fp8::models
