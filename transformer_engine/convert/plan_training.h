// SPDX-License-Identifier: Apache-2.0
// What training one weight in fp8 will cost and lose, before it is converted.
//
//   flops          2 N K of the forward product, 4 N K of the two backward ones, per row of the input
//   operand        bytes that the products read and backward keeps: codes and scales, along columns and rows where
//                  these differ
//   error          sqrt(e_w^2 + e_x^2), relative RMS of y = x . w^T.
//                  e_w: of this weight, cast as the recipe casts it once its scale has settled.
//                  e_x: of an input that its scale fits (quant/damage/damage.h)
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/quant/model/convert.h"
#include "fp8/recipes/recipe.h"

namespace fp8::te {

/// Fills flops_per_row, operand_bytes, expected_error (none for a weight of no elements, of zeros, or with a NaN or
/// Inf). weight: [N, K] on hpu in f32, bf16 or f16.
void add_plan(const at::Tensor& weight, const recipes::Recipe& recipe, quant::ConvertedModule& line);

}  // namespace fp8::te
