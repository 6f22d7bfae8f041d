// SPDX-License-Identifier: Apache-2.0
// Intel Neural Compressor's 13 scale_method spellings, taken apart into what they mean:
//
//   granularity x value x rounding x backoff,  once for the weight and once for the activation
//
// "act_maxabs_hw_weights_pcs_maxabs_pow2" is {weight: PCS MAXABS POW2 0.5, activation: PTS MAXABS HW_ALIGNED 0.25}.
// The spelling is for files and messages; arithmetic (inc_scale.h) sees the product only.
#pragma once

#include "fp8/runtime/io/base/registry.h"
#include "fp8/runtime/kernels/rounding.h"

namespace fp8::recipes {

using fp8::name_of;

/// The values that share a scale: those of a tensor, of an output channel of a weight (a token of an activation), of a
/// rectangle of a weight, of an attention head.
enum class Granularity : std::uint8_t { tensor, channel, block, head };
constexpr auto names_of(Granularity) { return names_up_to<Granularity::head>("tensor", "channel", "block", "head"); }

/// INC's words for those that its methods have.
inline const EnumChoice<Granularity>& inc_granularities() {
  static const EnumChoice<Granularity> words = {{Granularity::tensor, "PTS"}, {Granularity::channel, "PCS"}};
  return words;
}

/// The source of the unrounded scale: the largest magnitude, a constant, a search for the least error (weights only,
/// inc_scale.h), always 1, or a function of one's own (custom_scale()).
enum class ScaleValue : std::uint8_t { MAXABS, FIXED_VALUE, OPT, DUMMY_SCALES, CUSTOM };
constexpr auto names_of(ScaleValue) {
  return names_up_to<ScaleValue::CUSTOM>("MAXABS", "FIXED_VALUE", "OPT", "DUMMY_SCALES", "CUSTOM");
}

/// The rounding of that value: nothing, next power of two, next value that the hardware applies for free, the first of
/// those values, or 1.
enum class Rounding : std::uint8_t { IDENTITY, POW2, HW_ALIGNED, HW_ALIGNED_FIXED, SCALE_UNIT };
constexpr auto names_of(Rounding) {
  return names_up_to<Rounding::SCALE_UNIT>("IDENTITY", "POW2", "HW_ALIGNED", "HW_ALIGNED_FIXED", "SCALE_UNIT");
}

struct IncTarget;  // inc_scale.h

/// amax >= 0, finite -> scale_inv. Called from any thread.
using CustomScale = std::function<float(float amax, const IncTarget& target)>;

/// How one tensor's scale is made. backoff: the share of the format's range that amax is mapped to (0 < backoff <= 1).
struct ScaleMethod {
  Granularity granularity = Granularity::tensor;
  ScaleValue value = ScaleValue::MAXABS;
  Rounding rounding = Rounding::IDENTITY;
  float backoff = 1.0f;
  std::vector<float> candidates = {};                   ///< OPT: what is tried; empty: the method's own list
  std::shared_ptr<const CustomScale> custom = nullptr;  ///< CUSTOM only
  bool operator==(const ScaleMethod&) const = default;

  /// Equal granularity, value and rounding: these make a row of the table (backoff and candidates are free).
  bool same_kind(const ScaleMethod& other) const {
    return granularity == other.granularity && value == other.value && rounding == other.rounding;
  }
};

/// A method that calls `scale`; its result is rounded to hp_dtype and has to be usable (finite, > 0, with a finite
/// reciprocal), else std::invalid_argument naming the tensor.
ScaleMethod custom_scale(CustomScale scale, Granularity granularity = Granularity::tensor);

/// One row of the table: a spelling and its product.
struct NamedScaleMethod {
  std::string name;  ///< upper case, as in file names: "MAXABS_HW"
  ScaleMethod weight, activation;
  bool dynamic_only = false;  ///< for scales computed at each call only (dynamic_quantization)

  /// True if a static scale depends on measured activations (unit_scale and hw_aligned_single_scale don't).
  bool needs_measurements() const {
    return activation.value != ScaleValue::FIXED_VALUE && activation.value != ScaleValue::DUMMY_SCALES;
  }
};

/// All 13.
const std::vector<NamedScaleMethod>& scale_methods();

/// Finds a spelling, in any case, among the 13 and those registered; nullptr if there is none. The pointer to a
/// registered one is good as long as its registration lives.
const NamedScaleMethod* find_scale_method(std::string_view name);

/// Finds a spelling, in any case. Throws std::invalid_argument listing the 13 and those registered.
const NamedScaleMethod& scale_method_from_name(std::string_view name);

/// The row of the table (or registration) whose weight and activation are of the same kind; nullptr if there is none.
const NamedScaleMethod* find_scale_method(const ScaleMethod& weight, const ScaleMethod& activation);

/// "unit_scale, maxabs_hw, ...", as users write them, with those registered.
std::string list_of_scale_methods();

struct ScaleMethodPair {
  ScaleMethod weight = {}, activation = {};
};

/// Your own scale method, known to find_scale_method() and so to every QUANT_CONFIG while this object lives:
///
///   recipes::ScaleMethodRegistration mine("MY_METHOD", {.weight = custom_scale(f), .activation = custom_scale(g)});
///
/// A plan that was made with it keeps its functions. Thread-safe.
class ScaleMethodRegistration {
 public:
  /// Throws std::invalid_argument for a name that is taken or has other characters than letters, digits and '_'.
  ScaleMethodRegistration(std::string_view name, ScaleMethodPair methods);

 private:
  io::Registry<NamedScaleMethod>::Entry entry_;
};

// Ways to choose a weight's codes under fixed scales, known by name: `--rounding NAME` of the command, {"rounding":
// {"method": NAME}} of a QUANT_CONFIG.
//
//   nearest   each value by itself; needs no data
//   gptq      kernels::round_compensated(): what the weight computes from its inputs keeps its value
//
// What calls them makes the inputs' matrix, its factor and the order of columns, and judges the codes on tokens that
// the matrix has not seen (quant/model/layer_rounding.h): a method chooses codes, and no module gets worse by it.

inline constexpr char kNearest[] = "nearest";

struct RoundingMethod {
  std::string name;
  /// Fills `rounded` and `error` of some rows of a weight, as kernels::round_compensated() does; empty: nearest. Called
  /// from one thread at a time; its result may depend on nothing but the arguments.
  std::function<void(const kernels::CompensatedRounding&)> round;
};

/// Throws std::invalid_argument listing the names that there are.
std::shared_ptr<const RoundingMethod> rounding_method(std::string_view name);

/// In the order of messages.
std::vector<std::string> rounding_method_names();

/// Your own method, known by its name while this object lives:
///
///   quant::RoundingRegistration mine({"mine", [](const kernels::CompensatedRounding& args) { ... }});
class RoundingRegistration {
 public:
  /// Throws std::invalid_argument for a name that is taken or has other characters than lower case letters, digits and
  /// '-', and for a method without a function.
  explicit RoundingRegistration(RoundingMethod method);

 private:
  io::Registry<RoundingMethod>::Entry entry_;
};

}  // namespace fp8::recipes
