// SPDX-License-Identifier: Apache-2.0
// The number formats as recipes speak of them: the kernels' names, and the pair that training uses.
//
//   E4M3     forward E4M3, backward E4M3
//   E5M2     forward E5M2, backward E5M2
//   HYBRID   forward E4M3 (activations, weights), backward E5M2 (gradients need range more than precision)
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::recipes {

using fp8::name_of;
using kernels::Dialect;
using kernels::FloatType;
using kernels::Format;
using kernels::fp8_max;

/// Which format tensors get on the way forward and backward.
enum class RecipeFormat : std::uint8_t { E4M3, E5M2, HYBRID };
constexpr auto names_of(RecipeFormat) {
  using enum RecipeFormat;
  return std::to_array<EnumName<RecipeFormat>>({{E4M3, "E4M3"}, {E5M2, "E5M2"}, {HYBRID, "HYBRID"}});
}

/// Format of activations and weights.
constexpr Format forward_format(RecipeFormat format) {
  return format == RecipeFormat::E5M2 ? Format::E5M2 : Format::E4M3;
}

/// Format of gradients.
constexpr Format backward_format(RecipeFormat format) {
  return format == RecipeFormat::E4M3 ? Format::E4M3 : Format::E5M2;
}

}  // namespace fp8::recipes
