// SPDX-License-Identifier: Apache-2.0
// Any of the training recipes.
//
//   delayed   DelayedScaling   one scale per tensor, from earlier steps
//   current   CurrentScaling   one scale per tensor, from itself
//   block     BlockScaling     one scale per 1 x 128 or 128 x 128 block
//   mxfp8     MXFP8            one power of two per 32 values
//             OwnRecipe        as its type says
#pragma once

#include "fp8/recipes/block_scaling.h"
#include "fp8/runtime/io/base/registry.h"

// A recipe that is no part of the library: a row that says what it does, and values for the row's fields. Rows become
// known by name with a RecipeRegistration.

namespace fp8::recipes {

/// Values by the names of fields, as JSON says them (float: 0 or more).
using RecipeFields = std::map<std::string, std::variant<int, bool, float, RecipeFormat>>;

/// A recipe of one's own.
struct RecipeType {
  std::string name;          ///< [a-z0-9_-]+
  std::string help = {};     ///< for reports, in a few words
  RecipeFields fields = {};  ///< with their defaults
  /// All that sets it apart; asked once for each OwnRecipe, with a value for every field.
  std::function<RecipeScaling(const RecipeFields&)> scaling = {};
  /// Optional: the first field that is out of its range. scaling() is not asked then.
  std::function<std::optional<FieldProblem>(const RecipeFields&)> problem = {};
};

/// A value, cheap to copy. It stays as it is when the registration of its type ends.
class OwnRecipe {
 public:
  /// values: in place of the defaults. Throws std::invalid_argument for a field that the type does not have, and for a
  /// value of another kind than the default's; values out of range are find_problem()'s.
  explicit OwnRecipe(std::shared_ptr<const RecipeType> type, RecipeFields values = {});

  const std::shared_ptr<const RecipeType>& type() const { return made_->type; }
  const RecipeFields& fields() const { return made_->fields; }  ///< every one
  const std::optional<FieldProblem>& problem() const { return made_->problem; }
  const RecipeScaling& scaling() const { return made_->scaling; }

  bool operator==(const OwnRecipe& other) const { return type() == other.type() && fields() == other.fields(); }

 private:
  struct Made {
    std::shared_ptr<const RecipeType> type;
    RecipeFields fields;
    std::optional<FieldProblem> problem;
    RecipeScaling scaling;
  };
  std::shared_ptr<const Made> made_;
};

inline const RecipeScaling& scaling_of(const OwnRecipe& recipe) { return recipe.scaling(); }

/// The problem that its type finds in its fields, then find_problem() of its scaling.
inline std::optional<FieldProblem> find_problem(const OwnRecipe& recipe) { return recipe.problem(); }

/// Throws std::invalid_argument naming the recipe, field, found and allowed values.
void validate(const OwnRecipe& recipe);

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

// Recipes by name: those built in, then your own.
//
//   "recipe" in JSON   delayed                          current   block   mxfp8   one's own
//   --recipe           habana, habana-hybrid, nvidia    current   block   mxfp8   one's own

struct NamedRecipe {
  std::string name;
  Recipe recipe;
  bool kind = true, preset = true;  ///< of the first list, of the second
};

/// The values that "recipe" may have in JSON.
std::vector<std::string> recipe_kinds();

/// The names that a command line may use.
std::vector<std::string> recipe_presets();

/// The recipe of that name with its defaults, of both lists.
std::optional<Recipe> find_recipe(std::string_view name);

/// Your own recipe, known by its name to JSON and to --recipe while this object lives:
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

  OwnRecipe recipe(RecipeFields values = {}) const { return OwnRecipe(type_, std::move(values)); }

 private:
  std::shared_ptr<const RecipeType> type_;
  io::Registry<NamedRecipe>::Entry entry_;
};

}  // namespace fp8::recipes
