// SPDX-License-Identifier: Apache-2.0
// Limits of MXFP8; the arithmetic of E8M0 is the kernels' (see mxfp8.h).
#include "fp8/recipes/mxfp8.h"

#include "fp8/runtime/kernels/block_cast.h"

namespace fp8::recipes {

std::optional<FieldProblem> find_problem(const MXFP8& recipe) {
  if (recipe.fp8_format == RecipeFormat::E5M2) return FieldProblem{"fp8_format", "E5M2", "E4M3, HYBRID"};
  if (recipe.block != kernels::kMxBlock) return FieldProblem{"block", std::to_string(recipe.block), "32"};
  return std::nullopt;
}

void validate(const MXFP8& recipe) { throw_problem("MXFP8", find_problem(recipe)); }

RecipeScaling scaling_of(const MXFP8& recipe) {
  const OperandScaling how{.rule = ScalingRule::mx, .block_rows = 1, .block_cols = kernels::kMxBlock};
  return {.fp8_format = recipe.fp8_format, .input = how, .weight = how, .grad = how, .row_alignment = recipe.block};
}

std::uint8_t e8m0_from_amax(float amax, float fp8_max) { return kernels::e8m0_from_amax(amax, fp8_max); }

}  // namespace fp8::recipes
