// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/quantized_operand.h"

#include <cmath>
#include <limits>
#include <tuple>

#include "fp8/runtime/device/environment.h"
#include "fp8/runtime/fp8_tensor/cast_once.h"
#include "fp8/runtime/kernels/block_cast.h"

namespace fp8::te {
namespace {

using recipes::Format;
using runtime::CastSpec;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;
using runtime::ScaleRule;

/// Which format a role gets going forward or backward.
Format format_for(Role role, recipes::RecipeFormat format) {
  return role == Role::grad ? recipes::backward_format(format) : recipes::forward_format(format);
}

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

Fp8Tensor cast(const at::Tensor& x, const CastSpec& spec, const CastPlan& plan) {
  return plan.input.defined() ? runtime::cast_once(plan.input, x, spec) : runtime::quantize(x, spec);
}

float amax_of(const at::Tensor& x, const CastPlan& plan) {
  return plan.input.defined() ? runtime::amax_once(plan.input, x) : runtime::amax_of(x);
}

OperandPair delayed(const at::Tensor& x, const recipes::DelayedScaling& recipe, const CastPlan& plan) {
  const auto i = static_cast<std::size_t>(plan.index);
  const StepScales& s = *plan.scales;
  const Format format = format_for(plan.role, recipe.fp8_format);
  float amax = 0.0f;
  CastSpec spec{.format = format, .dialect = plan.dialect, .scale = s.scale[i], .scale_inv = s.scale_inv[i]};
  spec.stochastic = plan.stochastic;
  spec.amax = s.record ? &amax : nullptr;
  OperandPair pair;
  if (plan.role != Role::grad && plan.need_rows && !s.hybrid_scale.empty()) {
    const CastSpec wide{.format = Format::E5M2,
                        .dialect = plan.dialect,
                        .scale = s.hybrid_scale[i],
                        .scale_inv = s.hybrid_scale_inv[i]};
    std::tie(pair.columns, pair.rows) = plan.input.defined() ? runtime::cast_both_once(plan.input, x, spec, wide)
                                                             : runtime::quantize_both(x, spec, wide);
  } else {
    pair.columns = pair.rows = cast(x, spec, plan);
  }
  if (s.record && plan.state != nullptr) {
    plan.state->record(plan.role == Role::grad ? Pass::backward : Pass::forward, s, plan.index, amax,
                       recipes::fp8_max(format, plan.dialect));
  }
  count_if_wanted(x, pair.columns, format, plan);
  return pair;
}

OperandPair current(const at::Tensor& x, const recipes::CurrentScaling& recipe, const CastPlan& plan) {
  const Format format = format_for(plan.role, recipe.fp8_format);
  const float amax = amax_of(x, plan), scale = current_scale_of(amax, format, plan.dialect, recipe, x.scalar_type());
  if (notes_amax(plan)) plan.state->saw(*plan.scales, plan.index, amax);
  CastSpec spec{.format = format, .dialect = plan.dialect, .scale = scale, .scale_inv = 1.0f / scale};
  spec.stochastic = plan.stochastic;
  OperandPair pair;
  pair.columns = pair.rows = cast(x, spec, plan);
  count_if_wanted(x, pair.columns, format, plan);
  return pair;
}

OperandPair block(const at::Tensor& x, const recipes::BlockScaling& recipe, const CastPlan& plan) {
  const int dim = plan.role == Role::input    ? recipe.x_block_scaling_dim
                  : plan.role == Role::weight ? recipe.w_block_scaling_dim
                                              : recipe.grad_block_scaling_dim;
  const Format format = format_for(plan.role, recipe.fp8_format);
  CastSpec spec{.format = format, .dialect = plan.dialect, .rule = ScaleRule::max_over_amax};
  spec.power_of_two = recipe.power_of_two_scale;
  spec.amax_epsilon = recipe.amax_epsilon;
  spec.layout = ScaleLayout::blocks(dim == 2 ? recipe.block : 1, recipe.block);
  OperandPair pair;
  pair.columns = pair.rows = cast(x, spec, plan);
  count_if_wanted(x, pair.columns, format, plan);
  if (!plan.need_rows || dim == 2) return pair;
  spec.layout = ScaleLayout::blocks(recipe.block, 1);
  pair.rows = cast(x, spec, plan);
  return pair;
}

OperandPair mx(const at::Tensor& x, const recipes::MXFP8& recipe, const CastPlan& plan) {
  const Format format = format_for(plan.role, recipe.fp8_format);
  CastSpec spec{.format = format, .dialect = plan.dialect, .rule = ScaleRule::e8m0};
  spec.layout = ScaleLayout::blocks(1, kernels::kMxBlock);
  OperandPair pair;
  pair.columns = cast(x, spec, plan);
  count_if_wanted(x, pair.columns, format, plan);
  if (!plan.need_rows) return pair;
  spec.layout = ScaleLayout::blocks(kernels::kMxBlock, 1);
  pair.rows = cast(x, spec, plan);
  return pair;
}

}  // namespace

OperandPair quantize_operand(const at::Tensor& x, const CastPlan& plan) {
  if (const auto* d = std::get_if<recipes::DelayedScaling>(&plan.recipe)) return delayed(x, *d, plan);
  if (const auto* c = std::get_if<recipes::CurrentScaling>(&plan.recipe)) return current(x, *c, plan);
  if (notes_amax(plan)) plan.state->saw(*plan.scales, plan.index, amax_of(x, plan));
  if (const auto* b = std::get_if<recipes::BlockScaling>(&plan.recipe)) return block(x, *b, plan);
  return mx(x, std::get<recipes::MXFP8>(plan.recipe), plan);
}

std::optional<std::uint64_t> gradient_seed(const recipes::Recipe& recipe, const Fp8Region& region,
                                           const std::string& product, const StepScales& scales) {
  const auto* d = std::get_if<recipes::DelayedScaling>(&recipe);
  bool stochastic =
      d != nullptr && d->dialect == recipes::RecipeDialect::habana && d->fp8_format == recipes::RecipeFormat::HYBRID;
  stochastic = runtime::forced_stochastic_gradients().value_or(stochastic);
  if (!stochastic) return std::nullopt;
  std::uint64_t h = 0xcbf29ce484222325ull ^ region.options().seed;
  for (const char c : product) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  h ^= static_cast<std::uint64_t>(scales.step) * 0x9e3779b97f4a7c15ull;
  h ^= static_cast<std::uint64_t>(scales.instance) * 0xff51afd7ed558ccdull;
  h ^= static_cast<std::uint64_t>(region.rank()) * 0xc4ceb9fe1a85ec53ull;
  h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
  return h ^ (h >> 29);
}

float current_scale_of(float amax, Format format, recipes::Dialect dialect, const recipes::CurrentScaling& recipe,
                       at::ScalarType dtype) {
  return recipes::current_scale(amax, recipes::fp8_max(format, dialect), recipe, dtype_max(dtype));
}

}  // namespace fp8::te
