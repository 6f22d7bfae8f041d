// SPDX-License-Identifier: Apache-2.0
// Which experts take a token, and how their outputs are weighed. Everything in f32, whatever the weights are in: two
// experts that are nearly alike must not change places by a rounding.
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

struct Routes {
  at::Tensor experts;  ///< [tokens, top_k] int64
  at::Tensor weights;  ///< [tokens, top_k] f32
};

/// logits [tokens, E]; correction [E] or undefined.
Routes route(const MoeSpec& spec, const at::Tensor& logits, const at::Tensor& correction);

}  // namespace fp8::models
