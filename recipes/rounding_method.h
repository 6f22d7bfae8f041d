// SPDX-License-Identifier: Apache-2.0
// Ways to choose a weight's codes under fixed scales, known by name: `--rounding NAME` of the command, {"rounding":
// {"method": NAME}} of a QUANT_CONFIG.
//
//   nearest   each value by itself; needs no data
//   gptq      kernels::round_compensated(): what the weight computes from its inputs keeps its value
//
// What calls them makes the inputs' matrix, its factor and the order of columns, and judges the codes on tokens that
// the matrix has not seen (quant/model/layer_rounding.h): a method chooses codes, and no module gets worse by it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fp8/runtime/io/base/registry.h"
#include "fp8/runtime/kernels/rounding.h"

namespace fp8::recipes {

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
