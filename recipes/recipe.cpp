// SPDX-License-Identifier: Apache-2.0
// The questions that all recipes answer.
#include "fp8/recipes/recipe.h"

#include <iterator>
#include <sstream>

#include "fp8/runtime/io/base/text.h"

namespace fp8::recipes {
namespace {

const char* scales_text(bool power_of_two) { return power_of_two ? ", power-of-two scales" : ", f32 scales"; }

void describe(std::ostream& out, const DelayedScaling& r) {
  out << " (" << name_of(r.dialect) << "), " << name_of(r.fp8_format);
  if (r.dialect == RecipeDialect::habana) out << ", interval " << r.interval;
  out << ", history " << r.amax_history_len << ", "
      << (r.amax_compute_algo.callable() ? "amax by a callable" : name_of(r.amax_compute_algo));
  if (r.margin != 0) out << ", margin " << r.margin;
  out << (r.scaling_factor_compute_algo ? ", scales by a callable" : scales_text(r.power_of_two_scale));
  if (!r.reduce_amax) out << ", amax not reduced over ranks";
  if (r.override_linear_precision[2]) out << ", weight gradients in high precision";
  if (r.stale_row_compat) out << ", most_recent reads row 0";
}

void describe(std::ostream& out, const CurrentScaling& r) {
  out << ", " << name_of(r.fp8_format) << scales_text(r.power_of_two_scale);
  if (r.amax_epsilon != 0.0f) out << ", amax at least " << r.amax_epsilon;
}

void describe(std::ostream& out, const BlockScaling& r) {
  const auto shape = [&](int dim) {
    return (dim == 2 ? std::to_string(r.block) : "1") + "x" + std::to_string(r.block);
  };
  out << ", " << name_of(r.fp8_format) << ", x " << shape(r.x_block_scaling_dim) << ", w "
      << shape(r.w_block_scaling_dim) << ", grad " << shape(r.grad_block_scaling_dim)
      << scales_text(r.power_of_two_scale);
  if (r.amax_epsilon != 0.0f) out << ", amax at least " << r.amax_epsilon;
}

void describe(std::ostream& out, const MXFP8& r) {
  out << ", " << name_of(r.fp8_format) << ", blocks of " << r.block << ", E8M0 scales";
}

void describe(std::ostream& out, const OwnRecipe& r) {
  if (!r.type()->help.empty()) out << " (" << r.type()->help << ")";
  out << ", " << name_of(r.scaling().fp8_format);
  for (const auto& [name, value] : r.fields()) {
    if (const auto* flag = std::get_if<bool>(&value)) out << ", " << name << (*flag ? " true" : " false");
    if (const auto* number = std::get_if<int>(&value)) out << ", " << name << " " << *number;
    if (const auto* number = std::get_if<float>(&value)) out << ", " << name << " " << *number;
  }
}

void check_kinds(const RecipeType& type, const RecipeFields& values) {
  for (const auto& [name, value] : values) {
    const auto field = type.fields.find(name);
    if (field == type.fields.end())
      io::fail<std::invalid_argument>("recipe '{}': found the field '{}', allowed: {}", type.name, name,
                                      io::joined(std::views::keys(type.fields)));
    if (field->second.index() != value.index())
      io::fail<std::invalid_argument>("recipe '{}': {}: expected a value of the same kind as its default", type.name,
                                      name);
  }
}

/// The keys that JSON has beside a recipe's fields.
constexpr std::string_view kOtherKeys[] = {"recipe", "preset", "dialect", "modules", "match", "keep"};

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

using Recipes = io::Registry<NamedRecipe>;

Recipes& recipe_table() {
  static auto& table = *new Recipes(built_in_recipes(), &NamedRecipe::name);
  return table;
}

std::vector<std::string> names_of_recipes(bool NamedRecipe::*wanted) {
  std::vector<std::string> names;
  for (const auto& [name, row] : recipe_table().rows())
    if ((*row).*wanted) names.push_back(name);
  return names;
}

Recipes::Entry entry_of(const std::shared_ptr<const RecipeType>& type) {
  const std::string& name = type->name;
  if (!io::is_name(name, "_-"))
    io::fail<std::invalid_argument>("recipe: found the name '{}', allowed: lower case letters, digits, '_' and '-'",
                                    name);
  for (const auto& field : type->fields)
    if (std::ranges::find(kOtherKeys, field.first) != std::end(kOtherKeys))
      io::fail<std::invalid_argument>(
          "recipe '{}': found a field '{}', allowed: names that are no keys of recipes as files", name, field.first);
  if (!type->scaling) io::fail<std::invalid_argument>("recipe '{}': scaling is missing", name);
  const OwnRecipe recipe(type, {});
  validate(recipe);
  return {recipe_table(), name, std::make_shared<const NamedRecipe>(NamedRecipe{name, recipe}),
          io::message("recipe '{}': the name is taken", name)};
}

}  // namespace

RecipeFormat format_of(const Recipe& recipe) { return scaling_of(recipe).fp8_format; }

RecipeScaling scaling_of(const Recipe& recipe) {
  return std::visit([](const auto& r) -> RecipeScaling { return scaling_of(r); }, recipe);
}

const char* name_of(const Recipe& recipe) {
  if (const auto* own = std::get_if<OwnRecipe>(&recipe)) return own->type()->name.c_str();
  constexpr const char* kNames[] = {"delayed", "current", "block", "mxfp8"};
  static_assert(std::size(kNames) + 1 == std::variant_size_v<Recipe>);
  return kNames[recipe.index()];
}

std::optional<FieldProblem> find_problem(const Recipe& recipe) {
  return std::visit([](const auto& r) { return find_problem(r); }, recipe);
}

void validate(const Recipe& recipe) {
  std::visit([](const auto& r) { validate(r); }, recipe);
}

std::string describe(const Recipe& recipe) {
  std::ostringstream out;
  out << name_of(recipe);
  std::visit([&](const auto& r) { describe(out, r); }, recipe);
  return out.str();
}

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

std::vector<std::string> recipe_kinds() { return names_of_recipes(&NamedRecipe::kind); }
std::vector<std::string> recipe_presets() { return names_of_recipes(&NamedRecipe::preset); }

std::optional<Recipe> find_recipe(std::string_view name) {
  const auto found = recipe_table().find(std::string(name));
  return found != nullptr ? std::optional<Recipe>(found->recipe) : std::nullopt;
}

RecipeRegistration::RecipeRegistration(RecipeType type)
    : type_(std::make_shared<const RecipeType>(std::move(type))), entry_(entry_of(type_)) {}

}  // namespace fp8::recipes
