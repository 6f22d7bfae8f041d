// SPDX-License-Identifier: Apache-2.0
// The scale of least error: of 25 candidates around that of the amax, a sixteenth of an octave apart, the one whose
// codes are nearest to the values. Below it values saturate, above it the grid lies otherwise under them; from an
// octave on it repeats itself.
//
//   scale_inv_i = f32(scale_inv * 2^(j / 16))           j = i - 8 = -8 .. 16, scale_i = f32(1 / scale_inv_i)
//   error_i     = sum over the values of (w - RNE(clamp(f32(w * scale_i))) * scale_inv_i)^2
#pragma once
#include "fp8/runtime/kernels/cast.h"

namespace fp8::kernels {

inline constexpr int kScaleCandidates = 25, kFirstScaleStep = -8;

/// scale_inv_i, 0 <= i < kScaleCandidates; -kFirstScaleStep is scale_inv itself.
float scale_candidate(float scale_inv, int i);

/// errors[unit][i] of each row, or with layout.blocks() of each block in the order of their grid, whose values are
/// finite. scale_inv: one (layout.per_tensor()), one for each row (per_row()) or block. Reads x, its type and sizes,
/// format and max of args. Sums are made in f32, 16 lanes of at most 64 values, and those in double: the result depends
/// neither on threads nor on the SIMD level. A candidate below 2^-126 has the error infinity. Throws as cast_blocks.
void scale_errors(const CastArgs& args, const float* scale_inv, double* errors);

/// The first of the least of kScaleCandidates errors; that of the amax where all are 0.
int least_error(const double* errors);

}  // namespace fp8::kernels
