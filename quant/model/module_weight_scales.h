// SPDX-License-Identifier: Apache-2.0
// The scales of weights in memory, as their plan wants them: of one tensor, of rows, blocks, or each expert.
#pragma once
#include <cstdint>
#include <vector>

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// The weight as a matrix of output channels: [C_out, rest] of a convolution, else [.., K] with one channel per row
/// (stacked experts [E, N, K] have E * N). parts: how many equal groups of rows have a tensor scale of their own (each
/// expert; else all is one).
struct Channels {
  std::int64_t rows, cols, parts;
};
Channels channels_of(const measure::WeightModule& module);

/// The scales that convert() gives every planned weight, in the plan's order. Throws for NaN, Inf, and weights that are
/// not the measured ones.
std::vector<WeightScales> planned_weight_scales(const Plan& plan, const std::vector<measure::WeightModule>& modules);

}  // namespace fp8::quant
