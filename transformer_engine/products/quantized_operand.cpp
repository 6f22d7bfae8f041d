// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/quantized_operand.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <limits>

#include "fp8/runtime/device/environment.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/ops/cast/block_ops.h"
#include "fp8/runtime/ops/gemm/gemm.h"
#include "fp8/runtime/ops/gemm/weight_only.h"

namespace fp8::te {
namespace {

namespace ops = runtime::ops;
using recipes::Format;

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

void count_if_wanted(const at::Tensor& x, const Operand& operand, Format format, const CastPlan& plan) {
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

OperandPair delayed(const at::Tensor& x, const recipes::DelayedScaling& recipe, const CastPlan& plan) {
  const auto i = static_cast<std::size_t>(plan.index);
  const StepScales& s = *plan.scales;
  const Format format = format_for(plan.role, recipe.fp8_format);
  float amax = 0.0f;
  OperandPair pair;
  pair.columns.codes = cast_tensor(x, format, plan.dialect, s.scale[i], s.record ? &amax : nullptr, plan.stochastic);
  pair.columns.scale_inv = s.scale_inv[i];
  if (s.record && plan.state != nullptr) {
    plan.state->record(plan.role == Role::grad ? Pass::backward : Pass::forward, s, plan.index, amax,
                       recipes::fp8_max(format, plan.dialect));
  }
  count_if_wanted(x, pair.columns, format, plan);
  pair.rows = pair.columns;
  if (plan.role != Role::grad && plan.need_rows && !s.hybrid_scale.empty()) {
    pair.rows.codes = cast_tensor(x, Format::E5M2, plan.dialect, s.hybrid_scale[i], nullptr);
    pair.rows.scale_inv = s.hybrid_scale_inv[i];
  }
  return pair;
}

OperandPair current(const at::Tensor& x, const recipes::CurrentScaling& recipe, const CastPlan& plan) {
  const Format format = format_for(plan.role, recipe.fp8_format);
  const float amax = amax_of(x), scale = current_scale_of(amax, format, plan.dialect, recipe, x.scalar_type());
  if (notes_amax(plan)) plan.state->saw(*plan.scales, plan.index, amax);
  OperandPair pair;
  pair.columns.codes = cast_tensor(x, format, plan.dialect, scale, nullptr, plan.stochastic);
  pair.columns.scale_inv = 1.0f / scale;
  count_if_wanted(x, pair.columns, format, plan);
  pair.rows = pair.columns;
  return pair;
}

Operand of(ops::BlockQuantized q, bool power_of_two) {
  Operand operand;
  operand.codes = std::move(q.codes);
  operand.grid = std::move(q.scale_inv);
  operand.block_rows = q.block_rows;
  operand.block_cols = q.block_cols;
  operand.power_of_two = power_of_two;
  return operand;
}

OperandPair block(const at::Tensor& x, const recipes::BlockScaling& recipe, const CastPlan& plan) {
  const int dim = plan.role == Role::input    ? recipe.x_block_scaling_dim
                  : plan.role == Role::weight ? recipe.w_block_scaling_dim
                                              : recipe.grad_block_scaling_dim;
  const Format format = format_for(plan.role, recipe.fp8_format);
  const auto quantize = [&](std::int64_t rows, std::int64_t cols) {
    return of(ops::quantize_blocks(x, ops::dtype_of(format), plan.dialect, rows, cols, recipe.power_of_two_scale,
                                   recipe.amax_epsilon),
              recipe.power_of_two_scale);
  };
  OperandPair pair;
  pair.columns = quantize(dim == 2 ? recipe.block : 1, recipe.block);
  count_if_wanted(x, pair.columns, format, plan);
  if (plan.need_rows) pair.rows = dim == 2 ? pair.columns : quantize(recipe.block, 1);
  return pair;
}

OperandPair mx(const at::Tensor& x, const recipes::MXFP8& recipe, const CastPlan& plan) {
  const Format format = format_for(plan.role, recipe.fp8_format);
  OperandPair pair;
  pair.columns = of(ops::quantize_mx(x, ops::dtype_of(format), plan.dialect, ops::MxDirection::rowwise), true);
  count_if_wanted(x, pair.columns, format, plan);
  if (plan.need_rows)
    pair.rows = of(ops::quantize_mx(x, ops::dtype_of(format), plan.dialect, ops::MxDirection::columnwise), true);
  return pair;
}

/// One scale_inv a row and group of columns, f32: what the kernel takes.
at::Tensor scales_of_rows(const Operand& x) {
  const at::Tensor grid = x.grid.to(at::kFloat);
  return x.block_rows == 1 ? grid : grid.repeat_interleave(x.block_rows, 0).narrow(0, 0, x.codes.size(0)).contiguous();
}

/// x . w^T + bias, rounded once.
at::Tensor biased_blocks(const Operand& x, const Operand& w, at::ScalarType out, const at::Tensor& bias) {
  return ops::block_linear(x.codes, scales_of_rows(x), w.codes, w.grid.to(at::kFloat), w.block_rows, w.block_cols, 0,
                           bias, out);
}

}  // namespace

OperandPair quantize_operand(const at::Tensor& x, const CastPlan& plan) {
  if (const auto* d = std::get_if<recipes::DelayedScaling>(&plan.recipe)) return delayed(x, *d, plan);
  if (const auto* c = std::get_if<recipes::CurrentScaling>(&plan.recipe)) return current(x, *c, plan);
  if (notes_amax(plan)) plan.state->saw(*plan.scales, plan.index, amax_of(x));
  if (const auto* b = std::get_if<recipes::BlockScaling>(&plan.recipe)) return block(x, *b, plan);
  return mx(x, std::get<recipes::MXFP8>(plan.recipe), plan);
}

at::Tensor dequantize(const Operand& operand, at::ScalarType dtype) {
  if (operand.grid.defined()) {
    return ops::dequantize_blocks({operand.codes, operand.grid, operand.block_rows, operand.block_cols}, dtype);
  }
  at::Tensor y = at::empty(operand.codes.sizes(), operand.codes.options().dtype(dtype));
  kernels::DecodeArgs args;
  args.codes = static_cast<const std::uint8_t*>(operand.codes.const_data_ptr());
  args.rows = 1;
  args.cols = operand.codes.numel();
  args.format = ops::format_of(operand.codes.scalar_type());
  args.y = y.mutable_data_ptr();
  args.type = ops::float_type_of(dtype);
  args.scale_inv = &operand.scale_inv;
  kernels::decode_from_fp8(args);
  return y;
}

at::Tensor product(const Operand& a, bool transpose_a, const Operand& b, bool transpose_b, at::ScalarType out,
                   const std::optional<at::Tensor>& bias) {
  if (!a.grid.defined() && !b.grid.defined()) {
    ops::GemmOptions options;
    options.trans_a = transpose_a;
    options.trans_b = transpose_b;
    options.out_dtype = out;
    options.a_scale_inv = {{a.scale_inv}, {}};
    options.b_scale_inv = {{b.scale_inv}, {}};
    options.dialect = recipes::Dialect::
        ocp;  // casts write no code that another dialect reads otherwise, whatever device this thread has
    return ops::fp8_gemm(a.codes, b.codes, std::nullopt, bias, options);
  }
  const bool biased = bias.has_value() && bias->defined();
  const bool blocks = a.grid.defined() && b.grid.defined() && a.block_cols == b.block_cols && a.codes.numel() > 0 &&
                      b.codes.numel() > 0;
  if (biased && blocks && !transpose_a && transpose_b) return biased_blocks(a, b, out, *bias);
  const bool exact = a.power_of_two && b.power_of_two && out == at::kBFloat16 && !biased;
  const at::ScalarType type = exact ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = dequantize(a, type), w = dequantize(b, type);
  at::Tensor y = at::matmul(transpose_a ? x.t() : x, transpose_b ? w.t() : w);
  if (biased) y = y.add_(*bias);
  return y.to(out);
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

float amax_of(const at::Tensor& x) {
  return kernels::amax(x.const_data_ptr(), ops::float_type_of(x.scalar_type()), x.numel());
}

at::Tensor cast_tensor(const at::Tensor& x, Format format, recipes::Dialect dialect, float scale, float* amax,
                       std::optional<std::uint64_t> stochastic) {
  at::Tensor codes = at::empty(x.sizes(), x.options().dtype(ops::dtype_of(format)));
  kernels::CastArgs args;
  args.x = x.const_data_ptr();
  args.type = ops::float_type_of(x.scalar_type());
  args.cols = x.size(-1);
  args.rows = args.cols == 0 ? 0 : x.numel() / args.cols;
  args.row_stride = args.cols;
  args.codes = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  args.format = format;
  args.max = recipes::fp8_max(format, dialect);
  args.scale = &scale;
  args.stochastic = stochastic.has_value();
  args.seed = stochastic.value_or(0);
  args.amax = amax;
  kernels::cast_to_fp8(args);
  return codes;
}

}  // namespace fp8::te
