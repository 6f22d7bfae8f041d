// SPDX-License-Identifier: Apache-2.0
// Keys or values kept as fp8 codes: stored with one static scale, read back as codes * scale_inv. A cache is inference: no gradients.
// qdq: the cache stays in high precision and holds the values that the cast leaves.
#pragma once
#include "fp8/quant/node_handler.h"

namespace fp8::quant {

class Fp8KvCacheHandler final : public NodeHandler {
 public:
  /// Throws std::invalid_argument for a dynamic scheme: a cache has no place for the scales of each call.
  explicit Fp8KvCacheHandler(const NodeScheme& scheme);
  at::ScalarType cache_dtype(at::ScalarType dtype) const override;
  at::Tensor store(const at::Tensor& current) override;
  at::Tensor fetch(const at::Tensor& stored, at::ScalarType dtype) override;
};

}  // namespace fp8::quant
