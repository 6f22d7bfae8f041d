// SPDX-License-Identifier: Apache-2.0
// MXFP8 (OCP Microscaling): blocks of 32 neighbours along the product's inner dimension share one power of two, stored
// as E8M0, an exponent alone:
//
//   E8M0   eeeeeeee   bias 127   code c is 2^(c - 127)   0x00 2^-127 ... 0xFE 2^127   0xFF NaN   no zero, no infinity
//
//   v    = f32(amax * f32(1 / fp8_max))
//   code = 127 + the smallest e in -127 .. 127 with 2^e >= v; NaN 0xFF, infinity 0xFE, 0 0x00
//
// The block's values are multiplied with 2^(127 - code) and then saturate; since the exponent is rounded up, they do so
// only where v itself was rounded down to a power of two, and lose a step of f32.
#pragma once
#include <cstdint>
#include <optional>

#include "fp8/recipes/field_problem.h"
#include "fp8/recipes/format.h"
#include "fp8/recipes/recipe_scaling.h"

namespace fp8::recipes {

struct MXFP8 {
  RecipeFormat fp8_format = RecipeFormat::E4M3;
  int block = 32;

  bool operator==(const MXFP8&) const = default;
};

/// fp8_format: E4M3, HYBRID; block: 32.
std::optional<FieldProblem> find_problem(const MXFP8& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const MXFP8& recipe);

RecipeScaling scaling_of(const MXFP8& recipe);

/// The code of a block's scale_inv; amax 0 or more, infinite or NaN. The kernels' casts use this very function.
std::uint8_t e8m0_from_amax(float amax, float fp8_max);

}  // namespace fp8::recipes
