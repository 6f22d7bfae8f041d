// SPDX-License-Identifier: Apache-2.0
// What tells one `fp8 measure` from another: what a run must have in common with the one that it goes on from, and what
// decides the numbers, by which a finished measurement and the shares of one are known.
#pragma once
#include <optional>
#include <string>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/tools/commands/measure/measure_run.h"

namespace fp8::commands {

/// For snapshots: everything.
io::Json identity_of(const MeasureRun& run, bool blocks);

/// What decides the numbers, not where they go nor how it is gone about.
io::Json causes_of(const MeasureRun& run);
/// The same as 16 hexadecimal digits; of a rank's share with what decides which samples these are. Stands in the
/// measurement's .fingerprint.
std::string mark_of(const MeasureRun& run, const Share& share);

measure::StatsName stats_name(const MeasureRun& run);

/// Whether the measurement has this mark, still is as it was written, and so was made by a run that came to its end.
bool has_mark(const measure::StatsName& name, const measure::MeasurementFile& file, const std::string& mark);
/// Writes the mark, if the measurement has a fingerprint to write it to.
void mark_finished(const measure::StatsName& name, const std::string& mark);
/// The text of a fingerprint with the mark in it.
std::string with_mark(const std::filesystem::path& path, const std::string& fingerprint, const std::string& mark);
/// The measurement that a run like this one finished.
std::optional<measure::MeasurementFile> finished_before(const MeasureRun& run);

}  // namespace fp8::commands
