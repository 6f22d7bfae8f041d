// SPDX-License-Identifier: Apache-2.0
// The number formats as recipes speak of them: the kernels' names, and the pair that training uses.
//
//   E4M3     forward E4M3, backward E4M3
//   E5M2     forward E5M2, backward E5M2
//   HYBRID   forward E4M3 (activations, weights), backward E5M2 (gradients need range more than precision)
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::recipes {

using fp8::name_of;
using kernels::Dialect;
using kernels::FloatType;
using kernels::Format;
using kernels::fp8_max;

/// Which format tensors get on the way forward and backward.
enum class RecipeFormat : std::uint8_t { E4M3, E5M2, HYBRID };
constexpr auto names_of(RecipeFormat) { return names_up_to<RecipeFormat::HYBRID>("E4M3", "E5M2", "HYBRID"); }

/// Format of activations and weights.
constexpr Format forward_format(RecipeFormat format) {
  return format == RecipeFormat::E5M2 ? Format::E5M2 : Format::E4M3;
}

/// Format of gradients.
constexpr Format backward_format(RecipeFormat format) {
  return format == RecipeFormat::E4M3 ? Format::E4M3 : Format::E5M2;
}

// Our own convention, used wherever no QUANT_CONFIG says otherwise. All values f32.
//
//   scale_inv = f32(amax / fp8_max)      multiplies on the way out of fp8 (the one that files store)
//   scale     = f32(1 / scale_inv)       multiplies on the way in
//
// amax 0 gives scale 1 and scale_inv 1. A scale_inv below kMinScaleInv = 2^-126 (the smallest normal f32, so amax
// below about 5e-36 for 448) is raised to it: a subnormal scale_inv has few bits and its reciprocal overflows below
// 2^-128. The tensor then uses less than the whole range of the format, and never saturates.

constexpr float kMinScaleInv = 0x1p-126f;

/// amax / fp8_max with the rules above; amax in the tensor's own units. `name` (the module or tensor) stands in the
/// message of the std::invalid_argument thrown when amax is NaN, infinite or negative, or fp8_max is not a positive
/// number.
float scale_inv_from_amax(float amax, float fp8_max, std::string_view name);

/// Elementwise. amax: Shape [n]; result: Shape [n]. The message names the element too.
Eigen::ArrayXf scale_inv_from_amax(const Eigen::ArrayXf& amax, float fp8_max, std::string_view name);

/// f32(1 / scale_inv). Throws std::invalid_argument when scale_inv is not positive, or its reciprocal not finite.
float scale_from_scale_inv(float scale_inv, std::string_view name);

/// Elementwise. scale_inv: Shape [n]; result: Shape [n].
Eigen::ArrayXf scale_from_scale_inv(const Eigen::ArrayXf& scale_inv, std::string_view name);

// The problem of one field of a recipe: readers of files put the file and the key before it, validate() throws it
// as "DelayedScaling: margin is 99, allowed: -64 to 64".

struct FieldProblem {
  std::string field;    ///< the member's name
  std::string found;    ///< its value
  std::string allowed;  ///< the values allowed
};

/// Throws std::invalid_argument for a problem, in one line; `type` is the struct's name.
inline void throw_problem(const char* type, const std::optional<FieldProblem>& problem) {
  if (!problem) return;
  io::fail<std::invalid_argument>("{}: {} is {}, allowed: {}", type, problem->field, problem->found, problem->allowed);
}

// The questions that products ask of a recipe: how each operand's scales are made, and what else sets recipes apart.
// Each recipe answers with scaling_of(); who runs products reads that, and does not ask which recipe it is.
//
//   rule      scales                                             along columns           along rows
//   history   one, of amaxes of earlier steps (tensor_meta.h)    one scale               the same codes, or E5M2's own
//   tensor    one, current_scale() of the tensor's own amax      one scale               the same codes
//   blocks    current_scale() of each block's own amax           block_rows x block_cols block_cols x block_rows
//   mx        e8m0_from_amax() of each block's own amax          1 x 32                  32 x 1
//
// Blocks that are square serve both ways with the same codes.

/// The operands of a linear product: x, w, and the gradient of the result.
enum class Role : std::uint8_t { input, weight, grad };

enum class ScalingRule : std::uint8_t { history, tensor, blocks, mx };

struct OperandScaling {
  ScalingRule rule = ScalingRule::tensor;
  std::int64_t block_rows = 0, block_cols = 0;  ///< blocks, mx: elements that share a scale along columns
  bool power_of_two = false;                    ///< scales rounded down to powers of two; those of mx always are
  float amax_epsilon = 0.0f;                    ///< tensor, blocks: lower bound of amax

  bool one_scale() const { return rule == ScalingRule::history || rule == ScalingRule::tensor; }
};

struct RecipeScaling {
  RecipeFormat fp8_format = RecipeFormat::HYBRID;
  OperandScaling input = {}, weight = {}, grad = {};
  bool stochastic_gradients = false;  ///< rounded so, unless the environment says otherwise; with one scale only
  bool exact_weight_grad = false;     ///< the weight's gradient is the product of the unquantized operands
  bool bf16_bias = false;             ///< the bias of f32 products is rounded to bf16 first
  int row_alignment = 16;             ///< rows of an input are padded to a multiple of it (te::Fp8Padding)

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
