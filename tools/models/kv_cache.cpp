// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace fp8::models {

at::Tensor KVCache::append(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const {
  const auto handler = module->slot()->handler;
  const auto dtype = handler != nullptr ? handler->cache_dtype(current.scalar_type()) : current.scalar_type();
  const auto tokens = current.size(2);
  if (!stored.defined())
    stored = at::empty({current.size(0), current.size(1), capacity_, current.size(3)}, current.options().dtype(dtype));
  TORCH_CHECK(stored.scalar_type() == dtype,
              "[models] the key/value cache was filled before the model was converted: it holds ", stored.scalar_type(),
              ", not ", dtype);
  stored.narrow(2, length_, tokens).copy_(handler != nullptr ? handler->store(current) : current);
  const auto seen = stored.narrow(2, 0, length_ + tokens);
  return handler != nullptr ? handler->fetch(seen, current.scalar_type()) : seen;
}

std::pair<at::Tensor, at::Tensor> KVCache::append(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                                  const runtime::KVCache& keys, const runtime::KVCache& values) {
  TORCH_CHECK(length_ + k.size(2) <= capacity_, "[models] the key/value cache holds ", capacity_, " tokens, found ",
              length_ + k.size(2));
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  auto& [stored_keys, stored_values] = layers_[layer];
  return {append(stored_keys, k, keys), append(stored_values, v, values)};
}

}  // namespace fp8::models
