// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/share.h"

#include <algorithm>

#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::commands {
namespace {

using io::kMaxRanks;

Share from_environment(const io::GetVariable& get) {
  try {
    const auto process = io::launched(get);
    if (!process || process->size == 1) return {};
    return {
        process->rank, process->size,
        process->text() + ": it writes its share, then --join puts all together (--world-size 1 does all of the work)"};
  } catch (const io::Error& error) {
    throw io::Error(std::string(error.what()) +
                    " (--rank and --world-size win over it, --world-size 1 does all of the work)");
  }
}

std::int64_t shares_beside(const std::filesystem::path& out) {
  const auto found = quant::shares_of(out);
  if (found.empty())
    throw io::Error(out.string() + ": no shares to join stand beside it (" + out.filename().string() +
                    ".rank-R-of-N); each rank writes one with --rank R --world-size N");
  if (found.size() > 1)
    throw UsageError("--join: shares of different world sizes stand beside " + out.string() +
                     ": say which with --world-size");
  return found[0];
}

}  // namespace

void add_share_options(Options& options, ShareOptions& values) {
  options.flag("--resume", values.resume,
               "Go on where a run with the same options was cut short; finished parts are verified and kept, and a "
               "finished output is left as it is");
  options.integer("--rank", values.rank, 0, kMaxRanks - 1,
                  "This process of --world-size: writes its share of the files beside --out", "the launcher's");
  options.integer("--world-size", values.world_size, 1, kMaxRanks, "Processes that share the work",
                  "the launcher's, else 1");
  options.flag("--join", values.join,
               "Make --out of the shares that all ranks have written; the other options as theirs");
  options.integer("--shard-size", values.shard_bytes, 1, std::int64_t{1} << 60, "Bytes of tensors in one file");
}

Share find_share(const ShareOptions& o, const std::filesystem::path& out, const io::GetVariable& get) {
  if (o.join) {
    if (o.rank >= 0) throw UsageError("--join and --rank exclude each other");
    return {0, o.world_size > 0 ? o.world_size : shares_beside(out), ""};
  }
  if (o.world_size == 0 && o.rank < 0) return from_environment(get);
  if (o.world_size == 0) throw UsageError("--rank needs --world-size");
  if (o.rank < 0 && o.world_size > 1) throw UsageError("--world-size needs --rank (or --join)");
  const std::int64_t rank = std::max<std::int64_t>(o.rank, 0);
  if (rank >= o.world_size)
    throw UsageError("--rank: found " + std::to_string(rank) + ", allowed: 0 to " + std::to_string(o.world_size - 1) +
                     " (--world-size is " + std::to_string(o.world_size) + ")");
  return {rank, o.world_size, ""};
}

Share find_share(const ShareOptions& options, const std::filesystem::path& out) {
  return find_share(options, out, io::environment_value);
}

}  // namespace fp8::commands
