// SPDX-License-Identifier: Apache-2.0
// What a profiler may ask of a cast: the largest magnitude that it met, and how much of it the format could not hold.
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

/// Notes "amax" of x and "saturated", the share in [0, 1] of its codes that are the format's largest, where somebody
/// wants numbers: one more pass over each. Where scales come from the amax at least one code is. Of a cast to two
/// formats: of the first, or the narrow one. x: Float, BFloat16 or Half; codes: contiguous.
void note_cast(LeafScope& leaf, const at::Tensor& x, const at::Tensor& codes, kernels::Dialect dialect);

}  // namespace fp8::runtime
