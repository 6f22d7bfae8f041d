// SPDX-License-Identifier: Apache-2.0
// The scale of one tensor or block from its own amax (see current_scaling.h).
#include "fp8/recipes/current_scaling.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace fp8::recipes {
namespace {

constexpr float kMinScale = 0x1p-126f;

std::string text_of(float value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void check_positive(const char* field, float value) {
  if (value > 0.0f && std::isfinite(value)) return;
  throw_problem("current_scale", FieldProblem{field, text_of(value), "a finite value > 0"});
}

}  // namespace

std::optional<FieldProblem> find_problem(const CurrentScaling& recipe) {
  if (recipe.fp8_format == RecipeFormat::E5M2) return FieldProblem{"fp8_format", "E5M2", "E4M3, HYBRID"};
  if (!std::isfinite(recipe.amax_epsilon) || recipe.amax_epsilon < 0.0f) {
    return FieldProblem{"amax_epsilon", text_of(recipe.amax_epsilon), "a finite value >= 0"};
  }
  return std::nullopt;
}

void validate(const CurrentScaling& recipe) { throw_problem("CurrentScaling", find_problem(recipe)); }

RecipeScaling scaling_of(const CurrentScaling& recipe) {
  const OperandScaling how{.power_of_two = recipe.power_of_two_scale, .amax_epsilon = recipe.amax_epsilon};
  return {.fp8_format = recipe.fp8_format, .input = how, .weight = how, .grad = how};
}

float current_scale(float amax, float fp8_max, const CurrentScaling& recipe, float dtype_max) {
  check_positive("fp8_max", fp8_max);
  check_positive("dtype_max", dtype_max);
  if (amax < recipe.amax_epsilon) amax = recipe.amax_epsilon;
  if (!(amax > 0.0f) || !std::isfinite(amax)) return 1.0f;
  float scale = fp8_max / amax;
  if (std::isinf(scale)) scale = dtype_max;
  scale = std::max(scale, kMinScale);
  if (!recipe.power_of_two_scale) return scale;
  int exponent = 0;
  std::frexp(scale, &exponent);
  return std::ldexp(1.0f, exponent - 1);
}

}  // namespace fp8::recipes
