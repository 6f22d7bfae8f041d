// SPDX-License-Identifier: Apache-2.0
// Which part of the work this process does: --rank R/N, or what a launcher put into the environment, or
// the shares that it can get of --shares.
#pragma once

#include "fp8/runtime/io/shares/shares.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::quant {
struct ShareResult;
}

namespace fp8::commands {

class Report;

struct ShareOptions {
  std::int64_t rank = -1, world_size = 0;  ///< -1, 0: not given
  std::int64_t shares = 0;                 ///< 0: not given
  std::optional<double> wait = {};         ///< seconds; 0: no limit
  double lease_seconds = 60;
  bool join = false, resume = false;
  std::int64_t shard_bytes = 5'000'000'000;
};

/// --rank R/N, --shares K, --join.
void add_rank_options(Options& options, ShareOptions& values);
/// Other processes may have a part of the work, by the options.
bool divides_work(const ShareOptions& options);
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

/// The places of an output's shares.
struct SharePlaces {
  std::vector<std::int64_t> world_sizes;  ///< of the shares of ranks that stand there
  std::string of_rank;                    ///< how those are called, "out.rank-R-of-N"
  std::filesystem::path shares;           ///< the folder of --shares
};

/// Options win. Else what a launcher says (io::launched()). With --join alone, what there is to join may also come from
/// the shares that stand there. Throws UsageError for options that don't fit each other, io::Error naming a variable.
Share find_share(const ShareOptions& options, const std::function<SharePlaces()>& places, const io::GetVariable& get);
/// Of a checkpoint `out`.
Share find_share(const ShareOptions& options, const std::filesystem::path& out,
                 const io::GetVariable& get = io::environment_value);

/// Prints the share's warning; shares stop when the program is interrupted, and warn through the context, which
/// outlives the share.
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

/// Returns the outcome of --shares: {"count", "made", "missing", "joined"}, and in words.
io::Json shares_json(const io::SharesOptions& options, const std::vector<std::int64_t>& made,
                     const std::vector<std::int64_t>& missing, bool joined);
std::string shares_text(const io::SharesOptions& options, const std::vector<std::int64_t>& made,
                        const std::vector<std::int64_t>& missing, bool joined);
/// Of the output of a checkpoint command: "shares" with a row where this run `worked` on them; of one rank, that --join
/// follows.
void add_shares(Report& report, const Share& share, const quant::ShareResult& done, bool worked, bool join);

// How much memory a command may use: what the user says, or what the machine and its cgroups have left. No torch here.

/// "500MB", "2GiB", "1.5 GB", "300000000": bytes; units B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of
/// 1024), any case. Empty for anything else, for less than 1 byte and for 2^62 and more.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// Bytes that new allocations can get: MemAvailable, or what the tightest cgroup (v1 or v2) above this process leaves,
/// its reclaimable page cache not counted. root: where proc and sys are. 2^62 where nothing is known.
std::int64_t available_memory(const std::filesystem::path& root = "/");

/// Returns the bytes that the program itself takes while it runs a model: those resident now, and those that libraries
/// touch at their first use.
std::int64_t process_bytes();

/// Resident memory of this process, now and at its highest.
std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

/// Gives freed memory back to the system: what was a layer must not stand beside the next.
void trim_heap();

/// From now on large blocks, once freed, go back by themselves: glibc otherwise keeps blocks of up to 32 MiB as soon as
/// it has seen one freed, and a prompt's activations of all sizes leave holes among each other (a tenth of the resident
/// memory after 4096 tokens). Each large block then costs its page faults again, which generating can't notice.
void return_large_blocks();

// How samples are divided into forwards, and the forwards into shares. Shares are of whole forwards, so that any number
// of processes makes those that one process would make, and sees the same bits. No torch here.

/// Samples [first, first + count).
struct SampleRange {
  std::int64_t first = 0, count = 0;
};

class Forwards {
 public:
  /// together(first): samples from `first` on that share a forward, 1 or more.
  template <class Together>
  Forwards(std::int64_t samples, const Together& together) {
    for (std::int64_t first = 0; first < samples; first += together(first)) starts_.push_back(first);
    starts_.push_back(samples);
  }

  std::int64_t count() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t samples() const { return starts_.back(); }
  /// Those of share `index` of `shares`, which may have none. All shares have all samples, each once, in order.
  SampleRange share(std::int64_t index, std::int64_t shares) const {
    const auto start = [&](std::int64_t i) { return starts_[static_cast<std::size_t>(count() * i / shares)]; };
    return {start(index), start(index + 1) - start(index)};
  }
  /// Returns the first sample of each forward of a share, and its end.
  std::vector<std::int64_t> starts(SampleRange share) const {
    const auto begin = std::ranges::lower_bound(starts_, share.first),
               end = std::ranges::lower_bound(starts_, share.first + share.count);
    return {begin, end + 1};
  }

 private:
  std::vector<std::int64_t> starts_;  ///< of each forward, and the end
};

}  // namespace fp8::commands
