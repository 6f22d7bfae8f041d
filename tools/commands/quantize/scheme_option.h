// SPDX-License-Identifier: Apache-2.0
// Options whose words have details: --scheme of quantize and convert, which scales the weights have, and --kv-cache of
// quantize.
//
//   --scheme    tensor  tensor:unfused  channel  block  block:64  block:e8m0  block:64,e8m0  mx
//   --kv-cache  auto  auto:head  off  fp8  fp8:head  fp8:query
#pragma once

#include "fp8/quant/plan/plan.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

// `fp8 quantize --preset NAME`: options of quantize by the names that llm-compressor and serving engines have for them.

enum class Preset : std::uint8_t { FP8_DYNAMIC, FP8_STATIC, FP8_BLOCK, FP8_WEIGHT_ONLY, FP8_KV };

struct PresetRow {
  Preset value;
  const char* name;
  const char* options;  ///< what it is short for
  const char* what;
};
constexpr auto names_of(Preset) {
  using enum Preset;
  return std::to_array<PresetRow>({
      {FP8_DYNAMIC, "FP8_DYNAMIC", "--dynamic",
       "a scale for each channel of weights, and for each token of activations, computed at each call; needs no data"},
      {FP8_STATIC, "FP8_STATIC", "--measurements DIR",
       "a scale for each tensor, of activations as fp8 measure has seen them"},
      {FP8_BLOCK, "FP8_BLOCK", "--dynamic --scheme block",
       "a scale for each block of 128 x 128 weights, and for each 128 activations of a token; needs no data"},
      {FP8_WEIGHT_ONLY, "FP8_WEIGHT_ONLY", "--weights-only",
       "weights alone, a scale for each channel; activations stay in high precision"},
      {FP8_KV, "FP8_KV", "--measurements DIR --kv-cache fp8",
       "FP8_STATIC, and keys and values in fp8; with --dynamic or --weights-only those are FP8_KV's activations"},
  });
}

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
  std::optional<recipes::Granularity>& scales;
  bool& query;
};

/// --kv-cache of quantize, and the options that were parts of it.
void add_kv_cache_option(Options& options, const KvCacheTargets& targets);

}  // namespace fp8::commands
