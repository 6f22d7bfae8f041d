// SPDX-License-Identifier: Apache-2.0
// fp8 measurements merge | unify | expand | postprocess | diff | show: what the commands share.
#pragma once

#include "fp8/measure/files/measurement_file.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/report.h"

namespace fp8::commands {

/// The sets of measurement and scale files that `path` means: all in a folder, all of a prefix, or the one that a file
/// belongs to. Throws io::Error if there is none.
std::vector<measure::StatsName> sets_at(const std::filesystem::path& path);

/// refuse_existing() of each file that a set may have.
void refuse_existing(const measure::StatsName& name, bool overwrite);

/// "inc_output_hooks_maxabs_0_8", for messages.
std::string short_name(const measure::StatsName& name);

/// Merges the observers' states of several ranks or runs (histograms, measure/files/measurement_file.h): `file` gets
/// their results for all data, and the merged states are returned, to be written beside it under `target`. Nothing
/// happens if none of `names` has states; if only some have, there is a warning, and the elementwise maximum in `file`
/// stays.
std::vector<measure::FileBytes> merge_states(const std::vector<measure::StatsName>& names,
                                             const measure::StatsName& target, measure::MeasurementFile& file,
                                             std::vector<std::string>& warnings);

/// The states in these files, one of each rank or run, merged by the observers themselves: with LibTorch. `file` gets
/// the values that they make of them. Throws io::Error.
extern Late<measure::ObserverStates(const std::vector<std::filesystem::path>& paths, measure::MeasurementFile& file)>
    merged_states;

/// Writes all of `files` or none, adds their paths to the report, and prints it.
void write_and_report(const Context& context, const std::vector<measure::FileBytes>& files, Report& report);

Action add_measurements_unify(Options& options);
Action add_measurements_expand(Options& options);

}  // namespace fp8::commands
