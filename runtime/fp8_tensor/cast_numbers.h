// SPDX-License-Identifier: Apache-2.0
// What a profiler may ask of a cast: the largest magnitude that it met, and how much of it the format could not hold.
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

/// One of a cast's results. codes: E4M3 or E5M2, dense in any order.
struct CastResult {
  const at::Tensor& codes;
  kernels::Dialect dialect;
};

/// Notes "amax" of x, and of each result "saturated", the share in [0, 1] of its codes that are the format's largest
/// ("saturated_2" of the second), where somebody wants numbers: one more pass over each. Where scales come from the
/// amax at least one code is. x: Float, BFloat16 or Half; at most two results.
void note_cast(LeafScope& leaf, const at::Tensor& x, std::initializer_list<CastResult> results);

}  // namespace fp8::runtime
