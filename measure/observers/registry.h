// SPDX-License-Identifier: Apache-2.0
// The table of observers: those that come with the library (registry.cpp has the rows), then those registered. Whoever
// lists observers, or asks what one can do, asks it.
//
// One of your own, in force while the registration lives:
//
//   struct FirstCall final : fp8::measure::Observer {
//     std::optional<float> amax;
//     void observe(const fp8::measure::Observed& x) override { if (!amax) amax = x.amax(); }
//     fp8::measure::Amax result() const override { return {amax.value_or(0.0f)}; }
//   };
//   const fp8::measure::ObserverRegistration mine({.name = "first_call", .make = [](const auto&) {
//     return std::make_unique<FirstCall>();
//   }});
//   options.observer = "first_call";   // or "observer": "first_call" in a QUANT_CONFIG
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/observers/observer.h"

namespace fp8::measure {

/// What result() is to those who make scales.
enum class Kept : std::uint8_t {
  amax,       ///< the largest magnitude, of the tensor or of each channel
  threshold,  ///< another value that scales can be made of, as a rule below which most magnitudes lie
  sizes,      ///< of the tensor: no ground for scales
  tensors     ///< for a look at them: no ground for scales
};

/// A row of the table: a kind of observer.
struct ObserverType {
  std::string name;       ///< [a-z0-9_]+: it stands in names of files
  std::string help = {};  ///< what it keeps, in a few words
  Kept kept = Kept::threshold;
  /// What it reads of scale_params; none: anything.
  std::optional<std::vector<configs::ObserverParameter>> parameters = {};
  bool reads_values = true;  ///< false: only sizes; NaN and Inf are not looked for
  bool keeps_heads = false;  ///< one value for each head where there are heads (ObserverContext::head_dim)
  bool keeps_state = false;  ///< state() goes into a file beside the measurement, for merging
  bool takes_parts = false;  ///< observe_part() works
  /// Makes one. Throws std::invalid_argument for parameters it can't use.
  std::function<std::unique_ptr<Observer>(const ObserverContext&)> make = {};
};

/// The table as it is now.
std::vector<ObserverType> observer_types();

/// The names of all rows, or of those that `wanted` takes.
std::vector<std::string> observer_names(const std::function<bool(const ObserverType&)>& wanted = {});

/// Throws std::invalid_argument naming those in force if there is none of that name.
ObserverType find_observer(const std::string& name);

/// Adds a row to the table while it lives; any thread. Throws std::invalid_argument for a name that can't stand or is
/// taken, and for a row without `make`.
class ObserverRegistration {
 public:
  explicit ObserverRegistration(ObserverType type);
  ~ObserverRegistration();
  ObserverRegistration(const ObserverRegistration&) = delete;
  ObserverRegistration& operator=(const ObserverRegistration&) = delete;

 private:
  std::string name_;
};

}  // namespace fp8::measure
