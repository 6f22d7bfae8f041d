// SPDX-License-Identifier: Apache-2.0
// Scales as casts take them and leave them: what cast.cpp and cast_beside.cpp have in common.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fp8/runtime/fp8_tensor/cast.h"

namespace fp8::runtime {

/// The one given scale as an x of `dtype` is multiplied with it.
float multiplier(const CastSpec& spec, at::ScalarType dtype);

/// Room for one scale per row of x: [..., 1], f32.
at::Tensor grid_of_rows(const at::Tensor& x);

/// What is not finite makes NaN of all that it scales.
void spoil(float* scale_inv, std::int64_t n);

}  // namespace fp8::runtime
