// SPDX-License-Identifier: Apache-2.0
// Recipes by name: those built in, then one's own.
//
//   "recipe" in JSON   delayed                          current   block   mxfp8   one's own
//   --recipe           habana, habana-hybrid, nvidia    current   block   mxfp8   one's own
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/recipes/recipe.h"

namespace fp8::recipes {

/// What "recipe" may be in JSON.
std::vector<std::string> recipe_kinds();

/// What a command line may name.
std::vector<std::string> recipe_presets();

/// The recipe of that name with its defaults, of both lists.
std::optional<Recipe> find_recipe(std::string_view name);

/// A recipe of one's own, known by its name to JSON and to --recipe while this object lives:
///
///   const recipes::RecipeRegistration squares(
///       {.name = "squares", .fields = {{"block", 64}}, .scaling = [](const recipes::RecipeFields& fields) {
///          const int block = std::get<int>(fields.at("block"));
///          const recipes::OperandScaling how{recipes::ScalingRule::blocks, block, block};
///          return recipes::RecipeScaling{.input = how, .weight = how, .grad = how};
///        }});
///   te::fp8_autocast region({.recipe = squares.recipe({{"block", 32}})});
///
/// Recipes made of it go on to work. Any thread.
class RecipeRegistration {
 public:
  /// Throws std::invalid_argument for a name that is taken or can't stand, also of a field, a row without `scaling`,
  /// and defaults that do not validate.
  explicit RecipeRegistration(RecipeType type);
  ~RecipeRegistration();
  RecipeRegistration(const RecipeRegistration&) = delete;
  RecipeRegistration& operator=(const RecipeRegistration&) = delete;

  OwnRecipe recipe(RecipeFields values = {}) const { return OwnRecipe(type_, std::move(values)); }

 private:
  std::shared_ptr<const RecipeType> type_;
};

}  // namespace fp8::recipes
