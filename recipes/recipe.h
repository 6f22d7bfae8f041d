// SPDX-License-Identifier: Apache-2.0
// Any of the training recipes.
//
//   delayed   DelayedScaling   one scale per tensor, from earlier steps
//   current   CurrentScaling   one scale per tensor, from itself
//   block     BlockScaling     one scale per 1 x 128 or 128 x 128 block
//   mxfp8     MXFP8            one power of two per 32 values
//             OwnRecipe        as its type says (recipe_registry.h)
#pragma once
#include <optional>
#include <string>
#include <variant>

#include "fp8/recipes/block_scaling.h"
#include "fp8/recipes/current_scaling.h"
#include "fp8/recipes/delayed_scaling.h"
#include "fp8/recipes/mxfp8.h"
#include "fp8/recipes/own_recipe.h"
#include "fp8/recipes/recipe_scaling.h"

namespace fp8::recipes {

/// By default DelayedScaling::habana().
using Recipe = std::variant<DelayedScaling, CurrentScaling, BlockScaling, MXFP8, OwnRecipe>;

RecipeFormat format_of(const Recipe& recipe);

/// All that products read of a recipe that validates.
RecipeScaling scaling_of(const Recipe& recipe);

/// "delayed", "current", "block", "mxfp8", or a name of one's own, which lives as long as the recipe.
const char* name_of(const Recipe& recipe);

/// The first field that is out of its range, if any.
std::optional<FieldProblem> find_problem(const Recipe& recipe);

/// Throws std::invalid_argument naming struct, field, found and allowed values.
void validate(const Recipe& recipe);

/// One line for reports: "delayed (habana), HYBRID, interval 16, history 1, most_recent, power-of-two scales"; fields
/// that rarely differ from their default are named only if they do.
std::string describe(const Recipe& recipe);

}  // namespace fp8::recipes
