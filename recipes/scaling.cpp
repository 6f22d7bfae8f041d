// SPDX-License-Identifier: Apache-2.0
// Limits of what a recipe of one's own may ask for.
#include "fp8/recipes/scaling.h"

#include <cmath>
#include <sstream>
#include <tuple>

#include "fp8/runtime/io/base/text.h"
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

constexpr int kLowestExponent = -126, kHighestExponent = 126;  // 2^e and 2^-e are normal f32 numbers

bool has_callable(const DelayedScaling& recipe) {
  return recipe.amax_compute_algo.callable() != nullptr || static_cast<bool>(recipe.scaling_factor_compute_algo);
}

auto plain_fields(const DelayedScaling& r) {
  return std::tie(r.margin, r.interval, r.fp8_format, r.amax_history_len, r.amax_compute_algo,
                  r.override_linear_precision, r.reduce_amax, r.power_of_two_scale, r.dialect, r.stale_row_compat);
}

std::string text_of(const std::array<bool, 3>& flags) {
  return "(" + io::joined(flags | std::views::transform([](bool flag) { return flag ? "true" : "false"; })) + ")";
}

std::optional<FieldProblem> range_problem(const char* field, int found, int low, int high) {
  if (found >= low && found <= high) return std::nullopt;
  return FieldProblem{field, std::to_string(found), std::to_string(low) + " to " + std::to_string(high)};
}

// (run_cnt + interval - 2) mod interval, without overflow and for any sign.
std::int64_t phase(std::int64_t run_cnt, std::int64_t interval) {
  const std::int64_t residue = (run_cnt % interval + interval - 2) % interval;
  return residue < 0 ? residue + interval : residue;
}

// floor(log2(fp8_max / amax)): fp8_max / amax = m / a * 2^(em - ea) with m and a in [0.5, 1), so m / a >= 1 iff m >= a.
int floor_log2_quotient(float fp8_max, float amax) {
  int max_exponent = 0, amax_exponent = 0;
  const float m = std::frexp(fp8_max, &max_exponent), a = std::frexp(amax, &amax_exponent);
  return max_exponent - amax_exponent - (m < a ? 1 : 0);
}

constexpr float kMinScale = 0x1p-126f;

std::string text_of(float value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void check_positive(const char* field, float value) {
  if (value > 0.0f && std::isfinite(value)) return;
  throw_problem("current_scale", FieldProblem{field, text_of(value), "a finite value > 0"});
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

// Limits, schedule and scale formulas of delayed scaling.

bool DelayedScaling::operator==(const DelayedScaling& other) const {
  return !has_callable(*this) && !has_callable(other) && plain_fields(*this) == plain_fields(other);
}

std::optional<FieldProblem> find_problem(const DelayedScaling& recipe) {
  const bool nvidia = recipe.dialect == RecipeDialect::nvidia;
  if (auto problem = range_problem("margin", recipe.margin, -kMaxMargin, kMaxMargin)) return problem;
  if (auto problem = range_problem("interval", recipe.interval, 1, kMaxInterval)) return problem;
  if (nvidia && recipe.interval != 1)
    return FieldProblem{"interval", std::to_string(recipe.interval), "1 (the nvidia dialect has no interval)"};
  if (auto problem = range_problem("amax_history_len", recipe.amax_history_len, 1, kMaxHistory)) return problem;
  if (recipe.fp8_format == (nvidia ? RecipeFormat::E5M2 : RecipeFormat::E4M3))
    return FieldProblem{"fp8_format", name_of(recipe.fp8_format),
                        nvidia ? "E4M3, HYBRID (nvidia dialect)" : "E5M2, HYBRID (habana dialect)"};
  const auto* callable = recipe.amax_compute_algo.callable();
  if (callable != nullptr && !*callable)
    return FieldProblem{"amax_compute_algo", "an empty callable", "most_recent, max, a callable"};
  const auto& overrides = recipe.override_linear_precision;
  if (overrides[0] || overrides[1] || (overrides[2] && !nvidia))
    return FieldProblem{"override_linear_precision", text_of(overrides),
                        nvidia ? "(false, false, false), (false, false, true)" : "(false, false, false)"};
  if (nvidia && recipe.stale_row_compat)
    return FieldProblem{"stale_row_compat", "true", "false (the nvidia dialect has no ring)"};
  return std::nullopt;
}

void validate(const DelayedScaling& recipe) { throw_problem("DelayedScaling", find_problem(recipe)); }

RecipeScaling scaling_of(const DelayedScaling& recipe) {
  const bool habana = recipe.dialect == RecipeDialect::habana;
  const OperandScaling how{.rule = ScalingRule::history, .power_of_two = recipe.power_of_two_scale};
  return {.fp8_format = recipe.fp8_format,
          .input = how,
          .weight = how,
          .grad = how,
          .stochastic_gradients = habana && recipe.fp8_format == RecipeFormat::HYBRID,
          .exact_weight_grad = recipe.override_linear_precision[2],
          .bf16_bias = habana};
}

bool measures_amax(const DelayedScaling& recipe, std::int64_t run_cnt) {
  if (recipe.dialect == RecipeDialect::nvidia || recipe.interval <= 1) return true;
  return phase(run_cnt, recipe.interval) >= static_cast<std::int64_t>(recipe.interval) - recipe.amax_history_len;
}

bool updates_scale(const DelayedScaling& recipe, std::int64_t run_cnt) {
  if (recipe.dialect == RecipeDialect::nvidia || recipe.interval <= 1) return true;
  return phase(run_cnt, recipe.interval) == 0;
}

float next_scale(float amax, float old_scale, float fp8_max, const DelayedScaling& recipe) {
  if (!(fp8_max > 0.0f) || !std::isfinite(fp8_max))
    throw_problem("next_scale", FieldProblem{"fp8_max", std::to_string(fp8_max), "a finite value > 0"});
  if (!(amax > 0.0f) || !std::isfinite(amax)) return old_scale;
  if (recipe.power_of_two_scale) {
    const int exponent = floor_log2_quotient(fp8_max, amax) - recipe.margin;
    return std::ldexp(1.0f, std::clamp(exponent, kLowestExponent, kHighestExponent));
  }
  const float scale = std::ldexp(fp8_max / amax, -recipe.margin);
  return std::clamp(scale, std::ldexp(1.0f, kLowestExponent), std::numeric_limits<float>::max());
}

// The scale of one tensor or block from its own amax.

std::optional<FieldProblem> find_problem(const CurrentScaling& recipe) {
  if (recipe.fp8_format == RecipeFormat::E5M2) return FieldProblem{"fp8_format", "E5M2", "E4M3, HYBRID"};
  if (!std::isfinite(recipe.amax_epsilon) || recipe.amax_epsilon < 0.0f)
    return FieldProblem{"amax_epsilon", text_of(recipe.amax_epsilon), "a finite value >= 0"};
  return std::nullopt;
}

void validate(const CurrentScaling& recipe) { throw_problem("CurrentScaling", find_problem(recipe)); }

RecipeScaling scaling_of(const CurrentScaling& recipe) {
  const OperandScaling how{.power_of_two = recipe.power_of_two_scale, .amax_epsilon = recipe.amax_epsilon};
  return {.fp8_format = recipe.fp8_format, .input = how, .weight = how, .grad = how};
}

float current_scale(float amax, float fp8_max, const CurrentScaling& recipe, float dtype_max) {
  check_positive("fp8_max", fp8_max);
  check_positive("dtype_max", dtype_max);
  if (amax < recipe.amax_epsilon) amax = recipe.amax_epsilon;
  if (!(amax > 0.0f) || !std::isfinite(amax)) return 1.0f;
  float scale = fp8_max / amax;
  if (std::isinf(scale)) scale = dtype_max;
  scale = std::max(scale, kMinScale);
  if (!recipe.power_of_two_scale) return scale;
  int exponent = 0;
  std::frexp(scale, &exponent);
  return std::ldexp(1.0f, exponent - 1);
}

}  // namespace fp8::recipes
