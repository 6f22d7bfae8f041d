// SPDX-License-Identifier: Apache-2.0
// Scales as Intel Neural Compressor (INC) computes them, bit for bit. What INC's files call "scale" is our scale_inv.
//
//   raw       = amax / (fp8_max * backoff)      PCS: raised to 2^-126, the smallest normal bf16
//   scale_inv = rounding(raw)                   x ~ code * scale_inv
//   scale     = 1 / scale_inv                   code = cast(x * scale)
//
//   IDENTITY           raw
//   POW2               2^ceil(log2 raw)
//   HW_ALIGNED         p = POW2(raw), then 2^(f * ceil(log2(p) / f)) kept within the hardware's set
//   HW_ALIGNED_FIXED   the first of the set
//   SCALE_UNIT         1
//
//   hardware's set     gaudi2 {2^4, 1, 2^-4, 2^-8}, f = 4      gaudi3 and ocp 2^7, 2^6, ... 2^-55, f = 1
//                      (that of E4M3 for both formats, as in INC)
//
// hp: every line above is computed in the high precision type: its operation in f32, the result rounded to hp. In
// particular log2 is rounded to hp before ceil, so that bf16 finds 2^10 for raw = 1032 (log2 = 10.011 becomes 10). We
// take log2 in f64, round to f32 and then to hp, and make the power of two by exponent, which gives torch's result
// for every bf16 and f16 (checked exhaustively) and for f32 around every power of two.
//
// Two deliberate differences, where INC's result can't be used:
//   - raw 0 without a hardware set to clamp it to (amax 0, or one that underflows): INC makes 0, and NaN from it; here
//     scale_inv is 1.
//   - a scale_inv so small that 1 / scale_inv overflows hp (2^-128 and below; f16: 2^-16) is raised to the next value
//     that the rounding allows: 2^-127 (f16: 2^-15), with IDENTITY the next number of hp.
#pragma once

#include "fp8/recipes/scale_method.h"
#include "fp8/recipes/scaling.h"

namespace fp8::recipes {

/// The settings besides the method that decide a scale.
struct IncTarget {
  Dialect dialect = Dialect::gaudi3;
  Format format = Format::E4M3;
  /// hp_dtype. INC computes the per-channel amax of a weight, and what follows, in the weight's own type: pass that.
  FloatType hp = FloatType::BF16;
};

/// `x` rounded to `hp` (nearest, ties to even; beyond the largest finite value: infinite).
float round_to(float x, FloatType hp);

/// The scales that the hardware applies at no cost, largest first: Shape [4] or [63].
std::vector<float> hw_scale_set(Dialect dialect);

/// The rounding line above. raw >= 0 and representable in target.hp.
float round_scale(float raw, Rounding rounding, const IncTarget& target);

/// The two deliberate differences above: what scale_inv (>= 0 or NaN) becomes so that it and its reciprocal can be
/// used.
float usable_scale_inv(float scale_inv, Rounding rounding, FloatType hp);

/// amax (in the tensor's units, not yet rounded) -> scale_inv. FIXED_VALUE and DUMMY_SCALES do not look at amax.
/// Throws std::invalid_argument naming `name` for amax NaN, infinite or negative, or too large for hp; for a backoff
/// outside (0, 1]; for a CUSTOM function whose result can't be used; and for OPT, which needs the weight itself.
float inc_scale_inv(float amax, const ScaleMethod& method, const IncTarget& target, std::string_view name);

/// Elementwise, for PCS. amax: Shape [channels]; result: Shape [channels].
Eigen::ArrayXf inc_scale_inv(const Eigen::ArrayXf& amax, const ScaleMethod& method, const IncTarget& target,
                             std::string_view name);

/// Dynamic activations: scales made at each call from the values of that call, one per tensor (PTS, n = 1) or per token
/// (PCS, n tokens; the second operand of a matmul: per column). As above with backoff 0.5 whatever the method says, as
/// INC does it, and nothing thrown for the values: amax NaN gives NaN, infinite gives infinite, both of which become
/// NaN codes. amax, out: [n], may be the same. MAXABS, FIXED_VALUE, DUMMY_SCALES and CUSTOM; throws
/// std::invalid_argument for OPT. Thread-safe; the caller splits large n.
void inc_dynamic_scale_inv(const float* amax, std::int64_t n, const ScaleMethod& method, const IncTarget& target,
                           float* out);

/// The multiplier into fp8: 1 / scale_inv, rounded to hp. scale_inv: from inc_scale_inv (> 0).
float inc_scale(float scale_inv, FloatType hp);

/// Elementwise. Shape [n] -> [n].
Eigen::ArrayXf inc_scale(const Eigen::ArrayXf& scale_inv, FloatType hp);

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

/// The candidates of the search: the method's own list, or its row's default as above. PCS: multipliers of the
/// reference.
std::vector<float> opt_candidates(const ScaleMethod& method, const IncTarget& target);

/// w: [rows, cols] dense, rows = output channels; values are rounded to target.hp first (INC's weights are of that
/// type). Returns [1] for PTS, [rows] for PCS. Runs on all threads of the pool. Throws std::invalid_argument naming
/// `name` for a method that is not OPT, for NaN or infinite weights, for candidates that are not finite and > 0, and as
/// inc_scale_inv() does.
Eigen::ArrayXf opt_scale_inv(const float* w, std::int64_t rows, std::int64_t cols, const ScaleMethod& method,
                             const IncTarget& target, std::string_view name);

}  // namespace fp8::recipes
