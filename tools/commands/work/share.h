// SPDX-License-Identifier: Apache-2.0
// Which part of a checkpoint's work this process does: --rank and --world-size, or what a launcher put into the
// environment.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "fp8/runtime/io/base/launcher.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

struct ShareOptions {
  std::int64_t rank = -1, world_size = 0;  ///< -1, 0: not given
  bool join = false, resume = false;
  std::int64_t shard_bytes = 5'000'000'000;
};

/// --resume --rank --world-size --join --shard-size.
void add_share_options(Options& options, ShareOptions& values);

struct Share {
  std::int64_t rank = 0, world_size = 1;
  std::string warning;  ///< set where the environment decided
};

/// Options win. Else what a launcher says (io::launched()). With --join the world size may also come from the shares
/// that stand beside `out`. Throws UsageError for options that don't fit each other, io::Error naming a variable.
Share find_share(const ShareOptions& options, const std::filesystem::path& out, const io::GetVariable& get);
/// From this process' environment.
Share find_share(const ShareOptions& options, const std::filesystem::path& out);

}  // namespace fp8::commands
