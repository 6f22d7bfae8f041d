// SPDX-License-Identifier: Apache-2.0
// The state of delayed scaling for n tensors, as a value: scales and the amaxes of the last H measured steps, for any
// owner. One step, in the order that callers must keep:
//
//   habana   on entering a forward (a backward), if the one before it measured:
//              [1. the amaxes of that step, row amax_history_index, are reduced over ranks]
//              2. update_scales()  if updates_scale(recipe, run_cnt)
//              3. finish_step()
//            then, if measures_amax(recipe, run_cnt): record_amax() for each tensor that is cast
//   nvidia   record_amax() for each tensor that is cast; when the region ends (forward) or with the first module's
//            backward:  [1. reduction of row 0]  2. update_scales()  3. finish_step()
//
// The history, newest amaxes N, older ones a (of the step before) and b (before that), H = 3:
//
//                    while recorded      after finish_step
//   habana  row 0        a                    a
//     (ring, index 1)  > N                    N             the new row begins as a copy of the newest: a tensor that
//           row 2        b                  > N             is not cast in a step (a cached weight) keeps its amax
//
//   nvidia  row 0        N                    0             rolled by -1, row 0 zeroed: the newest is in the last row
//           row 1        b                    a             (N = 0, a tensor that was not cast or is all zeros: neither
//           row 2        a                    N             its history nor its scale changes)
#pragma once

#include "fp8/recipes/scaling.h"

namespace fp8::recipes {

struct TensorMeta {
  Eigen::ArrayXf scale;        ///< [n], high precision -> fp8, ones at first
  Eigen::ArrayXf scale_inv;    ///< [n], 1 / scale
  AmaxRows amax_history;       ///< [H, n], zeros at first; NaN and infinity are kept as they were measured
  int amax_history_index = 0;  ///< habana: the row of the step that runs; nvidia: always 0
  /// [n], 1 where this step has recorded. Need not be stored between steps: finish_step() clears it.
  Eigen::Array<bool, Eigen::Dynamic, 1> recorded;

  /// n tensors, 0 or more; history 1 to 65536, n * history at most 2^28. Throws std::invalid_argument.
  explicit TensorMeta(int n = 0, int history = 1);

  int tensors() const { return static_cast<int>(scale.size()); }
  int history() const { return static_cast<int>(amax_history.rows()); }
};

/// For state from a file: sizes that agree, an index within the history, scales and their inverses finite and above 0,
/// amaxes not below 0. Throws std::invalid_argument naming the field.
void validate(const TensorMeta& meta);

/// Puts the amax (of the unscaled tensor) of one cast into this step's row; the larger one stays when a tensor is cast
/// several times in a step, and NaN counts as the largest. Throws std::invalid_argument if there is no such tensor or
/// amax is negative.
void record_amax(TensorMeta& meta, const DelayedScaling& recipe, int tensor, float amax);

/// Ends a measured step; see the picture above.
void finish_step(TensorMeta& meta, const DelayedScaling& recipe);

/// The amax of one tensor (of all) by amax_compute_algo: the largest of the history, the most recent one
/// (row 0 with stale_row_compat; nvidia: row 0, so 0 between finish_step() and the next record_amax()), or
/// what the callable says. NaN anywhere makes the maximum NaN. Throws std::invalid_argument if there is no such tensor,
/// or if the callable's result is not [n].
float current_amax(const TensorMeta& meta, const DelayedScaling& recipe, int tensor);
Eigen::ArrayXf current_amax(const TensorMeta& meta, const DelayedScaling& recipe);

/// scale and scale_inv of every tensor from current_amax(), by scaling_factor_compute_algo if set, else next_scale().
/// nvidia: of those whose row 0 is not 0, the others have said nothing in this step.
/// fp8_max: the largest value of the format these tensors are cast to. Throws as current_amax() and next_scale() do.
void update_scales(TensorMeta& meta, const DelayedScaling& recipe, float fp8_max);

/// Another length of the history, 1 to 65536. Shorter: the newest rows stay (habana: the newest becomes the last row
/// and the index points at it; nvidia: row 0 and the last ones). Longer: rows of zeros come after the index (nvidia:
/// after row 0), where the oldest belong.
void resize_history(TensorMeta& meta, const DelayedScaling& recipe, int history);

}  // namespace fp8::recipes
