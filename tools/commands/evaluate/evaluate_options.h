// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 evaluate`. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/late.h"
#include "fp8/tools/commands/inputs/data_options.h"
#include "fp8/tools/commands/inputs/model_options.h"
#include "fp8/tools/commands/inputs/profile_options.h"
#include "fp8/tools/commands/work/share.h"

namespace fp8::commands {

struct EvaluateOptions : DataOptions {
  std::filesystem::path model, reference, dump_logits;
  models::AttentionKind attention = models::AttentionKind::fused;
  KvCacheOptions kv_cache;
  ProfileOptions profile;
  bool allow_nonfinite = false;
  std::int64_t rank_timeout = kRankTimeout;  ///< seconds
};

/// What the command does with options that passed its checks: evaluate.cpp.
extern Late<void(const EvaluateOptions& options, Context& context)> evaluate_model;

}  // namespace fp8::commands
