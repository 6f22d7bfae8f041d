// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/memory_budget.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kUnknown = std::int64_t{1} << 62;
/// Of LibTorch's and our own code and thread stacks, touched after the command line was read (fp8 measure of a model of
/// a few kB).
constexpr std::int64_t kFirstUse = std::int64_t{32} << 20;

/// The number that a file consists of, or that follows `key` in it; empty: none ("max").
std::optional<std::int64_t> number_in(const fs::path& file, const std::string& key = "") {
  std::ifstream in(file);
  std::string word;
  std::int64_t value = 0;
  while (in >> word) {
    if (key.empty()) {
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
    }
    if (word == key && in >> value) return value;
  }
  return std::nullopt;
}

struct Names {
  const char *limit, *usage, *cache;
};

/// What the group at `folder` / `group` and those above it leave.
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
  constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{{"", 1},
                                                                           {"b", 1},
                                                                           {"kb", 1e3},
                                                                           {"mb", 1e6},
                                                                           {"gb", 1e9},
                                                                           {"tb", 1e12},
                                                                           {"k", 0x1p10},
                                                                           {"m", 0x1p20},
                                                                           {"g", 0x1p30},
                                                                           {"t", 0x1p40},
                                                                           {"kib", 0x1p10},
                                                                           {"mib", 0x1p20},
                                                                           {"gib", 0x1p30},
                                                                           {"tib", 0x1p40}}};
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
