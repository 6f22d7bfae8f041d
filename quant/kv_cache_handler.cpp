// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/kv_cache_handler.h"

#include <ATen/ops/full.h>

#include <stdexcept>

#include "fp8/runtime/ops/native/arguments.h"

namespace fp8::quant {

Fp8KvCacheHandler::Fp8KvCacheHandler(const NodeScheme& scheme) : NodeHandler(scheme) {
  if (scheme.dynamic) throw std::invalid_argument("kv_cache: found dynamic scales, expected static ones");
}

at::ScalarType Fp8KvCacheHandler::cache_dtype(at::ScalarType dtype) const {
  return scheme().compute == Compute::fp8 ? runtime::ops::dtype_of(scheme().format) : dtype;
}

at::Tensor Fp8KvCacheHandler::store(const at::Tensor& current) {
  const Codes codes = input(0).cast(current.detach());
  return scheme().compute == Compute::fp8 ? codes.codes : input(0).values(codes, current.scalar_type());
}

at::Tensor Fp8KvCacheHandler::fetch(const at::Tensor& stored, at::ScalarType dtype) {
  if (scheme().compute != Compute::fp8) return stored.to(dtype);
  return input(0).values({stored, at::full({1}, input(0).scale_inv(), at::kFloat)}, dtype);
}

}  // namespace fp8::quant
