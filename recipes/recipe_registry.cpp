// SPDX-License-Identifier: Apache-2.0
#include "fp8/recipes/recipe_registry.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/text.h"

namespace fp8::recipes {
namespace {

/// What JSON says beside a recipe's fields.
constexpr std::string_view kOtherKeys[] = {"recipe", "preset", "dialect", "modules", "match", "keep"};

struct NamedRecipe {
  std::string name;
  Recipe recipe;
  bool kind = true, preset = true;
};

/// In the order of messages and help.
const std::vector<NamedRecipe>& built_in_recipes() {
  static const std::vector<NamedRecipe> table = {
      {.name = "delayed", .recipe = DelayedScaling::habana(), .preset = false},
      {.name = "habana", .recipe = DelayedScaling::habana(), .kind = false},
      {.name = "habana-hybrid", .recipe = DelayedScaling{.fp8_format = RecipeFormat::HYBRID}, .kind = false},
      {.name = "nvidia", .recipe = DelayedScaling::nvidia(), .kind = false},
      {.name = "current", .recipe = CurrentScaling{}},
      {.name = "block", .recipe = BlockScaling{}},
      {.name = "mxfp8", .recipe = MXFP8{}},
  };
  return table;
}

/// The rows of living registrations.
struct RecipeRegistry {
  std::mutex mutex;
  std::vector<std::shared_ptr<const RecipeType>> types;
};

RecipeRegistry& recipe_registry() {
  static RecipeRegistry instance;
  return instance;
}

std::vector<std::string> names_of_recipes(bool NamedRecipe::*wanted) {
  std::vector<std::string> names;
  for (const NamedRecipe& row : built_in_recipes()) {
    if (row.*wanted) names.push_back(row.name);
  }
  const std::lock_guard lock(recipe_registry().mutex);
  for (const auto& type : recipe_registry().types) names.push_back(type->name);
  return names;
}

}  // namespace

std::vector<std::string> recipe_kinds() { return names_of_recipes(&NamedRecipe::kind); }
std::vector<std::string> recipe_presets() { return names_of_recipes(&NamedRecipe::preset); }

std::optional<Recipe> find_recipe(std::string_view name) {
  for (const NamedRecipe& row : built_in_recipes()) {
    if (row.name == name) return row.recipe;
  }
  std::shared_ptr<const RecipeType> found;
  {
    const std::lock_guard lock(recipe_registry().mutex);
    for (const auto& type : recipe_registry().types) {
      if (type->name == name) found = type;
    }
  }
  if (found == nullptr) return std::nullopt;
  return OwnRecipe(std::move(found));
}

RecipeRegistration::RecipeRegistration(RecipeType type) : type_(std::make_shared<const RecipeType>(std::move(type))) {
  const std::string& name = type_->name;
  if (!io::is_name(name, "_-"))
    throw std::invalid_argument("recipe: found the name '" + name +
                                "', allowed: lower case letters, digits, '_' and '-'");
  for (const auto& field : type_->fields) {
    if (std::ranges::find(kOtherKeys, field.first) != std::end(kOtherKeys))
      throw std::invalid_argument("recipe '" + name + "': found a field '" + field.first +
                                  "', allowed: names that are no keys of recipes as files");
  }
  if (!type_->scaling) throw std::invalid_argument("recipe '" + name + "': scaling is missing");
  validate(recipe());
  const std::lock_guard lock(recipe_registry().mutex);
  const auto is_built_in = [&](const NamedRecipe& row) { return row.name == name; };
  const auto is_registered = [&](const auto& row) { return row->name == name; };
  if (std::ranges::any_of(built_in_recipes(), is_built_in) ||
      std::ranges::any_of(recipe_registry().types, is_registered))
    throw std::invalid_argument("recipe '" + name + "': the name is taken");
  recipe_registry().types.push_back(type_);
}

RecipeRegistration::~RecipeRegistration() {
  const std::lock_guard lock(recipe_registry().mutex);
  std::erase(recipe_registry().types, type_);
}

}  // namespace fp8::recipes
