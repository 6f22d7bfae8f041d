// SPDX-License-Identifier: Apache-2.0
// Limits and the scale of block scaling (see block_scaling.h).
#include "fp8/recipes/block_scaling.h"

#include "fp8/recipes/current_scaling.h"

namespace fp8::recipes {
namespace {

CurrentScaling rule_of(const BlockScaling& recipe) {
  return {.fp8_format = recipe.fp8_format,
          .power_of_two_scale = recipe.power_of_two_scale,
          .amax_epsilon = recipe.amax_epsilon};
}

}  // namespace

std::optional<FieldProblem> find_problem(const BlockScaling& recipe) {
  if (auto problem = find_problem(rule_of(recipe))) return problem;
  const struct {
    const char* field;
    int dim;
  } dims[] = {{"x_block_scaling_dim", recipe.x_block_scaling_dim},
              {"w_block_scaling_dim", recipe.w_block_scaling_dim},
              {"grad_block_scaling_dim", recipe.grad_block_scaling_dim}};
  const char* square = nullptr;
  for (const auto& [field, dim] : dims) {
    if (dim != 1 && dim != 2) return FieldProblem{field, std::to_string(dim), "1 (1 x block), 2 (block x block)"};
    if (dim == 1) continue;
    if (square != nullptr) return FieldProblem{field, "2", std::string("1 where ") + square + " is 2"};
    square = field;
  }
  const bool power_of_two = recipe.block > 0 && (recipe.block & (recipe.block - 1)) == 0;
  if (!power_of_two || recipe.block < 16 || recipe.block > 1024) {
    return FieldProblem{"block", std::to_string(recipe.block), "16, 32, 64, 128, 256, 512, 1024"};
  }
  return std::nullopt;
}

void validate(const BlockScaling& recipe) { throw_problem("BlockScaling", find_problem(recipe)); }

RecipeScaling scaling_of(const BlockScaling& recipe) {
  const auto how = [&](int dim) {
    return OperandScaling{.rule = ScalingRule::blocks,
                          .block_rows = dim == 2 ? recipe.block : 1,
                          .block_cols = recipe.block,
                          .power_of_two = recipe.power_of_two_scale,
                          .amax_epsilon = recipe.amax_epsilon};
  };
  return {.fp8_format = recipe.fp8_format,
          .input = how(recipe.x_block_scaling_dim),
          .weight = how(recipe.w_block_scaling_dim),
          .grad = how(recipe.grad_block_scaling_dim)};
}

float block_scale(float amax, float fp8_max, const BlockScaling& recipe, float dtype_max) {
  return current_scale(amax, fp8_max, rule_of(recipe), dtype_max);
}

}  // namespace fp8::recipes
