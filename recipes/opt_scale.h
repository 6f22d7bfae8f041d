// SPDX-License-Identifier: Apache-2.0
// Scales of weights found by search, INC's *_opt_* methods: the candidate whose quantized weight is nearest to the
// weight.
//
//   q(w, s)  =  decode(cast(w / s)) * s          every operation in hp, as in inc_scale.h
//
//   PTS   candidates s       MAXABS_HW_OPT_WEIGHT: the hardware's set; else 2^-10 .. 2^9; or the method's own list
//         error(s)         = sqrt(sum (w - q(w, s))^2)                    rounded to hp
//         best               the least error; of equal ones the LAST candidate
//
//   PCS   reference          the channel's MAXABS scale_inv (method's rounding and backoff)
//         candidates s     = reference * 2^-3 .. reference * 2^4          or reference times the method's own list
//         error(s)         = sum (w - q(w, s))^2, squares rounded to hp   rounded to hp, per output channel
//         best               the least error; of equal ones the FIRST candidate
//
//   scale_inv = rounding(best)
//
// Sums are taken in f64, so the result depends neither on threads nor on an order. Rounding errors to hp makes ties
// common in bf16; which of them wins is part of the method. Where a candidate's error is infinite or NaN for all of
// them, the reference itself (PTS: the last candidate) stands. A scale_inv without a finite reciprocal is raised as in
// inc_scale.h. All values of a weight of zeros have error 0, so its scale_inv is the last (PTS) or first (PCS) one.
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fp8/recipes/inc_scale.h"

namespace fp8::recipes {

/// What the search tries: the method's own list, or its row's default as above. PCS: multipliers of the reference.
std::vector<float> opt_candidates(const ScaleMethod& method, const IncTarget& target);

/// w: [rows, cols] dense, rows = output channels; values are rounded to target.hp first (INC's weights are of that
/// type). Returns [1] for PTS, [rows] for PCS. Runs on all threads of the pool. Throws std::invalid_argument naming
/// `name` for a method that is not OPT, for NaN or infinite weights, for candidates that are not finite and > 0, and as
/// inc_scale_inv() does.
Eigen::ArrayXf opt_scale_inv(const float* w, std::int64_t rows, std::int64_t cols, const ScaleMethod& method,
                             const IncTarget& target, std::string_view name);

}  // namespace fp8::recipes
