// SPDX-License-Identifier: Apache-2.0
// The number formats as recipes speak of them: the kernels' names, and the pair that training uses.
//
//   E4M3     forward E4M3, backward E4M3
//   E5M2     forward E5M2, backward E5M2
//   HYBRID   forward E4M3 (activations, weights), backward E5M2 (gradients need range more than precision)
#pragma once
#include <Eigen/Core>
#include <functional>
#include <limits>
#include <utility>
#include <variant>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::recipes {

using fp8::name_of;
using kernels::Dialect, kernels::FloatType, kernels::Format, kernels::fp8_max;

/// Which format tensors get on the way forward and backward.
enum class RecipeFormat : std::uint8_t { E4M3, E5M2, HYBRID };
constexpr auto names_of(RecipeFormat) { return names_up_to<RecipeFormat::HYBRID>("E4M3", "E5M2", "HYBRID"); }

/// Format of activations and weights.
constexpr Format forward_format(RecipeFormat format) {
  return format == RecipeFormat::E5M2 ? Format::E5M2 : Format::E4M3;
}

/// Format of gradients.
constexpr Format backward_format(RecipeFormat format) {
  return format == RecipeFormat::E4M3 ? Format::E4M3 : Format::E5M2;
}

// Our own convention, used wherever no QUANT_CONFIG says otherwise. All values f32.
//
//   scale_inv = f32(amax / fp8_max)      multiplies on the way out of fp8 (the one that files store)
//   scale     = f32(1 / scale_inv)       multiplies on the way in
//
// amax 0 gives scale 1 and scale_inv 1. A scale_inv below kMinScaleInv = 2^-126 (the smallest normal f32, so amax
// below about 5e-36 for 448) is raised to it: a subnormal scale_inv has few bits and its reciprocal overflows below
// 2^-128. The tensor then uses less than the whole range of the format, and never saturates.

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

// The problem of one field of a recipe: readers of files put the file and the key before it, validate() throws it
// as "DelayedScaling: margin is 99, allowed: -64 to 64".

struct FieldProblem {
  std::string field;    ///< the member's name
  std::string found;    ///< its value
  std::string allowed;  ///< the values allowed
};

/// Throws std::invalid_argument for a problem, in one line; `type` is the struct's name.
inline void throw_problem(const char* type, const std::optional<FieldProblem>& problem) {
  if (!problem) return;
  io::fail<std::invalid_argument>("{}: {} is {}, allowed: {}", type, problem->field, problem->found, problem->allowed);
}

// The questions that products ask of a recipe: how each operand's scales are made, and what else sets recipes apart.
// Each recipe answers with scaling_of(); who runs products reads that, and does not ask which recipe it is.
//
//   rule      scales                                             along columns           along rows
//   history   one, of amaxes of earlier steps (tensor_meta.h)    one scale               the same codes, or E5M2's own
//   tensor    one, current_scale() of the tensor's own amax      one scale               the same codes
//   blocks    current_scale() of each block's own amax           block_rows x block_cols block_cols x block_rows
//   mx        e8m0_from_amax() of each block's own amax          1 x 32                  32 x 1
//
// Blocks that are square serve both ways with the same codes.

/// The operands of a linear product: x, w, and the gradient of the result.
enum class Role : std::uint8_t { input, weight, grad };

enum class ScalingRule : std::uint8_t { history, tensor, blocks, mx };

struct OperandScaling {
  ScalingRule rule = ScalingRule::tensor;
  std::int64_t block_rows = 0, block_cols = 0;  ///< blocks, mx: elements that share a scale along columns
  bool power_of_two = false;                    ///< scales rounded down to powers of two; those of mx always are
  float amax_epsilon = 0.0f;                    ///< tensor, blocks: lower bound of amax

  bool one_scale() const { return rule == ScalingRule::history || rule == ScalingRule::tensor; }
};

struct RecipeScaling {
  RecipeFormat fp8_format = RecipeFormat::HYBRID;
  OperandScaling input = {}, weight = {}, grad = {};
  bool stochastic_gradients = false;  ///< rounded so, unless the environment says otherwise; with one scale only
  bool exact_weight_grad = false;     ///< the weight's gradient is the product of the unquantized operands
  bool bf16_bias = false;             ///< the bias of f32 products is rounded to bf16 first
  int row_alignment = 16;             ///< rows of an input are padded to a multiple of it (te::Fp8Padding)

  const OperandScaling& of(Role role) const {
    return role == Role::input ? input : role == Role::weight ? weight : grad;
  }
  Format format(Role role) const {
    return role == Role::grad ? backward_format(fp8_format) : forward_format(fp8_format);
  }
  /// Each operand has one scale: what attention's products and weights that are held in fp8 only can do with.
  bool one_scale() const { return input.one_scale() && weight.one_scale() && grad.one_scale(); }
  /// Amaxes of earlier steps are kept, and can be given before the first.
  bool keeps_history() const { return input.rule == ScalingRule::history; }
};

/// The first field ("input.block_rows") that no product can do with, if any. history is DelayedScaling's alone, which
/// has the state's settings.
std::optional<FieldProblem> find_problem(const RecipeScaling& scaling);

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
