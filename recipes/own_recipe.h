// SPDX-License-Identifier: Apache-2.0
// A recipe that is no part of the library: a row that says what it does, and values for the row's fields. Rows become
// known by name with a RecipeRegistration (recipe_registry.h).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "fp8/recipes/field_problem.h"
#include "fp8/recipes/recipe_scaling.h"

namespace fp8::recipes {

/// Values by the names of fields, as JSON says them (float: 0 or more).
using RecipeFields = std::map<std::string, std::variant<int, bool, float, RecipeFormat>>;

/// What a recipe of one's own is.
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

/// What its type says of its fields, then find_problem() of its scaling.
inline std::optional<FieldProblem> find_problem(const OwnRecipe& recipe) { return recipe.problem(); }

/// Throws std::invalid_argument naming the recipe, field, found and allowed values.
void validate(const OwnRecipe& recipe);

}  // namespace fp8::recipes
