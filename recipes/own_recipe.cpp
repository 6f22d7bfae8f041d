// SPDX-License-Identifier: Apache-2.0
#include "fp8/recipes/own_recipe.h"

#include <ranges>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/text.h"

namespace fp8::recipes {
namespace {

void check_kinds(const RecipeType& type, const RecipeFields& values) {
  for (const auto& [name, value] : values) {
    const auto field = type.fields.find(name);
    if (field == type.fields.end())
      throw std::invalid_argument("recipe '" + type.name + "': found the field '" + name +
                                  "', allowed: " + io::joined(std::views::keys(type.fields)));
    if (field->second.index() != value.index())
      throw std::invalid_argument("recipe '" + type.name + "': " + name +
                                  ": expected a value of the same kind as its default");
  }
}

}  // namespace

OwnRecipe::OwnRecipe(std::shared_ptr<const RecipeType> type, RecipeFields values) {
  check_kinds(*type, values);
  values.insert(type->fields.begin(), type->fields.end());  // those that are not there yet
  Made made{std::move(type), std::move(values), std::nullopt, {}};
  if (made.type->problem) made.problem = made.type->problem(made.fields);
  if (!made.problem) {
    made.scaling = made.type->scaling(made.fields);
    made.problem = find_problem(made.scaling);
  }
  made_ = std::make_shared<const Made>(std::move(made));
}

void validate(const OwnRecipe& recipe) {
  throw_problem(("recipe '" + recipe.type()->name + "'").c_str(), recipe.problem());
}

}  // namespace fp8::recipes
