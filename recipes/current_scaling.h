// SPDX-License-Identifier: Apache-2.0
// Current scaling: the scale comes from the amax of the very tensor that is cast, so there is no state and no lag, for
// one more pass over the tensor.
//
//   a = max(amax, amax_epsilon)      scale = f32(fp8_max / a)      scale_inv = f32(1 / scale)
//
//   a = 0, infinite or NaN           1 (a tensor of zeros stays zeros; infinities saturate, NaN stays NaN)
//   fp8_max / a above FLT_MAX        dtype_max, the largest number of the tensor's own type
//   power_of_two_scale               rounded down to a power of two (the bits of the significand cleared)
//
// The kernels' casts of blocks (runtime/kernels/block_cast.h) have the same rule.
#pragma once
#include <limits>
#include <optional>

#include "fp8/recipes/field_problem.h"
#include "fp8/recipes/format.h"
#include "fp8/recipes/recipe_scaling.h"

namespace fp8::recipes {

struct CurrentScaling {
  RecipeFormat fp8_format = RecipeFormat::HYBRID;
  bool power_of_two_scale = false;
  float amax_epsilon = 0.0f;  ///< smallest amax that is told from 0, finite and >= 0

  bool operator==(const CurrentScaling&) const = default;
};

/// fp8_format: E4M3, HYBRID; amax_epsilon: finite, 0 or more.
std::optional<FieldProblem> find_problem(const CurrentScaling& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const CurrentScaling& recipe);

RecipeScaling scaling_of(const CurrentScaling& recipe);

/// The scale of a tensor with largest magnitude `amax` (NaN and infinity by the rules above, a negative one as 0).
/// dtype_max: largest finite number of the tensor's type (65504 for f16). The result and its reciprocal are finite and
/// above 0 (not below 2^-126). Throws std::invalid_argument if fp8_max or dtype_max is not a finite number above 0.
float current_scale(float amax, float fp8_max, const CurrentScaling& recipe,
                    float dtype_max = std::numeric_limits<float>::max());

}  // namespace fp8::recipes
