// SPDX-License-Identifier: Apache-2.0
// Attention of an answer to the source text that it answers: queries of the one, keys and values of the other.
#include <tuple>

#include "fp8/tools/models/decoder/attention.h"

namespace fp8::models {

at::Tensor DecoderAttentionImpl::forward_cross(const at::Tensor& x, const LayerInputs& inputs) {
  const auto b = x.size(0), l = x.size(1);
  const auto q = split(q_->forward(x));
  at::Tensor k, v;
  if (inputs.source.defined()) {
    k = split(k_->forward(inputs.source));
    v = split(v_->forward(inputs.source));
  }
  Sight sight;
  if (inputs.cache != nullptr) {
    if (k.defined()) inputs.cache->keep_source(layer_, k, v, k_cache, v_cache);
    std::tie(k, v) = inputs.cache->source(layer_, q.scalar_type(), k_cache, v_cache);
    if (const auto mask = inputs.cache->source_mask(); mask.defined()) sight.mask = mask.to(q.device());
  } else {
    k = k_cache->forward(k);
    v = v_cache->forward(v);
  }
  const auto attended = attend(q, k, v, sight, 1);
  return out_->forward(attended.transpose(1, 2).reshape({b, l, heads_ * v.size(3)}));
}

}  // namespace fp8::models
