// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 measure`. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/work/process.h"

namespace fp8::commands {

struct MeasureOptions : DataOptions {
  MeasureOptions() {
    samples = 0, seq_len = 0, batch = 0;  // measure_run.h; of a TorchScript model 128, and batches of 8 or 1
  }
  std::int64_t batch_or_default() const { return batch > 0 ? batch : 8; }
  std::filesystem::path model, out, config;
  std::vector<std::string> exclude;
  bool sized_here = false;  ///< samples were left open
  std::int64_t chunk = 512;
  models::AttentionKind attention = models::AttentionKind::fused;
  std::string memory_limit;  ///< as given; empty: what is free
  ProfileOptions profile;
  bool block_wise = false, whole = false, resume = false;
  double snapshot_seconds = 10;
  bool pipeline = false;
  std::int64_t rank_timeout = kRankTimeout;  ///< seconds, with pipeline
  ShareOptions share;
};

/// Bytes of --memory-limit; 0: none given. Throws UsageError.
std::int64_t limit_of(const MeasureOptions& options);

/// What the command does with options that passed its checks: measure.cpp.
extern Late<void(const MeasureOptions& options, Context& context)> measure_model;

// Which decoder layers a rank of --pipeline has. No torch here.

/// The first layer of each rank, and the end: ranks + 1 numbers. Each has one layer or more, one after the other, and
/// the one with the most bytes has as few as can be. bytes: of each layer, at least as many layers as ranks; after: of
/// what the last rank has beside its layers.
std::vector<std::int64_t> layer_ranges(const std::vector<std::int64_t>& bytes, std::int64_t after, std::int64_t ranks);

}  // namespace fp8::commands
