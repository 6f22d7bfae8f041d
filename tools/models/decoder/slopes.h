// SPDX-License-Identifier: Apache-2.0
// Slopes of attention with linear biases (ALiBi, arXiv:2108.12409).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fp8::models {

/// [heads], f32 on the CPU: 2^(-max (i + 1) / heads) for a power of two. Of n heads between powers p < n < 2p: those of
/// p, then every second of 2p's.
at::Tensor alibi_slopes(std::int64_t heads, double max);

}  // namespace fp8::models
