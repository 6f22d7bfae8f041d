// SPDX-License-Identifier: Apache-2.0
// Options of writing a checkpoint (stream.h). No torch here.
#pragma once

#include "fp8/runtime/io/shares/shares.h"

namespace fp8::quant {

/// How a checkpoint is written.
struct StreamOptions {
  bool overwrite = false;
  /// Continues a run with the same identity that was cut short; what this one finishes stays if it is cut short.
  bool resume = false;
  /// All that must be equal for a part to be kept: command, options, the source's files with sizes and times. Compared
  /// as a whole.
  io::Json identity;
  std::uint64_t shard_bytes =
      5'000'000'000;  ///< tensor data of one file, unless a single unit (a module, q with k and v) is larger
  /// The source's folder, if its files must still be those of identity["source"] and of `carried` at the end; may be
  /// empty.
  std::filesystem::path source;
  io::Json carried;                 ///< carried_identity_of(source), before anything was read (folder.h)
  std::set<std::string> nonfinite;  ///< tensors of the source that copy() takes with their NaN and Inf
  /// This process' share: whole files, by size. With world_size > 1 nothing appears under the final name;
  /// join_checkpoint() makes it.
  std::int64_t rank = 0, world_size = 1;
  /// Instead of that: shares that processes take one after the other (share_checkpoint()).
  std::optional<io::SharesOptions> shares = {};
  /// Called with bytes done and in all, at most some hundred times, by one thread at a time; may be empty.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  /// Asked between chunks; true ends the work with an io::Error "interrupted" and, without resume, leaves nothing
  /// behind. May be empty.
  std::function<bool()> stop;
  io::Spelling spelling = nullptr;  ///< of options, in warnings
};

/// The shares that this process made and missed.
struct ShareResult {
  std::vector<std::int64_t> made = {}, missing = {};  ///< missing: unfinished when this process had no more to do
  bool joined = false;                                ///< it put them together
};

/// What every report on a written checkpoint has.
struct WriteReport {
  std::uint64_t weights_bytes = 0;  ///< tensor data written (or to be written), by all ranks
  std::uint64_t source_bytes = 0;
  std::size_t units = 0, units_kept = 0;  ///< pieces of work; those that a run that was cut short had finished
  bool finished_before = false;           ///< resume: `out` is what a run like this one finished; nothing was written
  ShareResult shares = {};                ///< with options.shares
};

}  // namespace fp8::quant
