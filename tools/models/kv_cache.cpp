// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace fp8::models {

KVCache* KVCache::of(Cache* cache) {
  auto* found = dynamic_cast<KVCache*>(cache);
  TORCH_CHECK(found != nullptr || cache == nullptr, "[models] the cache was made by a model of another family");
  return found;
}

at::Tensor KVCache::append(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const {
  const auto handler = module->slot()->handler;
  const auto dtype = handler != nullptr ? handler->cache_dtype(current.scalar_type()) : current.scalar_type();
  const auto tokens = current.size(2);
  if (!stored.defined())
    stored = at::empty({current.size(0), current.size(1), capacity(), current.size(3)}, current.options().dtype(dtype));
  TORCH_CHECK(stored.scalar_type() == dtype,
              "[models] the key/value cache was filled before the model was converted: it holds ", stored.scalar_type(),
              ", not ", dtype);
  stored.narrow(2, length(), tokens).copy_(handler != nullptr ? handler->store(current) : current);
  const auto seen = stored.narrow(2, 0, length() + tokens);
  return handler != nullptr ? handler->fetch(seen, current.scalar_type()) : seen;
}

std::pair<at::Tensor, at::Tensor> KVCache::append(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                                  const runtime::KVCache& keys, const runtime::KVCache& values) {
  TORCH_CHECK(length() + k.size(2) <= capacity(), "[models] the key/value cache holds ", capacity(), " tokens, found ",
              length() + k.size(2));
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  auto& [stored_keys, stored_values] = layers_[layer];
  return {append(stored_keys, k, keys), append(stored_values, v, values)};
}

}  // namespace fp8::models
