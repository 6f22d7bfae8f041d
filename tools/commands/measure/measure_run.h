// SPDX-License-Identifier: Apache-2.0
// What the ways to measure a model have in common: whole (measure.cpp), and one decoder layer at a time
// (measure_blocks.cpp).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/calibration/session.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/stopwatch.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "fp8/tools/commands/work/source_files.h"

namespace fp8::commands {

struct MeasureOptions : DataOptions {
  MeasureOptions() {
    samples = 128;
    batch = 0;  // 8; for a TorchScript model that keeps state 1
  }
  std::int64_t batch_or_default() const { return batch > 0 ? batch : 8; }
  std::filesystem::path model, out, config;
  std::vector<std::string> exclude;
  std::int64_t chunk = 512;
  models::AttentionKind attention = models::AttentionKind::fused;
  std::string memory_limit;  ///< as given; empty: what is free
  bool block_wise = false, whole = false, resume = false;
  double snapshot_seconds = 10;
};

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
}

/// A language model folder, one decoder layer in memory at a time. Leaves a session that is ready to be finalized; the
/// files will be those of the whole model's run, byte for byte.
void measure_blocks(MeasureRun& run);

}  // namespace fp8::commands
