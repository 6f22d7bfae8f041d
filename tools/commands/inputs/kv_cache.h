// SPDX-License-Identifier: Apache-2.0
// --kv-cache: keys and values of the model in fp8, as serving engines keep them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp8/quant/scheme/node_scheme.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {

struct KvCacheOptions {
  /// automatic: as the checkpoint says.
  enum class Mode : std::uint8_t { automatic, fp8, off } mode = Mode::automatic;
  std::string measurements;
  std::optional<quant::KvGranularity> scales;  ///< not given: per tensor
};
constexpr auto names_of(KvCacheOptions::Mode) {
  using enum KvCacheOptions::Mode;
  return std::to_array<EnumName<KvCacheOptions::Mode>>({{automatic, "auto"}, {fp8, "fp8"}, {off, "off"}});
}

/// --kv-cache auto|fp8|off, --measurements, --kv-cache-scales tensor|head
void add_kv_cache_options(Options& options, KvCacheOptions& target);

/// Puts the model's key-value caches in the precision asked for. Throws UsageError for options that do not go together;
/// io::Error if there are no scales (the checkpoint has none and no measurements are given), or they are of another
/// model.
void set_kv_cache(models::LoadedModel& model, const KvCacheOptions& options, const Context& context);

/// What the caches hold now.
struct KvCacheInForce {
  std::string holds;   ///< "fp8", or the compute dtype: "bf16"
  std::string scales;  ///< "tensor" or "head"; empty without fp8
  std::string text() const { return scales.empty() ? holds : holds + ", " + scales + " scales"; }
};
KvCacheInForce kv_cache_of(const models::LoadedModel& model);

}  // namespace fp8::commands
