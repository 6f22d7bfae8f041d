// SPDX-License-Identifier: Apache-2.0
// How attention is computed: the caller's choice, as --attention says. No torch here.
#pragma once
#include <cstdint>

namespace fp8::models {

/// By one fused operation, or by two products and a softmax.
enum class AttentionKind : std::uint8_t { fused, eager };

}  // namespace fp8::models
