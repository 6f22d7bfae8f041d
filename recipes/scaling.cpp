// SPDX-License-Identifier: Apache-2.0
// Limits of what a recipe of one's own may ask for.
#include "fp8/recipes/scaling.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "fp8/runtime/kernels/cast.h"

namespace fp8::recipes {
namespace {

std::optional<FieldProblem> operand_problem(const std::string& operand, const OperandScaling& how) {
  if (how.rule == ScalingRule::history) return FieldProblem{operand + ".rule", "history", "tensor, blocks, mx"};
  if (!std::isfinite(how.amax_epsilon) || how.amax_epsilon < 0.0f)
    return FieldProblem{operand + ".amax_epsilon", std::to_string(how.amax_epsilon), "a finite value >= 0"};
  if (how.one_scale()) return std::nullopt;
  const bool mx = how.rule == ScalingRule::mx;
  if (how.block_rows < 1 || (mx && how.block_rows != 1))
    return FieldProblem{operand + ".block_rows", std::to_string(how.block_rows), mx ? "1" : "1 or more"};
  if (how.block_cols < 1 || (mx && how.block_cols != kernels::kMxBlock))
    return FieldProblem{operand + ".block_cols", std::to_string(how.block_cols), mx ? "32" : "1 or more"};
  return std::nullopt;
}

[[noreturn]] void reject(std::string_view name, const char* what, float found, const char* allowed) {
  std::ostringstream message;
  message << name << ": " << what << " is " << found << ", allowed: " << allowed;
  throw std::invalid_argument(message.str());
}

std::string element(std::string_view name, Eigen::Index i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

bool usable_amax(float amax) { return std::isfinite(amax) && amax >= 0.0f; }
bool usable_scale_inv(float scale_inv) {
  return scale_inv > 0.0f && std::isfinite(scale_inv) && std::isfinite(1.0f / scale_inv);
}

}  // namespace

std::optional<FieldProblem> find_problem(const RecipeScaling& scaling) {
  if (auto problem = operand_problem("input", scaling.input)) return problem;
  if (auto problem = operand_problem("weight", scaling.weight)) return problem;
  if (auto problem = operand_problem("grad", scaling.grad)) return problem;
  if (scaling.stochastic_gradients && !scaling.grad.one_scale())
    return FieldProblem{"stochastic_gradients", "true", "false with blocks"};
  if (scaling.row_alignment < 1)
    return FieldProblem{"row_alignment", std::to_string(scaling.row_alignment), "1 or more"};
  return std::nullopt;
}

// amax -> scale_inv -> scale in our own convention.

float scale_inv_from_amax(float amax, float fp8_max, std::string_view name) {
  if (!(fp8_max > 0.0f) || !std::isfinite(fp8_max)) reject(name, "the format's maximum", fp8_max, "a finite value > 0");
  if (!usable_amax(amax)) reject(name, "amax", amax, "a finite value >= 0");
  if (amax == 0.0f) return 1.0f;
  return std::max(amax / fp8_max, kMinScaleInv);
}

Eigen::ArrayXf scale_inv_from_amax(const Eigen::ArrayXf& amax, float fp8_max, std::string_view name) {
  Eigen::ArrayXf result(amax.size());
  for (Eigen::Index i = 0; i < amax.size(); ++i) {
    if (!usable_amax(amax[i])) scale_inv_from_amax(amax[i], fp8_max, element(name, i));
    result[i] = scale_inv_from_amax(amax[i], fp8_max, name);
  }
  return result;
}

float scale_from_scale_inv(float scale_inv, std::string_view name) {
  if (!usable_scale_inv(scale_inv)) reject(name, "scale_inv", scale_inv, "a finite value > 0 with a finite reciprocal");
  return 1.0f / scale_inv;
}

Eigen::ArrayXf scale_from_scale_inv(const Eigen::ArrayXf& scale_inv, std::string_view name) {
  Eigen::ArrayXf result(scale_inv.size());
  for (Eigen::Index i = 0; i < scale_inv.size(); ++i) {
    if (!usable_scale_inv(scale_inv[i])) scale_from_scale_inv(scale_inv[i], element(name, i));
    result[i] = 1.0f / scale_inv[i];
  }
  return result;
}

}  // namespace fp8::recipes
