// SPDX-License-Identifier: Apache-2.0
// What products ask of a recipe: how each operand's scales are made, and what else sets recipes apart. Each recipe
// answers with scaling_of(); who runs products reads that, and does not ask which recipe it is.
//
//   rule      scales                                             along columns           along rows
//   history   one, of amaxes of earlier steps (tensor_meta.h)    one scale               the same codes, or E5M2's own
//   tensor    one, current_scale() of the tensor's own amax      one scale               the same codes
//   blocks    current_scale() of each block's own amax           block_rows x block_cols block_cols x block_rows
//   mx        e8m0_from_amax() of each block's own amax          1 x 32                  32 x 1
//
// Blocks that are square serve both ways with the same codes.
#pragma once
#include <cstdint>
#include <optional>

#include "fp8/recipes/field_problem.h"
#include "fp8/recipes/format.h"

namespace fp8::recipes {

/// The operands of a linear product: x, w, and the gradient of the result.
enum class Role : std::uint8_t { input, weight, grad };

enum class ScalingRule : std::uint8_t { history, tensor, blocks, mx };

struct OperandScaling {
  ScalingRule rule = ScalingRule::tensor;
  std::int64_t block_rows = 0, block_cols = 0;  ///< blocks, mx: elements that share a scale along columns
  bool power_of_two = false;                    ///< scales rounded down to powers of two; those of mx always are
  float amax_epsilon = 0.0f;                    ///< tensor, blocks: smallest amax that is told from 0

  bool one_scale() const { return rule == ScalingRule::history || rule == ScalingRule::tensor; }
};

struct RecipeScaling {
  RecipeFormat fp8_format = RecipeFormat::HYBRID;
  OperandScaling input = {}, weight = {}, grad = {};
  bool stochastic_gradients = false;  ///< rounded so, unless the environment says otherwise; with one scale only
  bool exact_weight_grad = false;     ///< the weight's gradient is the product of the unquantized operands
  bool bf16_bias = false;             ///< the bias of f32 products is rounded to bf16 first
  int row_alignment = 16;             ///< what rows of an input are padded to (te::Fp8Padding)

  const OperandScaling& of(Role role) const {
    return role == Role::input ? input : role == Role::weight ? weight : grad;
  }
  Format format(Role role) const {
    return role == Role::grad ? backward_format(fp8_format) : forward_format(fp8_format);
  }
  /// Each operand has one scale: what attention's products and weights that are held in fp8 only can do with.
  bool one_scale() const { return input.one_scale() && weight.one_scale() && grad.one_scale(); }
  /// Amaxes of earlier steps are kept, and can be given before the first.
  bool keeps_history() const { return input.rule == ScalingRule::history; }
};

/// The first field ("input.block_rows") that no product can do with, if any. history is DelayedScaling's alone, which
/// has the state's settings.
std::optional<FieldProblem> find_problem(const RecipeScaling& scaling);

}  // namespace fp8::recipes
