// SPDX-License-Identifier: Apache-2.0
// Our own convention, used wherever no QUANT_CONFIG says otherwise. All values f32.
//
//   scale_inv = f32(amax / fp8_max)      multiplies on the way out of fp8 (the one that files store)
//   scale     = f32(1 / scale_inv)       multiplies on the way in
//
// amax 0 gives scale 1 and scale_inv 1. A scale_inv below kMinScaleInv = 2^-126 (the smallest normal f32, so amax
// below about 5e-36 for 448) is raised to it: a subnormal scale_inv has few bits and its reciprocal overflows below
// 2^-128. The tensor then uses less than the whole range of the format, and never saturates.
#pragma once
#include <Eigen/Core>
#include <string_view>

#include "fp8/recipes/format.h"

namespace fp8::recipes {

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

}  // namespace fp8::recipes
