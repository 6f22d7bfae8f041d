// SPDX-License-Identifier: Apache-2.0
// Options whose words have details: --scheme of quantize and convert, which scales the weights have, and --kv-cache of
// quantize.
//
//   --scheme    tensor  tensor:unfused  channel  block  block:64  block:e8m0  block:64,e8m0  mx
//   --kv-cache  auto  auto:head  off  fp8  fp8:head  fp8:query
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp8/quant/plan/plan.h"
#include "fp8/quant/scheme/scheme.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

/// Where the parts of the option go; they are left as they are where it does not say them.
struct SchemeTargets {
  std::optional<quant::WeightWord>& word;
  std::int64_t& block;
  std::optional<bool>& power_of_two;
  bool* unfused = nullptr;  ///< of quantize
};

/// Adds it, and the options that were parts of it. help: what is the default.
void add_scheme_option(Options& options, const SchemeTargets& targets, const std::string& help);

/// Throws UsageError for a scheme that no checkpoint of the form can hold, whatever the model; where a QUANT_CONFIG
/// decides, nothing is known yet.
void check_scheme(const std::string& form, const quant::PlanOptions& plan);

struct KvCacheTargets {
  std::optional<bool>& fp8;
  std::optional<quant::KvGranularity>& scales;
  bool& query;
};

/// --kv-cache of quantize, and the options that were parts of it.
void add_kv_cache_option(Options& options, const KvCacheTargets& targets);

}  // namespace fp8::commands
