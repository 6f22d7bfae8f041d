// SPDX-License-Identifier: Apache-2.0
// What the ways to measure a model have in common: whole (measure.cpp), one decoder layer at a time
// (measure_blocks.cpp), and decoder layers divided over processes (measure_pipeline.cpp).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/profile/profiler.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/stopwatch.h"
#include "fp8/tools/commands/measure/measure_options.h"
#include "fp8/tools/commands/work/share.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "fp8/tools/commands/work/source_files.h"

namespace fp8::commands {

/// One `fp8 measure`.
struct MeasureRun {
  const MeasureOptions& options;
  Context& context;
  measure::CalibrationOptions calibration;  ///< which modules, what of them, and where to
  std::int64_t memory =
      0;  ///< bytes that may be used beyond `process`; 0 or less: --memory-limit does not even reach that
  std::int64_t process = 0;  ///< bytes of the program itself, which --memory-limit counts
  Snapshots& snapshots;
  SourceFiles sources;
  io::Json progress = nullptr;  ///< of the snapshot to go on from; null: from the beginning
  std::shared_ptr<measure::CalibrationSession> session = nullptr;
  double forward_seconds = 0;
  Share share = {};               ///< of several processes
  io::Shares* shares = nullptr;   ///< with --shares, while they are taken
  std::int64_t first_sample = 0;  ///< of all, that this process looks at
  std::string mark = "";          ///< measure_mark.h
  io::Json work = nullptr;        ///< what processes that take shares must have in common
  io::Json ranks =
      nullptr;  ///< with --pipeline, of each: {"layers": [first, end], "forward_seconds", "peak_rss_bytes"}
  std::shared_ptr<runtime::Profiler> profiler = nullptr;  ///< null: nobody asked
  std::optional<KeepsWork> keeps = {};                    ///< from the first samples that are kept to their files

  /// Throws io::Error if no module was selected; the session is discarded then.
  void require_selection();
  /// Throws UsageError with the least limit that works if --memory-limit does not leave `needed` bytes for `what`.
  void require_memory(std::int64_t needed, const std::string& what) const;
};

/// f(), its time added to run.forward_seconds.
template <class F>
void timed_forward(MeasureRun& run, const F& f) {
  const Stopwatch watch;
  f();
  run.forward_seconds += watch.seconds();
  if (run.profiler != nullptr) run.profiler->step();
}

/// A language model folder, one decoder layer in memory at a time; the samples are for_samples()'s (measure_shares.h).
/// Leaves a session that is ready to be finalized; the files will be those of the whole model's run, byte for byte.
void measure_blocks(MeasureRun& run);

}  // namespace fp8::commands
