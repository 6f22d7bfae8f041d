// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/process.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <fstream>

#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/tools/commands/cli/report.h"

namespace fp8::commands {
namespace {

using io::kMaxRanks;

Share from_environment(const io::GetVariable& get) {
  try {
    const auto process = io::launched(get);
    if (!process || process->size == 1) return {};
    return {process->rank, process->size,
            process->text() + ": it writes its share, then --join puts all together (--rank 0/1 does all of the work)"};
  } catch (const io::Error& error) {
    io::fail<io::Error>("{} (--rank wins over it, --rank 0/1 does all of the work)", error.what());
  }
}

Share from_options(const ShareOptions& o) {
  if (o.world_size == 0)
    io::fail<UsageError>("--rank: found {}, allowed: with the number of ranks, {}/{}", o.rank, o.rank, o.rank + 1);
  if (o.rank < 0 && o.world_size > 1) throw UsageError("--world-size needs --rank (or --join)");
  const std::int64_t rank = std::max<std::int64_t>(o.rank, 0);
  if (rank >= o.world_size)
    io::fail<UsageError>("--rank: found {} of {}, allowed: 0 to {}", rank, o.world_size, o.world_size - 1);
  return {rank, o.world_size};
}

io::SharesOptions shares_of(const ShareOptions& o, std::int64_t count) {
  io::SharesOptions shares;
  shares.count = count;
  shares.wait = o.wait;
  shares.lease.expiry = o.lease_seconds;
  return shares;
}

/// --join alone: nothing is left to do but that.
Share share_to_join(const ShareOptions& o, const SharePlaces& places) {
  if (o.rank >= 0) throw UsageError("--join and --rank exclude each other");
  if (o.shares > 0) return {0, 1, "", shares_of(o, o.shares)};
  if (o.world_size > 0) return {0, o.world_size};
  const auto count = io::count_of_shares(places.shares);
  if (count.has_value() && places.world_sizes.empty()) return {0, 1, "", shares_of(o, *count)};
  const std::string folder = io::printable(places.shares.parent_path().string(), 4096);
  if (places.world_sizes.empty())
    io::fail<io::Error>("{}: no shares to join stand there ({}); each rank writes one with --rank R/N", folder,
                        places.of_rank);
  if (count.has_value() || places.world_sizes.size() > 1)
    io::fail<UsageError>("--join: shares of different world sizes stand in {}: say which with --join N or --shares K",
                         folder);
  return {0, places.world_sizes[0]};
}

SharePlaces places_of_checkpoint(const std::filesystem::path& out) {
  const auto shares = quant::shares_folder(out);
  const std::string name = shares.filename().string();  // ".out.shares"
  return {quant::shares_of(out), name.substr(1, name.rfind('.') - 1) + ".rank-R-of-N", shares};
}

constexpr double kLeastLease = 0.1, kMostLease = 86400, kMostWait = 1e7;

void take_rank(ShareOptions& values, const std::string& text) {
  const auto slash = text.find('/');
  const auto rank = io::parse_integer(text.substr(0, slash), 0, kMaxRanks - 1);
  const bool alone = slash == std::string::npos;
  const auto size = alone ? std::nullopt : io::parse_integer(text.substr(slash + 1), 1, kMaxRanks);
  if (!rank || (!alone && !size)) bad_value("--rank", text, "R/N, a rank from 0 on and how many there are");
  values.rank = *rank;
  if (size) values.world_size = *size;
}

void take_shares(ShareOptions& values, const std::string& text) {
  const auto colon = text.find(':');
  const auto count = io::parse_integer(text.substr(0, colon), 1, static_cast<int>(io::kMaxShares));
  const bool alone = colon == std::string::npos;
  const auto seconds = alone ? std::nullopt : parse_number(text.substr(colon + 1));
  if (!count || (!alone && (!seconds || *seconds < kLeastLease || *seconds > kMostLease)))
    bad_value(
        "--shares", text,
        fmt::format("K or K:SECONDS, K from 1 to {}, SECONDS from {} to {}", io::kMaxShares, kLeastLease, kMostLease));
  values.shares = *count;
  if (seconds) values.lease_seconds = *seconds;
}

void take_join(ShareOptions& values, const std::string& text) {
  values.join = true;
  if (text.empty()) return;
  const auto size = io::parse_integer(text, 1, kMaxRanks);
  const auto seconds = text == "wait"              ? std::optional<double>(0)
                       : text.starts_with("wait:") ? parse_number(text.substr(5))
                                                   : std::nullopt;
  if (!size && (!seconds || *seconds < 0 || *seconds > kMostWait))
    bad_value("--join", text, "nothing, a number of ranks, wait, wait:SECONDS");
  if (size) values.world_size = *size;
  if (seconds) values.wait = *seconds;
}

}  // namespace

bool divides_work(const ShareOptions& o) {
  return o.rank >= 0 || o.world_size > 0 || o.shares > 0 || o.join || o.wait.has_value();
}

void add_rank_options(Options& options, ShareOptions& values) {
  options.custom(
      "--rank", "R/N", [&values](const std::string& text) { take_rank(values, text); },
      "This is process R of N, from 0 on: it does its share of the work", "the launcher's, else 0/1");
  options.custom(
      "--shares", "K[:SECONDS]", [&values](const std::string& text) { take_shares(values, text); },
      "Shares of the work, more than there are processes: each takes the next that is free, and what a process had "
      "taken that died or showed no sign of life for so long (default 60; of one on this machine that is seen at once)",
      "one for each process, its own");
  options.custom(
      "--join", "[wait]", [&values](const std::string& text) { take_join(values, text); },
      "Make --out of the shares that all processes have written (--join N: of those of N ranks); the other options as "
      "theirs. --join wait: take shares too, wait for what others took, and let the last one join; wait:SECONDS: an "
      "error after so long without news of them");
  options.offer("--join", {"wait"});
  options.integer("--world-size", values.world_size, 1, kMaxRanks, "Processes that share the work", "1");
  options.replaced("--world-size", "--rank R/N");
  options.number("--lease-seconds", values.lease_seconds, kLeastLease, kMostLease, "Of --shares");
  options.replaced("--lease-seconds", "--shares K:SECONDS");
  options.number_or_none("--wait", values.wait, 0, kMostWait, "With --join");
  options.replaced("--wait", "--join wait");
}

void add_rank_timeout_option(Options& options, std::int64_t& target, const std::string& when) {
  constexpr std::int64_t kMonth = 30 * 24 * 3600;
  options.integer("--rank-timeout", target, 1, kMonth,
                  when + (when.empty() ? "S" : "s") + "econds that a rank waits for another");
}

void add_share_options(Options& options, ShareOptions& values) {
  options.flag("--resume", values.resume,
               "Go on where a run with the same options was cut short; finished parts are verified and kept, and a "
               "finished output is left as it is");
  add_rank_options(options, values);
  options.integer("--shard-size", values.shard_bytes, 1, std::int64_t{1} << 60, "Bytes of tensors in one file");
}

Share find_share(const ShareOptions& o, const std::function<SharePlaces()>& places, const io::GetVariable& get) {
  if (o.wait.has_value() && !o.join) throw UsageError("--wait is --join wait");
  if (o.join && !o.wait.has_value())
    return share_to_join(o, o.shares > 0 || o.world_size > 0 ? SharePlaces() : places());
  Share share = o.world_size == 0 && o.rank < 0 ? from_environment(get) : from_options(o);
  if (o.shares == 0 && !o.join) return share;
  const std::int64_t count = o.shares > 0 ? o.shares : share.world_size;
  share.shares = shares_of(o, count);
  share.shares->first = share.rank * count / share.world_size;
  share.warning.clear();
  return share;
}

Share find_share(const ShareOptions& options, const std::filesystem::path& out, const io::GetVariable& get) {
  return find_share(options, [&] { return places_of_checkpoint(out); }, get);
}

void attach(Share& share, const Context& context) {
  if (!share.warning.empty()) context.warn(share.warning);
  if (!share.shares.has_value()) return;
  share.shares->stop = [] { return interrupted(); };
  share.shares->lease.warn = [&context](const std::string& message) { context.warn(message); };
}

io::Json shares_json(const io::SharesOptions& options, const std::vector<std::int64_t>& made,
                     const std::vector<std::int64_t>& missing, bool joined) {
  return {{"count", options.count}, {"made", made}, {"missing", missing}, {"joined", joined}};
}

std::string shares_text(const io::SharesOptions& options, const std::vector<std::int64_t>& made,
                        const std::vector<std::int64_t>& missing, bool joined) {
  std::string text = std::to_string(made.size()) + " of " + std::to_string(options.count) + " made here";
  if (joined) return text + ", all joined here";
  if (!missing.empty()) return text + ", " + std::to_string(missing.size()) + " are held by others";
  return text +
         (options.wait.has_value() ? ", all joined by another process" : ", none is missing; --join puts all together");
}

void add_shares(Report& report, const Share& share, const quant::ShareResult& done, bool worked, bool join) {
  if (share.shares.has_value()) {
    report.json["shares"] = shares_json(*share.shares, done.made, done.missing, done.joined);
    if (worked) report.row({"shares", shares_text(*share.shares, done.made, done.missing, done.joined)});
  } else if (share.world_size > 1 && !join) {
    report.row({"share", fmt::format("rank {} of {}; --join puts all together", share.rank, share.world_size)});
  }
}

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kUnknown = std::int64_t{1} << 62;
/// Of LibTorch's and our own code and thread stacks, touched after the command line was read (fp8 measure of a model of
/// a few kB: 32 MiB; 44 where the kernel maps files in larger pieces).
constexpr std::int64_t kFirstUse = std::int64_t{48} << 20;

/// The number that a file consists of, or that follows `key` in it; empty: none ("max").
std::optional<std::int64_t> number_in(const fs::path& file, const std::string& key = "") {
  std::ifstream in(file);
  std::string word;
  std::int64_t value = 0;
  while (in >> word) {
    if (key.empty()) return parse_integer(word);
    if (word == key && in >> value) return value;
  }
  return std::nullopt;
}

struct Names {
  const char *limit, *usage, *cache;
};

/// Returns the bytes that the group at `folder` / `group` and those above it leave.
std::int64_t left_in_groups(const fs::path& folder, fs::path group, const Names& names) {
  std::int64_t left = kUnknown;
  for (group = group.relative_path();; group = group.parent_path()) {
    const fs::path at = folder / group;
    const auto limit = number_in(at / names.limit), usage = number_in(at / names.usage);
    if (limit && usage) {
      const std::int64_t cache = number_in(at / "memory.stat", names.cache).value_or(0);
      left = std::min(left, std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *usage - cache)));
    }
    if (group.empty()) return left;
  }
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit;
  for (const char c : text.substr(static_cast<std::size_t>(end - text.data())))
    if (c != ' ' || !unit.empty()) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},       {"b", 1},      {"kb", 1e3},   {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12},    {"k", 0x1p10},
      {"m", 0x1p20}, {"g", 0x1p30}, {"t", 0x1p40}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double bytes = number * factor;
    return bytes >= 1 && bytes < 0x1p62 ? std::optional(static_cast<std::int64_t>(bytes)) : std::nullopt;
  }
  return std::nullopt;
}

std::int64_t available_memory(const fs::path& root) {
  const auto kilobytes = number_in(root / "proc/meminfo", "MemAvailable:");
  std::int64_t free = kilobytes && *kilobytes < kUnknown / 1024 ? *kilobytes * 1024 : kUnknown;
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/user.slice" (v2), "9:memory:/docker/3f" (v1)
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    if (controllers == ",,")
      free = std::min(free,
                      left_in_groups(root / "sys/fs/cgroup", group, {"memory.max", "memory.current", "inactive_file"}));
    if (controllers.find(",memory,") != std::string::npos)
      free = std::min(free, left_in_groups(root / "sys/fs/cgroup/memory", group,
                                           {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}));
  }
  return free;
}

std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  return in >> pages >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

std::int64_t process_bytes() { return resident_bytes() + kFirstUse; }

std::int64_t peak_resident_bytes() {
  // Not getrusage(): its ru_maxrss begins with what the parent had resident when it started this program.
  const auto kilobytes = number_in("/proc/self/status", "VmHWM:");
  return kilobytes ? *kilobytes * 1024 : resident_bytes();
}

void trim_heap() { ::malloc_trim(0); }

void return_large_blocks() {
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);  // glibc's first one; setting it keeps it
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

}  // namespace fp8::commands
