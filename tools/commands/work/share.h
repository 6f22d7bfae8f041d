// SPDX-License-Identifier: Apache-2.0
// Which part of the work this process does: --rank and --world-size, or what a launcher put into the environment, or
// the shares that it can get of --shares.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/shares/shares.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

struct ShareOptions {
  std::int64_t rank = -1, world_size = 0;  ///< -1, 0: not given
  std::int64_t shares = 0;                 ///< 0: not given
  std::optional<double> wait = {};         ///< seconds; 0: no limit
  double lease_seconds = 60;
  bool join = false, resume = false;
  std::int64_t shard_bytes = 5'000'000'000;
};

/// --rank --world-size --shares --lease-seconds --join --wait.
void add_rank_options(Options& options, ShareOptions& values);
/// Of a checkpoint: these, --resume and --shard-size.
void add_share_options(Options& options, ShareOptions& values);

/// --rank-timeout of what sends messages: seconds, kRankTimeout where it is not given. when: "With --pipeline: ".
constexpr std::int64_t kRankTimeout = 1800;
void add_rank_timeout_option(Options& options, std::int64_t& target, const std::string& when = "");

struct Share {
  std::int64_t rank = 0, world_size = 1;
  std::string warning = {};                      ///< set where the environment decided
  std::optional<io::SharesOptions> shares = {};  ///< of --shares; world_size says nothing about the work then
};

/// Where shares of an output may stand.
struct SharePlaces {
  std::vector<std::int64_t> world_sizes;  ///< of the shares of ranks that stand there
  std::string of_rank;                    ///< how those are called, "out.rank-R-of-N"
  std::filesystem::path shares;           ///< the folder of --shares
};

/// Options win. Else what a launcher says (io::launched()). With --join alone, what there is to join may also come from
/// the shares that stand there. Throws UsageError for options that don't fit each other, io::Error naming a variable.
Share find_share(const ShareOptions& options, const std::function<SharePlaces()>& places, const io::GetVariable& get);
/// Of a checkpoint `out`.
Share find_share(const ShareOptions& options, const std::filesystem::path& out, const io::GetVariable& get);
/// From this process' environment.
Share find_share(const ShareOptions& options, const std::filesystem::path& out);

/// Says its warning; shares stop when the program is told to, and warn as it does. The context outlives the share.
void attach(Share& share, const Context& context);

/// The share as options of a checkpoint (CheckpointOptions, StreamOptions).
template <class Options>
void set_share(Options& options, const Share& share) {
  if (share.shares.has_value()) {
    options.shares = share.shares;
  } else {
    options.rank = share.rank;
    options.world_size = share.world_size;
  }
}

/// What became of --shares: {"count", "made", "missing", "joined"}, and in words.
io::Json shares_json(const io::SharesOptions& options, const std::vector<std::int64_t>& made,
                     const std::vector<std::int64_t>& missing, bool joined);
std::string shares_text(const io::SharesOptions& options, const std::vector<std::int64_t>& made,
                        const std::vector<std::int64_t>& missing, bool joined);

}  // namespace fp8::commands
