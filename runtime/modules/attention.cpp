// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/attention.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace fp8::runtime {

at::Tensor MatmulImpl::forward(const at::Tensor& a, const at::Tensor& b) {
  if (handler() == nullptr) return at::matmul(a, b);
  const autocast::InsideOp inside;
  const OriginalOp original = outside_of(inside, [&] { return at::matmul(a, b); });
  return handler()->matmul({a, b, original});
}

at::Tensor SoftmaxImpl::forward(const at::Tensor& x, std::int64_t dim) {
  if (handler() == nullptr) return at::softmax(x, dim);
  const autocast::InsideOp inside;
  const OriginalOp original = outside_of(inside, [&] { return at::softmax(x, dim); });
  return handler()->softmax({x, dim, original});
}

at::Tensor ModuleFusedSDPAImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOptions& o) {
  const auto attention = [&] {
    TORCH_CHECK(!o.valid_seq_len.has_value(),
                "[ModuleFusedSDPA] expected a mask instead of valid_seq_len where nothing handles the module");
    return at::scaled_dot_product_attention(q, k, v, o.mask, o.dropout_p, o.is_causal, o.scale, o.enable_gqa);
  };
  if (handler() == nullptr) return attention();
  const autocast::InsideOp inside;
  const OriginalOp original = outside_of(inside, attention);
  return handler()->attention({q, k, v, o.mask, o.dropout_p, o.is_causal, o.scale, o.enable_gqa, o.softmax_mode,
                               o.valid_seq_len, o.seq_padding_type, original});
}

void KVCacheImpl::allocate(at::IntArrayRef shape, const at::Tensor& like) {
  dtype_ = like.scalar_type();
  const auto stored = handler() != nullptr ? handler()->cache_dtype(dtype_) : dtype_;
  cache_ = c10::isFloat8Type(stored) ? at::zeros(shape, like.options().dtype(at::kByte)).view(stored)
                                     : at::zeros(shape, like.options().dtype(stored));
}

at::Tensor KVCacheImpl::update(const at::Tensor& current, std::int64_t dim, std::int64_t position) {
  TORCH_CHECK(cache_.defined(), "[KVCache] update: expected allocate() before it");
  const std::int64_t end = position + current.size(dim);
  TORCH_CHECK(position >= 0 && end <= cache_.size(dim), "[KVCache] update: positions [", position, ", ", end,
              ") do not fit the ", cache_.size(dim), " allocated");
  const at::Tensor stored = handler() != nullptr ? handler()->store(current) : current;
  TORCH_CHECK(stored.scalar_type() == cache_.scalar_type(), "[KVCache] update: the cache holds ", cache_.scalar_type(),
              ", current gives ", stored.scalar_type(), "; allocate() after the module was converted");
  cache_.narrow(dim, position, current.size(dim)).copy_(stored);
  const at::Tensor seen = cache_.narrow(dim, 0, end);
  return handler() != nullptr ? handler()->fetch(seen, dtype_) : seen;
}

at::Tensor KVCacheImpl::forward(const at::Tensor& current) {
  return handler() != nullptr ? handler()->fetch(handler()->store(current), current.scalar_type()) : current;
}

at::ScalarType VLLMKVCacheImpl::cache_dtype(at::ScalarType dtype) const {
  return handler() != nullptr ? handler()->cache_dtype(dtype) : dtype;
}

at::Tensor VLLMKVCacheImpl::forward(const at::Tensor& input, const at::Tensor& cache, const at::Tensor& slot_mapping) {
  if (!input.defined()) return cache;
  const at::Tensor stored = handler() != nullptr ? handler()->store(input) : input;
  TORCH_CHECK(stored.scalar_type() == cache.scalar_type(), "[VLLMKVCache] expected a cache of ", stored.scalar_type(),
              ", got ", cache.scalar_type());
  const at::Tensor slots = cache.dim() == stored.dim() + 1 ? cache.flatten(0, 1) : cache;
  if (c10::isFloat8Type(cache.scalar_type())) {
    slots.view(at::kByte).index_copy_(0, slot_mapping.flatten(), stored.view(at::kByte));
  } else {
    slots.index_copy_(0, slot_mapping.flatten(), stored);
  }
  return cache;
}

at::Tensor VLLMKVCacheImpl::fetch_from_cache(const at::Tensor& cache, const at::Tensor& blocks, at::ScalarType dtype) {
  const bool codes = c10::isFloat8Type(cache.scalar_type());
  const at::Tensor rows = codes ? cache.view(at::kByte).index_select(0, blocks.flatten()).view(cache.scalar_type())
                                : cache.index_select(0, blocks.flatten());
  return handler() != nullptr ? handler()->fetch(rows, dtype) : rows.to(dtype);
}

}  // namespace fp8::runtime
