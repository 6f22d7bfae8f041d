// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/quantized_operand.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/cast_once.h"
#include "fp8/runtime/kernels/block_cast.h"

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
    case at::kFloat:
      return count_elements<float>(x, operand.codes, format, plan.dialect, *plan.state);
    case at::kBFloat16:
      return count_elements<at::BFloat16>(x, operand.codes, format, plan.dialect, *plan.state);
    default:
      return count_elements<at::Half>(x, operand.codes, format, plan.dialect, *plan.state);
  }
}

/// Of an input, for those who export it; delayed scaling records amaxes anyway.
bool notes_amax(const CastPlan& plan) {
  return plan.role == Role::input && plan.state != nullptr && plan.scales != nullptr && plan.scales->trains;
}

std::pair<Fp8Tensor, Fp8Tensor> cast_both(const at::Tensor& x, const CastSpec& columns, const CastSpec& rows,
                                          const CastPlan& plan) {
  return plan.input.defined() ? runtime::cast_both_once(plan.input, x, columns, rows)
                              : runtime::quantize_both(x, columns, rows);
}

Fp8Tensor cast(const at::Tensor& x, const CastSpec& spec, const CastPlan& plan) {
  return plan.input.defined() ? runtime::cast_once(plan.input, x, spec) : runtime::quantize(x, spec);
}

/// One scale for both ways.
OperandPair cast_pair(const at::Tensor& x, CastSpec spec, const CastPlan& plan) {
  OperandPair pair;
  const bool columns = plan.need_columns || plan.statistics;  // which are counted row by row
  if (plan.need_rows && !plan.both_stay && columns) {
    CastSpec turned = spec;
    turned.turned = true;
    turned.amax = nullptr;
    std::tie(pair.columns, pair.rows) = cast_both(x, spec, turned, plan);
  } else {
    spec.turned = !columns && plan.need_rows;
    pair.columns = pair.rows = cast(x, spec, plan);
  }
  return pair;
}

float amax_of(const at::Tensor& x, const CastPlan& plan) {
  return plan.input.defined() ? runtime::amax_once(plan.input, x) : runtime::amax_of(x);
}

OperandPair by_history(const at::Tensor& x, Format format, const CastPlan& plan) {
  const auto i = static_cast<std::size_t>(plan.index);
  const StepScales& s = *plan.scales;
  float amax = 0.0f;
  CastSpec spec{.format = format, .dialect = plan.dialect, .scale = s.scale[i], .scale_inv = s.scale_inv[i]};
  spec.stochastic = plan.stochastic;
  spec.amax = s.record ? &amax : nullptr;
  OperandPair pair;
  if (plan.role != Role::grad && plan.need_rows && !s.hybrid_scale.empty()) {
    CastSpec wide{.format = Format::E5M2,
                  .dialect = plan.dialect,
                  .scale = s.hybrid_scale[i],
                  .scale_inv = s.hybrid_scale_inv[i]};
    wide.turned = true;
    if (!plan.need_columns && !s.record)
      pair.columns = pair.rows = cast(x, wide, plan);
    else
      std::tie(pair.columns, pair.rows) = cast_both(x, spec, wide, plan);
  } else {
    pair = cast_pair(x, spec, plan);
  }
  if (s.record && plan.state != nullptr) {
    plan.state->record(plan.role == Role::grad ? Pass::backward : Pass::forward, s, plan.index, amax,
                       recipes::fp8_max(format, plan.dialect));
  }
  count_if_wanted(x, pair.columns, format, plan);
  return pair;
}

OperandPair by_own_amax(const at::Tensor& x, const OperandScaling& how, Format format, const CastPlan& plan) {
  const float amax = amax_of(x, plan), scale = current_scale_of(amax, format, plan.dialect, how, x.scalar_type());
  if (notes_amax(plan)) plan.state->saw(*plan.scales, plan.index, amax);
  CastSpec spec{.format = format, .dialect = plan.dialect, .scale = scale, .scale_inv = 1.0f / scale};
  spec.stochastic = plan.stochastic;
  OperandPair pair = cast_pair(x, spec, plan);
  count_if_wanted(x, pair.columns, format, plan);
  return pair;
}

OperandPair by_blocks(const at::Tensor& x, const OperandScaling& how, Format format, const CastPlan& plan) {
  if (notes_amax(plan)) plan.state->saw(*plan.scales, plan.index, amax_of(x, plan));
  CastSpec spec{.format = format, .dialect = plan.dialect};
  spec.rule = how.rule == ScalingRule::mx ? ScaleRule::e8m0 : ScaleRule::max_over_amax;
  spec.power_of_two = how.power_of_two;
  spec.amax_epsilon = how.amax_epsilon;
  spec.layout = ScaleLayout::blocks(how.block_rows, how.block_cols);
  OperandPair pair;
  pair.columns = pair.rows = cast(x, spec, plan);
  count_if_wanted(x, pair.columns, format, plan);
  if (!plan.need_rows || how.block_rows == how.block_cols) return pair;
  spec.layout = ScaleLayout::blocks(how.block_cols, how.block_rows);
  pair.rows = cast(x, spec, plan);
  return pair;
}

}  // namespace

OperandPair quantize_operand(const at::Tensor& x, const CastPlan& plan) {
  const recipes::RecipeScaling scaling = recipes::scaling_of(plan.recipe);
  const OperandScaling& how = scaling.of(plan.role);
  const Format format = scaling.format(plan.role);
  if (how.rule == ScalingRule::history) return by_history(x, format, plan);
  if (how.rule == ScalingRule::tensor) return by_own_amax(x, how, format, plan);
  return by_blocks(x, how, format, plan);
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
