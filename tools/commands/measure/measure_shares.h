// SPDX-License-Identifier: Apache-2.0
// fp8 measure on several processes. Each looks at its samples (its rank's; or those of one share of --shares after the
// other) and writes files as one process would; joining makes of them those that one process would have written.
//
//   OUT/inc_output_hooks_maxabs_0_8.*                 rank 0 of 8
//   OUT/.inc_output_hooks_maxabs.shares/3.part-0/     share 3 of --shares (io/shares); goes when all are joined
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/tools/commands/inputs/forwards.h"
#include "fp8/tools/commands/measure/measure_run.h"

namespace fp8::commands {

/// The part that this process has, as options and environment say; none: another does all of the work. separate_files:
/// as the config has it. Throws UsageError, and io::Error for an observer whose files can't be joined.
std::optional<Share> share_of_measuring(const MeasureOptions& options, const measure::CalibrationOptions& calibration,
                                        bool separate_files, const Context& context);

/// Calls body for the samples that this process looks at. With --shares once for each share that it gets, with a run
/// whose files are that share's; body leaves a session there that is ready to be finalized.
void for_samples(MeasureRun& run, const Forwards& forwards,
                 const std::function<void(MeasureRun& run, SampleRange samples)>& body);

/// A measurement of no samples, for a rank that there are none for. Returns the files.
std::vector<std::filesystem::path> write_empty(const MeasureRun& run);

/// Where the shares of --shares stand.
std::filesystem::path shares_folder(const MeasureRun& run);

/// --join alone: of what other processes have written.
void join_measurements(MeasureRun& run);

/// --shares: takes shares, measure() looking at each of them through for_samples(), and joins them where that is asked
/// for.
void measure_in_shares(MeasureRun& run, const std::function<void(MeasureRun& run)>& measure);

/// The measurement that a run like this one finished, for who has nothing to do.
void report_finished(const MeasureRun& run, const measure::MeasurementFile& file);

}  // namespace fp8::commands
