// SPDX-License-Identifier: Apache-2.0
// The table of observers: those that come with the library, then those registered. Whoever lists observers, or asks
// what one can do, asks it. No torch here: what makes those of the library stands in registry.cpp, in a table of its
// own.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/quant_config.h"

namespace fp8::measure {

class Observer;
struct ObserverContext;

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
  /// Makes one. Throws std::invalid_argument for parameters it can't use. Empty in the library's rows: find_observer()
  /// (registry.h) returns them with it.
  std::function<std::unique_ptr<Observer>(const ObserverContext&)> make = {};
};

/// The table as it is now.
std::vector<ObserverType> observer_types();

/// The names of all rows, or of those that `wanted` takes.
std::vector<std::string> observer_names(const std::function<bool(const ObserverType&)>& wanted = {});

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
