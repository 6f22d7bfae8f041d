// SPDX-License-Identifier: Apache-2.0
// Block scaling: current scaling of each block of a matrix, f32 scales or powers of two.
//
//   dimension 1    1 x block     one scale for 128 neighbours along the product's inner dimension
//   dimension 2    block x block one scale for a square
//
// Partial blocks at the edges have the amax of what is there. In each of the three products at most one operand may
// have square blocks:  y = x w^T     dx = g w     dw = g^T x
#pragma once
#include <limits>
#include <optional>

#include "fp8/recipes/field_problem.h"
#include "fp8/recipes/format.h"
#include "fp8/recipes/recipe_scaling.h"

namespace fp8::recipes {

struct BlockScaling {
  RecipeFormat fp8_format = RecipeFormat::E4M3;
  int x_block_scaling_dim = 1, w_block_scaling_dim = 2, grad_block_scaling_dim = 1;
  bool power_of_two_scale = true;
  int block = 128;            ///< a power of two, 16 to 1024
  float amax_epsilon = 0.0f;  ///< smallest amax that is told from 0, finite and >= 0

  bool operator==(const BlockScaling&) const = default;
};

/// fp8_format: E4M3, HYBRID; dimensions: 1, 2, and no two of them 2; block and amax_epsilon as above.
std::optional<FieldProblem> find_problem(const BlockScaling& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const BlockScaling& recipe);

RecipeScaling scaling_of(const BlockScaling& recipe);

/// The scale of a block with largest magnitude `amax`: current_scale()'s rule with this recipe's power_of_two_scale and
/// amax_epsilon. A block of zeros has scale 1.
float block_scale(float amax, float fp8_max, const BlockScaling& recipe,
                  float dtype_max = std::numeric_limits<float>::max());

}  // namespace fp8::recipes
