// SPDX-License-Identifier: Apache-2.0
// E8M0 scales (see mxfp8.h).
#include "fp8/recipes/mxfp8.h"

#include <bit>
#include <cmath>
#include <limits>

namespace fp8::recipes {

std::optional<FieldProblem> find_problem(const MXFP8& recipe) {
  if (recipe.fp8_format == RecipeFormat::E5M2) return FieldProblem{"fp8_format", "E5M2", "E4M3, HYBRID"};
  if (recipe.block != 32) return FieldProblem{"block", std::to_string(recipe.block), "32"};
  return std::nullopt;
}

void validate(const MXFP8& recipe) { throw_problem("MXFP8", find_problem(recipe)); }

std::uint8_t e8m0_from_amax(float amax, float fp8_max) {
  const float value = std::fabs(amax) * (1.0f / fp8_max);
  if (std::isnan(value)) return kE8M0NaN;
  if (std::isinf(value)) return 0xFE;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = bits >> 23, significand = bits & 0x7FFFFFu;
  if (exponent == 0) return significand > 0x400000u ? 1 : 0;  // subnormals: 2^-127 is 0x400000
  return static_cast<std::uint8_t>(significand > 0 && exponent < 0xFE ? exponent + 1 : exponent);
}

float e8m0_to_float(std::uint8_t code) {
  return code == kE8M0NaN ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
}

float e8m0_to_scale(std::uint8_t code) {
  return code == kE8M0NaN ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, 127 - code);
}

}  // namespace fp8::recipes
