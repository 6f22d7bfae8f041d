// SPDX-License-Identifier: Apache-2.0
// The pieces of attention as modules: Matmul, B2BMatmul, Softmax, ModuleFusedSDPA, KVCache, VLLMKVCache. Names and
// call forms follow the modules of optimum-habana and vLLM that Intel Neural Compressor patches.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/modules/op_module.h"

namespace fp8::runtime {

/// a . b, batched as at::matmul.
class MatmulImpl : public OpModule {
 public:
  MatmulImpl() : OpModule("Matmul") {}
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b);

 protected:
  explicit MatmulImpl(const char* type) : OpModule(type) {}
};
TORCH_MODULE(Matmul);

/// A Matmul between blocks and batches (paged attention): its second input's measurement is taken from its output.
class B2BMatmulImpl : public MatmulImpl {
 public:
  B2BMatmulImpl() : MatmulImpl("B2BMatmul") {}
};
TORCH_MODULE(B2BMatmul);

/// softmax over `dim`.
class SoftmaxImpl : public OpModule {
 public:
  SoftmaxImpl() : OpModule("Softmax") {}
  at::Tensor forward(const at::Tensor& x, std::int64_t dim = -1);
};
TORCH_MODULE(Softmax);

struct AttentionOptions {
  std::optional<at::Tensor> mask = {};  ///< bool (true: seen) or added to the logits
  double dropout_p = 0.0;
  bool is_causal = false;
  std::optional<double> scale = {};  ///< default 1 / sqrt(E)
  bool enable_gqa = false;
  std::string softmax_mode = "None";
  std::optional<at::Tensor> valid_seq_len = {};
  std::string seq_padding_type = "left";
};

/// Fused attention; unhandled it is at::scaled_dot_product_attention. q: [..., H, L, E], k and v: [..., Hkv, S, E].
class ModuleFusedSDPAImpl : public OpModule {
 public:
  ModuleFusedSDPAImpl() : OpModule("ModuleFusedSDPA") {}
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {});
};
TORCH_MODULE(ModuleFusedSDPA);

/// Keys or values of one layer, [B, H, S, E], kept by the module. In fp8 when its handler says so.
class KVCacheImpl : public OpModule {
 public:
  KVCacheImpl() : OpModule("KVCache") {}

  /// Room for `shape`, zeroed, on `like`'s device; `like` says the dtype of the values.
  void allocate(at::IntArrayRef shape, const at::Tensor& like);
  bool allocated() const { return cache_.defined(); }
  void clear() { cache_ = at::Tensor(); }
  /// Values as stored: fp8 codes, or high precision.
  const at::Tensor& cache() const { return cache_; }

  /// Puts `current` at [.., position, position + n) of `dim` and returns everything up to there, as readers see it.
  at::Tensor update(const at::Tensor& current, std::int64_t dim, std::int64_t position);

  /// Without a cache: what a reader would see of `current` had it been stored.
  at::Tensor forward(const at::Tensor& current);

 private:
  at::Tensor cache_;
  at::ScalarType dtype_ = at::kFloat;
};
TORCH_MODULE(KVCache);

/// Paged keys or values as vLLM keeps them: the cache belongs to the caller.
class VLLMKVCacheImpl : public OpModule {
 public:
  VLLMKVCacheImpl() : OpModule("VLLMKVCache") {}

  /// What the caller's cache must be allocated in, for values of `dtype`.
  at::ScalarType cache_dtype(at::ScalarType dtype) const;

  /// Writes input [tokens, H, E] to the slots [tokens] of cache [slots, H, E] (blocks * block_size slots; a cache
  /// [blocks, block_size, H, E] is seen so) and returns the cache. An undefined input writes nothing.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& cache, const at::Tensor& slot_mapping);

  /// Rows `blocks` of cache [blocks, block_size, H, E] as values of `dtype`.
  at::Tensor fetch_from_cache(const at::Tensor& cache, const at::Tensor& blocks, at::ScalarType dtype);
};
TORCH_MODULE(VLLMKVCache);

}  // namespace fp8::runtime
