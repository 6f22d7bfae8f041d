// SPDX-License-Identifier: Apache-2.0
// The table of observers: those that come with the library, then those registered. Lists of observers and questions
// about what an observer can do are answered from it. No torch here: registry.cpp has the functions that make the
// library's observers, in a table of its own.
#pragma once

#include "fp8/configs/configs.h"
#include "fp8/measure/files/histogram.h"
#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

class Observer;
struct ObserverContext;

/// How result() serves scales.
enum class Kept : std::uint8_t {
  amax,       ///< the largest magnitude, of the tensor or of each channel
  threshold,  ///< another value that scales can be made of, as a rule below which most magnitudes lie
  sizes,      ///< of the tensor: no ground for scales
  tensors     ///< for a look at them: no ground for scales
};

/// A row of the table: a kind of observer.
struct ObserverType {
  std::string name;       ///< [a-z0-9_]+: it stands in names of files
  std::string help = {};  ///< the values that it keeps, in a few words
  Kept kept = Kept::threshold;
  /// The parameters that it reads from scale_params; none: anything.
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

 private:
  io::Registry<ObserverType>::Entry entry_;
};

// The keys of scale_params that observers read. No torch here.

inline constexpr configs::ObserverParameter kBins{"bins", Histogram::kDefaultBins, 16, 65536, /*integer=*/true};
inline constexpr configs::ObserverParameter kPercentile{"percentile", 99.99, 0, 100};
/// How much is saved in all; after that only amax is kept.
inline constexpr configs::ObserverParameter kSaveMib{"save_mib", 1024, 0, 1e9};

// The measurements that scales can be made of: the table says what each observer keeps.

/// Why no scale can be made of what the config's observer keeps, though its methods need measurements, whatever the
/// mode says: "FILE: key 'observer': ..."; empty: it can.
std::string observer_problem(const configs::QuantConfig& config);
/// Throws io::Error if there is one.
void refuse_observer_without_amax(const configs::QuantConfig& config);

/// Throws io::Error naming the observer if no scale can be made of the values: shape keeps sizes, save keeps tensors
/// for a look at them. Or naming a module of which maxabs has several values for one input: that file is damaged.
void require_amax(const MeasurementFile& file);

/// The values of a weight are a threshold below which most of |w| lies, not max |w|. So are those of an observer that
/// the table does not have.
bool has_thresholds(const MeasurementFile& file);

/// The values of key-value caches that are kept aside are one for each head.
bool has_heads(const MeasurementFile& file);

// A QUANT_CONFIG's observer: which names it may have, and the measurements that it reads. No torch here.

/// The measurement that a config reads when it quantizes: its observer's, of this process's rank.
StatsName measurement_of(const configs::QuantConfig& config, const std::string& prefix);

/// The measurements that a config which quantizes reads from `where`: a folder, prefix or file that the user named,
/// empty for its dump_stats_path. Measurements of its observer; where the user named a place and the config no
/// observer, the only ones there. Throws io::Error: there are none, an empty dump_stats_path, an observer that keeps no
/// amax.
MeasurementFile measurements_for(const configs::QuantConfig& config, const std::string& where = {});

/// For reading a QUANT_CONFIG: it may name the observers of the table, with their parameters.
configs::ParseOptions parse_options();

}  // namespace fp8::measure
