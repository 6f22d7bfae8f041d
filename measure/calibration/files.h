// SPDX-License-Identifier: Apache-2.0
// Where a calibration writes: its measurement, the observers' states beside it, and what lay there before into a
// backup.
//
//   P_hooks_{observer}R.json  .npz  _mod_list.json  .fingerprint      measurement_file.h
//   P_hooks_{observer}R.observers                                     states of observers that keep one
//   backup_{prefix}_{dd-mm_HH:MM:SS}/                                 everything P_hooks_* of an earlier run
//
// Several processes may calibrate one model together, each with its rank. At its first write a rank moves
//
//   files of this rank (or of none, if this has no rank)     backup
//   of another rank of as many                               stay: that rank moves them when it writes its own
//   of anything else (other numbers, scales, ...)            backup, unless written since this process began
//
// so that no rank touches what is another's, whether they run side by side, one after the other, or one of them again.
// The ranks of one run share a backup: who finds the newest one without its files puts them there. All under a lock of
// the folder: a run that fails before its first write has changed nothing, and where writing fails the files are put
// back.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::measure {

class CalibrationFiles {
 public:
  /// prefix: "stats/inc_output"; empty: write() does nothing.
  CalibrationFiles(std::string prefix, MeasurementName name) : prefix_(std::move(prefix)), name_(std::move(name)) {}

  /// Writes the files, `states` only if it is not null; returns their paths. The first call makes the backup, later
  /// ones replace what it wrote. Throws io::Error.
  std::vector<std::filesystem::path> write(const MeasurementFile& file, const io::Json& states);

 private:
  std::string prefix_;
  MeasurementName name_;
  bool written_ = false;
};

}  // namespace fp8::measure
