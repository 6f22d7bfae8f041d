// SPDX-License-Identifier: Apache-2.0
// Measurements as Intel Neural Compressor writes and reads them: PREFIX_hooks_maxabs.json (indent 4), the same as .npz, and
// PREFIX_hooks_maxabs_mod_list.json, the names that were selected. No torch here.
//
//   {"NumSamples": n?, "GlobalRank": null, "LocalRank": null, "Mode": "DynamicRange",
//    "Nodes": {module: {"inputs": [[[amax]], ...], "outputs": [[[amax]]]?, "params": {"weight": [[amax]]}?}}}
//
// An amax is float32, >= 0, of the unscaled tensor; its JSON form is [[v]] (shape [1, 1]), per channel [C, 1].
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fp8::measure {

/// The amax values of one tensor: one, or one per channel.
using Amax = std::vector<float>;

struct Measurement {
  std::string module;
  std::vector<Amax> inputs;
  std::optional<std::vector<Amax>> outputs;  ///< absent when not measured
  std::optional<Amax> weight;                ///< params.weight
};

struct MeasurementFile {
  std::optional<std::int64_t> num_samples;
  std::optional<std::int64_t> local_rank;
  std::vector<Measurement> modules;   ///< only those that were called
  std::vector<std::string> selected;  ///< mod_list

  const Measurement* find(const std::string& module) const;
  /// 16 hex digits (FNV-1a) over names and values: changes when a measurement does.
  std::string fingerprint() const;
};

/// Writes the three files, each atomically and none before all are on the disk; returns their paths. `prefix` as in "out/stats/inc_output";
/// its folder is made, and taken back when writing fails. Throws io::Error.
std::vector<std::filesystem::path> write_measurements(const std::string& prefix, const MeasurementFile& file);

/// Throws io::Error if write_measurements() could not make its files there: to be asked before a long run. Writes nothing.
void check_writable(const std::string& prefix);

/// Reads PREFIX_hooks_maxabs.json, or the .npz where there is no .json. `where` is a prefix, one of the files, or a folder that holds
/// exactly one measurement. Throws io::Error naming file and module: missing, malformed, negative, NaN or infinite values.
MeasurementFile read_measurements(const std::string& where);

/// The prefix that read_measurements() would use for `where`.
std::string find_measurements(const std::string& where);

}  // namespace fp8::measure
