// SPDX-License-Identifier: Apache-2.0
// What all recipes answer to (see recipe.h).
#include "fp8/recipes/recipe.h"

#include <iterator>
#include <sstream>

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

}  // namespace fp8::recipes
