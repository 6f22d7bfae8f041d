// SPDX-License-Identifier: Apache-2.0
// First weights of a model that is trained from nothing, as transformers draws them: matrices and embeddings from
// normal(0, range), norms 1, biases 0. Drawn in f32 on the CPU, in the order of named_parameters(), so a seed gives the
// same model on every device.
#pragma once
#include <c10/core/Device.h>

#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {

/// Gives every parameter of a fresh model its memory and its first value, f32 on `device`. range: config.json's
/// initializer_range.
void initialize(CausalLM& model, double range, std::uint64_t seed, c10::Device device);

}  // namespace fp8::models
