// SPDX-License-Identifier: Apache-2.0
// Limits of what a recipe of one's own may ask for (see recipe_scaling.h).
#include "fp8/recipes/recipe_scaling.h"

#include <cmath>
#include <string>

#include "fp8/runtime/kernels/block_cast.h"

namespace fp8::recipes {
namespace {

std::optional<FieldProblem> operand_problem(const std::string& operand, const OperandScaling& how) {
  if (how.rule == ScalingRule::history) return FieldProblem{operand + ".rule", "history", "tensor, blocks, mx"};
  if (!std::isfinite(how.amax_epsilon) || how.amax_epsilon < 0.0f)
    return FieldProblem{operand + ".amax_epsilon", std::to_string(how.amax_epsilon), "a finite value >= 0"};
  if (how.one_scale()) return std::nullopt;
  const bool mx = how.rule == ScalingRule::mx;
  if (how.block_rows < 1 || (mx && how.block_rows != 1))
    return FieldProblem{operand + ".block_rows", std::to_string(how.block_rows), mx ? "1" : "1 or more"};
  if (how.block_cols < 1 || (mx && how.block_cols != kernels::kMxBlock))
    return FieldProblem{operand + ".block_cols", std::to_string(how.block_cols), mx ? "32" : "1 or more"};
  return std::nullopt;
}

}  // namespace

std::optional<FieldProblem> find_problem(const RecipeScaling& scaling) {
  if (auto problem = operand_problem("input", scaling.input)) return problem;
  if (auto problem = operand_problem("weight", scaling.weight)) return problem;
  if (auto problem = operand_problem("grad", scaling.grad)) return problem;
  if (scaling.stochastic_gradients && !scaling.grad.one_scale())
    return FieldProblem{"stochastic_gradients", "true", "false with blocks"};
  if (scaling.row_alignment < 1)
    return FieldProblem{"row_alignment", std::to_string(scaling.row_alignment), "1 or more"};
  return std::nullopt;
}

}  // namespace fp8::recipes
