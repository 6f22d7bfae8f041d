// SPDX-License-Identifier: Apache-2.0
// Intel Neural Compressor's 13 scale_method spellings, taken apart into what they mean:
//
//   granularity x value x rounding x backoff,  once for the weight and once for the activation
//
// "act_maxabs_hw_weights_pcs_maxabs_pow2" is {weight: PCS MAXABS POW2 0.5, activation: PTS MAXABS HW_ALIGNED 0.25}.
// The spelling is for files and messages; arithmetic (inc_scale.h) sees the product only.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::recipes {

/// PTS: one scale per tensor. PCS: one per output channel of a weight (per token of an activation).
enum class Granularity : std::uint8_t { PTS, PCS };

/// Where the unrounded scale comes from: the largest magnitude, a constant, a search for the least error, or always
/// 1.
enum class ScaleValue : std::uint8_t { MAXABS, FIXED_VALUE, OPT, DUMMY_SCALES };

/// What is done to it then: nothing, next power of two, next value that the hardware applies for free, the first of
/// those values, or 1.
enum class Rounding : std::uint8_t { IDENTITY, POW2, HW_ALIGNED, HW_ALIGNED_FIXED, SCALE_UNIT };

const char* name_of(Granularity granularity);
const char* name_of(ScaleValue value);
const char* name_of(Rounding rounding);

/// How one tensor's scale is made. backoff: the share of the format's range that amax is mapped to (0 < backoff <=
/// 1).
struct ScaleMethod {
  Granularity granularity = Granularity::PTS;
  ScaleValue value = ScaleValue::MAXABS;
  Rounding rounding = Rounding::IDENTITY;
  float backoff = 1.0f;
  bool operator==(const ScaleMethod&) const = default;
};

/// One row of the table: a spelling and its product.
struct NamedScaleMethod {
  std::string name;  ///< upper case, as in file names: "MAXABS_HW"
  ScaleMethod weight, activation;
  bool dynamic_only = false;  ///< meant for scales computed at each call only
  bool built = true;          ///< false: known, and refused by require_built()

  /// True if a scale depends on measured activations (unit_scale and hw_aligned_single_scale don't).
  bool needs_measurements() const { return activation.value != ScaleValue::FIXED_VALUE; }
};

/// All 13.
const std::vector<NamedScaleMethod>& scale_methods();

/// Finds a spelling, in any case; nullptr if there is none.
const NamedScaleMethod* find_scale_method(std::string_view name);

/// Finds a spelling, in any case. Throws std::invalid_argument listing the 13.
const NamedScaleMethod& scale_method_from_name(std::string_view name);

/// Throws std::invalid_argument "scale method 'X' is not built yet, ..." naming those that are.
void require_built(const NamedScaleMethod& method);

/// "UNIT_SCALE, MAXABS_HW, ..." in lower case as users write them; built_only leaves out the others.
std::string list_of_scale_methods(bool built_only);

}  // namespace fp8::recipes
