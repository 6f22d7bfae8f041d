// SPDX-License-Identifier: Apache-2.0
// Delayed scaling as a value: the scale of this step comes from the largest magnitudes of earlier steps. State
// (histories, scales) is a TensorMeta (tensor_meta.h); here stand the settings and the formulas. Two dialects share the
// name and differ in every default, in the formula and in the timing:
//
//                       fp8_format  amax_history_len  amax_compute_algo  scale                                 history
//   habana()            E5M2        1                 most_recent        2^(floor(log2(fp8_max / amax)) - m)   ring
//   nvidia()            HYBRID      1024              max                (fp8_max / amax) / 2^m                rolled
//
// m is the margin: one more of it halves the scale. An amax that says nothing (0, NaN, infinite) keeps the old scale.
//
// Steps of the habana dialect, r = 1, 2, ... counting forwards, i the interval, H the history's length:
//
//   amax is measured in step r            if i == 1  or  (r + i - 2) mod i >= i - H      (the H steps before an update)
//   the scale is updated on entering r    if i == 1  or  (r + i - 2) mod i == 0          (r = 2, 2 + i, 2 + 2i, ...)
//
// so i = 16, H = 1 measures steps 1, 17, 33 and uses what they gave from steps 2, 18, 34 on. The nvidia dialect has no
// interval: it measures in every step and updates when the step ends.
#pragma once
#include <Eigen/Core>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "fp8/recipes/scaling.h"

namespace fp8::recipes {

/// Whose timing, history and backward operands: habana quantizes input and weight once more to E5M2 for the backward
/// products of HYBRID; nvidia multiplies the forward's E4M3 codes with E5M2 gradients.
enum class RecipeDialect : std::uint8_t { habana, nvidia };
constexpr auto names_of(RecipeDialect) { return names_up_to<RecipeDialect::nvidia>("habana", "nvidia"); }

/// A history of n tensors, Shape [H, n].
using AmaxRows = Eigen::ArrayXXf;

/// Which entry of the history stands for the tensor, by name.
enum class AmaxComputeAlgo : std::uint8_t { most_recent, max };
constexpr auto names_of(AmaxComputeAlgo) { return names_up_to<AmaxComputeAlgo::max>("most_recent", "max"); }

/// AmaxComputeAlgo, or one's own choice: a callable [H, n], the newest row first -> [n].
class AmaxChoice {
 public:
  using Callable = std::function<Eigen::ArrayXf(const AmaxRows& history)>;

  AmaxChoice(AmaxComputeAlgo algo) : choice_(algo) {}
  template <class F, std::enable_if_t<std::is_invocable_r_v<Eigen::ArrayXf, F&, const AmaxRows&>, int> = 0>
  AmaxChoice(F callable) : choice_(Callable(std::move(callable))) {}

  /// nullptr where a name was given.
  const Callable* callable() const { return std::get_if<Callable>(&choice_); }
  /// Callables can't be compared: they equal nothing.
  bool operator==(AmaxComputeAlgo algo) const { return callable() == nullptr && std::get<0>(choice_) == algo; }
  bool operator==(const AmaxChoice& other) const {
    return other.callable() == nullptr && *this == std::get<0>(other.choice_);
  }

 private:
  std::variant<AmaxComputeAlgo, Callable> choice_;
};

constexpr int kMaxHistory = 65536;
constexpr int kMaxMargin = 64;
constexpr int kMaxInterval = 1 << 20;

struct DelayedScaling {
  int margin = 0;    ///< powers of two kept free
  int interval = 1;  ///< steps from one new scale to the next
  RecipeFormat fp8_format = RecipeFormat::E5M2;
  int amax_history_len = 1;                                     ///< measured steps remembered
  AmaxChoice amax_compute_algo = AmaxComputeAlgo::most_recent;  ///< or max, or a callable
  /// One's own scale, in place of next_scale(): amax [n], the scale so far [n] -> [n]. Where the result is not a finite
  /// number above 0 with a finite reciprocal, the old scale stays.
  std::function<Eigen::ArrayXf(const Eigen::ArrayXf& amax, const Eigen::ArrayXf& scale, float fp8_max,
                               const DelayedScaling& recipe)>
      scaling_factor_compute_algo = {};
  /// Products kept in high precision: forward, gradient of the input, gradient of the weight.
  std::array<bool, 3> override_linear_precision = {false, false, false};
  bool reduce_amax = true;         ///< maximum over all ranks
  bool power_of_two_scale = true;  ///< scale rounded down to a power of two
  RecipeDialect dialect = RecipeDialect::habana;
  /// most_recent as the vendor has it: row 0 of the ring, which is the newest only for a history of 1.
  bool stale_row_compat = false;

  /// The Gaudi dialect's defaults, the same as DelayedScaling{}.
  static DelayedScaling habana() { return {}; }

  /// The defaults of NVIDIA's Transformer Engine.
  static DelayedScaling nvidia() {
    return {.fp8_format = RecipeFormat::HYBRID,
            .amax_history_len = 1024,
            .amax_compute_algo = AmaxComputeAlgo::max,
            .power_of_two_scale = false,
            .dialect = RecipeDialect::nvidia};
  }

  /// Callables can't be compared: recipes that have one equal nothing.
  bool operator==(const DelayedScaling& other) const;
};

/// "most_recent", "max", "a callable".
inline const char* name_of(const AmaxChoice& choice) {
  if (choice.callable() != nullptr) return "a callable";
  return name_of(choice == AmaxComputeAlgo::max ? AmaxComputeAlgo::max : AmaxComputeAlgo::most_recent);
}

/// The first field that is out of its range, if any:
///   margin -64..64; interval 1..2^20, nvidia: 1; amax_history_len 1..65536
///   fp8_format habana: E5M2, HYBRID; nvidia: E4M3, HYBRID
///   amax_compute_algo a name or a callable that is not empty
///   override_linear_precision habana: all false; nvidia: all false, or the weight's gradient alone
///   stale_row_compat nvidia: false
std::optional<FieldProblem> find_problem(const DelayedScaling& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const DelayedScaling& recipe);

RecipeScaling scaling_of(const DelayedScaling& recipe);

/// True if forward `run_cnt` (from 1) records amaxes, its backward included. nvidia: always.
bool measures_amax(const DelayedScaling& recipe, std::int64_t run_cnt);

/// habana: true if new scales are due on entering forward `run_cnt`. nvidia (whose update is at the end of each step):
/// always.
bool updates_scale(const DelayedScaling& recipe, std::int64_t run_cnt);

/// The scale that `amax` calls for; old_scale if amax is 0, negative, NaN or infinite. With power_of_two_scale exactly
/// 2^(floor(log2(fp8_max / amax)) - margin), from the bits, kept within 2^-126 .. 2^126. Otherwise
/// f32(f32(fp8_max / amax) / 2^margin), FLT_MAX where that is infinite (its reciprocal, about 2^-128, is subnormal but
/// not 0) and not below 2^-126. So the result and its reciprocal are always finite and above 0, if old_scale's are.
/// Throws std::invalid_argument if fp8_max is not a finite number above 0. Does not look at the callables.
float next_scale(float amax, float old_scale, float fp8_max, const DelayedScaling& recipe);

// Current scaling: the scale comes from the amax of the very tensor that is cast, so there is no state and no lag, for
// one more pass over the tensor.
//
//   a = max(amax, amax_epsilon)      scale = f32(fp8_max / a)      scale_inv = f32(1 / scale)
//
//   a = 0, infinite or NaN           1 (a tensor of zeros stays zeros; infinities saturate, NaN stays NaN)
//   fp8_max / a above FLT_MAX        dtype_max, the largest number of the tensor's own type
//   power_of_two_scale               rounded down to a power of two (the bits of the significand cleared)
//
// The kernels' casts of blocks (runtime/kernels/cast.h) have the same rule.

struct CurrentScaling {
  RecipeFormat fp8_format = RecipeFormat::HYBRID;
  bool power_of_two_scale = false;
  float amax_epsilon = 0.0f;  ///< lower bound of amax, finite and >= 0

  bool operator==(const CurrentScaling&) const = default;
};

/// fp8_format: E4M3, HYBRID; amax_epsilon: finite, 0 or more.
std::optional<FieldProblem> find_problem(const CurrentScaling& recipe);

/// Throws std::invalid_argument naming field, found and allowed values.
void validate(const CurrentScaling& recipe);

RecipeScaling scaling_of(const CurrentScaling& recipe);

/// The scale of a tensor with largest magnitude `amax` (NaN and infinity by the rules above, a negative one as 0).
/// dtype_max: largest finite number of the tensor's type (65504 for f16). The result and its reciprocal are finite and
/// above 0 (not below 2^-126). Throws std::invalid_argument if fp8_max or dtype_max is not a finite number above 0.
float current_scale(float amax, float fp8_max, const CurrentScaling& recipe,
                    float dtype_max = std::numeric_limits<float>::max());

}  // namespace fp8::recipes
