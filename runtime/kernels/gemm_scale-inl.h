// SPDX-License-Identifier: Apache-2.0
// GemmKernels::add_scaled in plain loops, included by each level's unit and compiled with its flags; in an anonymous
// namespace, so that no copy is shared.
#pragma once
#include "fp8/runtime/kernels/gemm_kernels.h"

namespace fp8::kernels {
namespace {

void add_scaled(const ScaleArgs& args) {
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const float a = args.a_scale != nullptr ? args.a_scale[r * args.a_scale_stride] : 1.0f;
    const float* __restrict acc = args.acc + r * args.width;
    const float* __restrict scale = args.lane_scale;
    float* __restrict total = args.total + r * args.width;
    if (args.first) {
      for (std::int64_t i = 0; i < args.width; ++i) total[i] = acc[i] * (a * scale[i]);
    } else {
      for (std::int64_t i = 0; i < args.width; ++i) total[i] += acc[i] * (a * scale[i]);
    }
  }
}

}  // namespace
}  // namespace fp8::kernels
