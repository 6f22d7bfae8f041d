// SPDX-License-Identifier: Apache-2.0
// Casts by recipe. What they give is multiplied by runtime/fp8_tensor/product.h.
//
//   recipe    along columns            along rows
//   delayed   one scale                the same codes; habana HYBRID: E5M2 codes of their own for x and w
//   current   one scale                the same codes
//   block     1x128 (w: 128x128)       128x1 (w: the same codes)
//   mxfp8     1x32, E8M0               32x1, E8M0
//
// With one scale the cast writes its codes twice: row by row, and column by column as the products along the rows read
// them. The former can go when the product at hand is done.
//
// recipes/scaling.h says which of these a recipe does; no recipe is asked for by name here.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <memory>
#include <optional>

#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

using recipes::Role;

/// One operand of a product in one pass: of it and its recipe the CastSpecs of its two ways are made.
struct CastPlan {
  const recipes::Recipe& recipe;
  recipes::Dialect dialect;
  Role role;
  bool need_rows = true;      ///< a later product sums along the rows; false: `rows` are the columns
  bool need_columns = true;   ///< one does along the columns; false: one scale may leave `columns` the rows
  bool both_stay = false;     ///< codes that serve both ways are to lie in memory once
  Fp8State* state = nullptr;  ///< gets amaxes and statistics
  const StepScales* scales = nullptr;
  int index = 0;                                 ///< of the tensor in its pass
  std::optional<std::uint64_t> stochastic = {};  ///< seed; none: round to nearest even
  bool statistics = false;
  at::Tensor input = {};  ///< of several products (q, k, v): cast once where their scale is one
};

/// The part of a product's call that its backward pass needs too; tensors lie in save_for_backward.
struct ProductCall : torch::CustomClassHolder {
  std::shared_ptr<Fp8State> state;
  std::shared_ptr<Fp8Region> region;
  recipes::Recipe recipe;
  recipes::Dialect dialect = recipes::Dialect::gaudi3;
  at::ScalarType activation = at::kFloat;
  bool needs_grad = false;
  StepScales scales;

  CastPlan plan(Role role, int index, const StepScales& of) const;
};

/// x: [rows, cols] in f32, bf16 or f16, contiguous. plan.input: x is what this tensor became.
OperandPair quantize_operand(const at::Tensor& x, const CastPlan& plan);

/// The seed, where this recipe's gradients are rounded stochastically: in the Gaudi dialect's HYBRID, unless
/// PT_TE_FORCE_SR_BWD says otherwise. One seed per product (name, and number among those of one name), step and
/// rank, the same in every process of that rank and on any number of threads.
std::optional<std::uint64_t> gradient_seed(const recipes::Recipe& recipe, const Fp8Region& region,
                                           const std::string& product, const StepScales& scales);

/// current_scale() of a tensor of this dtype.
float current_scale_of(float amax, recipes::Format format, recipes::Dialect dialect, const recipes::OperandScaling& how,
                       at::ScalarType dtype);

}  // namespace fp8::te
