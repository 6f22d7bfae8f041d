// SPDX-License-Identifier: Apache-2.0
// The options that say how a model runs: its attention, its key-value cache, what weights it may have. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fp8/quant/scheme/node_scheme.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/models/base/attention_kind.h"

namespace fp8::commands {

/// A path that names a TorchScript file and not a checkpoint folder.
bool is_script(const std::filesystem::path& model);

/// --attention fused|eager
void add_attention_option(Options& options, models::AttentionKind& target);

/// --allow-nonfinite of a command that runs a model.
void add_nonfinite_option(Options& options, bool& target);

/// Keys and values of the model in fp8, as serving engines keep them.
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

/// Throws UsageError for options that do not go together.
void check_kv_cache_options(const KvCacheOptions& options, const Context& context);

}  // namespace fp8::commands
