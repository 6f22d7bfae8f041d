// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/quantized_operand.h"

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::te {
namespace {

using recipes::Format;
using recipes::OperandScaling;
using recipes::ScalingRule;
using runtime::CastSpec;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;
using runtime::ScaleRule;

float dtype_max(at::ScalarType type) {
  return type == at::kHalf ? 65504.0f : type == at::kBFloat16 ? 0x1.FEp127f : std::numeric_limits<float>::max();
}

/// Elements at the largest code, and non-zero elements that became zero.
template <class T>
void count_elements(const at::Tensor& x, const at::Tensor& codes, Format format, recipes::Dialect dialect,
                    Fp8State& state) {
  const float max = recipes::fp8_max(format, dialect);
  const std::uint8_t top = format == Format::E5M2 ? 0x7B : max == 240.0f ? 0x77 : 0x7E;
  const T* values = x.const_data_ptr<T>();
  const auto* code = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  std::int64_t saturated = 0, underflowed = 0;
  for (std::int64_t i = 0, n = x.numel(); i < n; ++i) {
    const std::uint8_t magnitude = code[i] & 0x7F;
    saturated += magnitude == top;
    underflowed += magnitude == 0 && static_cast<float>(values[i]) != 0.0f;
  }
  state.count(x.numel(), saturated, underflowed);
}

void count_if_wanted(const at::Tensor& x, const Fp8Tensor& operand, Format format, const CastPlan& plan) {
  if (!plan.statistics || plan.state == nullptr) return;
  switch (x.scalar_type()) {
    case at::kFloat: return count_elements<float>(x, operand.codes, format, plan.dialect, *plan.state);
    case at::kBFloat16: return count_elements<at::BFloat16>(x, operand.codes, format, plan.dialect, *plan.state);
    default: return count_elements<at::Half>(x, operand.codes, format, plan.dialect, *plan.state);
  }
}

Fp8Tensor cast(const at::Tensor& x, const CastSpec& spec, const CastPlan& plan) {
  return plan.input.defined() ? runtime::cast_once(plan.input, x, spec) : runtime::quantize(x, spec);
}

/// {along columns, along rows}.
OperandPair cast_both(const at::Tensor& x, const CastSpec& columns, const CastSpec& rows, const CastPlan& plan) {
  auto [first, second] = plan.input.defined() ? runtime::cast_both_once(plan.input, x, columns, rows)
                                              : runtime::quantize_both(x, columns, rows);
  return {std::move(first), std::move(second)};
}

float amax_of(const at::Tensor& x, const CastPlan& plan) {
  return plan.input.defined() ? runtime::amax_once(plan.input, x) : runtime::amax_of(x);
}

/// The recipe's cast along the columns. An amax of x that it knows, or that the cast will find, lies in `amax`.
CastSpec spec_of(const at::Tensor& x, const OperandScaling& how, Format format, const CastPlan& plan, float& amax) {
  CastSpec spec{.format = format, .max = recipes::fp8_max(format, plan.dialect)};
  const auto i = static_cast<std::size_t>(plan.index);
  switch (how.rule) {
    case ScalingRule::history:
      spec.scale = plan.scales->scale[i], spec.scale_inv = plan.scales->scale_inv[i];
      spec.stochastic = plan.stochastic;
      if (plan.scales->record) spec.amax = &amax;
      break;
    case ScalingRule::tensor:
      amax = amax_of(x, plan);
      spec.scale = current_scale_of(amax, format, plan.dialect, how, x.scalar_type());
      spec.scale_inv = 1.0f / spec.scale;
      spec.stochastic = plan.stochastic;
      break;
    case ScalingRule::blocks:
    case ScalingRule::mx:
      spec.layout = ScaleLayout::blocks(how.block_rows, how.block_cols);
      spec.rule = how.rule == ScalingRule::mx ? ScaleRule::e8m0 : ScaleRule::max_over_amax;
      spec.power_of_two = how.power_of_two;
      spec.amax_epsilon = how.amax_epsilon;
      break;
  }
  return spec;
}

/// One scale for both ways.
OperandPair cast_pair(const at::Tensor& x, CastSpec spec, const CastPlan& plan) {
  const bool columns = plan.need_columns || plan.statistics;  // which are counted row by row
  if (plan.need_rows && !plan.both_stay && columns) {
    CastSpec rows = spec;
    rows.transpose = true;
    rows.amax = nullptr;
    return cast_both(x, spec, rows, plan);
  }
  spec.transpose = !columns && plan.need_rows;
  const Fp8Tensor both = cast(x, spec, plan);
  return {both, both};
}

/// One scale for each way, of which that along rows is of E5M2 (habana HYBRID).
OperandPair cast_hybrid(const at::Tensor& x, const CastSpec& spec, const CastPlan& plan) {
  const auto i = static_cast<std::size_t>(plan.index);
  CastSpec wide{.format = Format::E5M2, .max = recipes::fp8_max(Format::E5M2, plan.dialect)};
  wide.scale = plan.scales->hybrid_scale[i], wide.scale_inv = plan.scales->hybrid_scale_inv[i];
  wide.transpose = true;
  if (plan.need_columns || spec.amax != nullptr) return cast_both(x, spec, wide, plan);
  const Fp8Tensor both = cast(x, wide, plan);
  return {both, both};
}

OperandPair cast_blocks(const at::Tensor& x, CastSpec spec, const CastPlan& plan) {
  const Fp8Tensor columns = cast(x, spec, plan);
  if (!plan.need_rows || spec.layout.rows == spec.layout.cols) return {columns, columns};
  std::swap(spec.layout.rows, spec.layout.cols);
  return {columns, cast(x, spec, plan)};
}

/// The amax of x goes to the state: to its history, or of an input, for export.
void record_amax(const at::Tensor& x, const OperandScaling& how, float amax, float max, const CastPlan& plan) {
  if (plan.state == nullptr || plan.scales == nullptr) return;
  if (how.rule == ScalingRule::history) {
    if (plan.scales->record)
      plan.state->record(plan.role == Role::grad ? Pass::backward : Pass::forward, *plan.scales, plan.index, amax, max);
  } else if (plan.role == Role::input && plan.scales->trains) {
    plan.state->record_input(*plan.scales, plan.index, how.rule == ScalingRule::tensor ? amax : amax_of(x, plan));
  }
}

}  // namespace

CastPlan ProductCall::plan(Role role, int index, const StepScales& of) const {
  return {.recipe = recipe,
          .dialect = dialect,
          .role = role,
          .need_rows = needs_grad,
          .state = state.get(),
          .scales = &of,
          .index = index,
          .statistics = region->options().statistics};
}

OperandPair quantize_operand(const at::Tensor& x, const CastPlan& plan) {
  const recipes::RecipeScaling scaling = recipes::scaling_of(plan.recipe);
  const OperandScaling& how = scaling.of(plan.role);
  float amax = 0.0f;
  const CastSpec spec = spec_of(x, how, scaling.format(plan.role), plan, amax);
  const bool hybrid = how.rule == ScalingRule::history && plan.role != Role::grad && plan.need_rows &&
                      !plan.scales->hybrid_scale.empty();
  const OperandPair pair = spec.layout.has_blocks() ? cast_blocks(x, spec, plan)
                           : hybrid                 ? cast_hybrid(x, spec, plan)
                                                    : cast_pair(x, spec, plan);
  record_amax(x, how, amax, spec.saturation(), plan);
  count_if_wanted(x, pair.columns, spec.format, plan);
  return pair;
}

std::optional<std::uint64_t> gradient_seed(const recipes::Recipe& recipe, const Fp8Region& region,
                                           const std::string& product, const StepScales& scales) {
  if (!runtime::forced_stochastic_gradients().value_or(recipes::scaling_of(recipe).stochastic_gradients))
    return std::nullopt;
  std::uint64_t h = 0xcbf29ce484222325ull ^ region.options().seed;
  for (const char c : product) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  h ^= static_cast<std::uint64_t>(scales.step) * 0x9e3779b97f4a7c15ull;
  h ^= static_cast<std::uint64_t>(scales.instance) * 0xff51afd7ed558ccdull;
  h ^= static_cast<std::uint64_t>(region.rank()) * 0xc4ceb9fe1a85ec53ull;
  h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
  return h ^ (h >> 29);
}

float current_scale_of(float amax, Format format, recipes::Dialect dialect, const OperandScaling& how,
                       at::ScalarType dtype) {
  const recipes::CurrentScaling rule{.power_of_two_scale = how.power_of_two, .amax_epsilon = how.amax_epsilon};
  return recipes::current_scale(amax, recipes::fp8_max(format, dialect), rule, dtype_max(dtype));
}

}  // namespace fp8::te
