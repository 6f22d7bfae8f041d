// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/group_options.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "fp8/runtime/io/error.h"

namespace fp8::runtime::distributed {
namespace {

constexpr int kMaxRanks = 65536;

/// An integer from the environment; nullopt where the variable is unset or empty.
std::optional<int> integer(const char* variable, int low, int high) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view all(text);
  int value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  const bool number = error == std::errc() && end == all.data() + all.size();
  TORCH_CHECK(number && value >= low && value <= high, "[process group] ", variable, ": found ", io::in_quotes(all), ", allowed: an integer from ",
              low, " to ", high);
  return value;
}

int rank_from_environment(int size) {
  if (const auto rank = integer("RANK", 0, size - 1)) return *rank;
  const auto local = integer("LOCAL_RANK", 0, size - 1);
  TORCH_CHECK(local.has_value(), "[process group] RANK: found none, and no LOCAL_RANK, allowed: 0 to ", size - 1, " (WORLD_SIZE is ", size, ")");
  const int per_node = integer("LOCAL_WORLD_SIZE", 1, size).value_or(size);
  auto node = integer("NODE_RANK", 0, size - 1);
  if (!node.has_value()) node = integer("GROUP_RANK", 0, size - 1);
  TORCH_CHECK(*local < per_node, "[process group] LOCAL_RANK: found ", *local, ", allowed: 0 to ", per_node - 1, " (LOCAL_WORLD_SIZE is ", per_node,
              ")");
  const std::int64_t rank = std::int64_t{node.value_or(0)} * per_node + *local;
  TORCH_CHECK(rank < size, "[process group] NODE_RANK: found ", node.value_or(0), ", which makes rank ", rank, ", allowed: ranks 0 to ", size - 1,
              " (WORLD_SIZE is ", size, ")");
  return static_cast<int>(rank);
}

}  // namespace

GroupOptions group_options_from_environment() {
  GroupOptions options;
  const auto size = integer("WORLD_SIZE", 1, kMaxRanks);
  if (!size.has_value()) {
    for (const char* variable : {"RANK", "LOCAL_RANK"}) {
      const auto rank = integer(variable, 0, kMaxRanks - 1);
      TORCH_CHECK(!rank.has_value(), "[process group] WORLD_SIZE: found none, while ", variable, " is ", rank.value_or(0), "; allowed: 1 to ",
                  kMaxRanks);
    }
    return options;
  }
  options.size = *size;
  options.rank = rank_from_environment(*size);
  if (options.size == 1) return options;
  const char* host = std::getenv("MASTER_ADDR");
  TORCH_CHECK(host != nullptr && *host != '\0', "[process group] MASTER_ADDR: found none, allowed: the host of rank 0 (WORLD_SIZE is ", options.size,
              ")");
  options.host = host;
  const auto port = integer("MASTER_PORT", 1, 65535);
  TORCH_CHECK(port.has_value(), "[process group] MASTER_PORT: found none, allowed: 1 to 65535 (WORLD_SIZE is ", options.size, ")");
  options.port = static_cast<std::uint16_t>(*port);
  return options;
}

void check(const GroupOptions& options) {
  TORCH_CHECK(options.size >= 1 && options.size <= kMaxRanks, "[GroupOptions] size: found ", options.size, ", allowed: 1 to ", kMaxRanks);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.size, "[GroupOptions] rank: found ", options.rank, ", allowed: 0 to ", options.size - 1);
  const auto longest = std::chrono::hours(24 * 30);
  TORCH_CHECK(options.timeout >= std::chrono::milliseconds(1) && options.timeout <= longest, "[GroupOptions] timeout: found ",
              options.timeout.count(), " ms, allowed: 1 ms to 30 days");
  if (options.size == 1) return;
  if (options.file.empty()) {
    TORCH_CHECK(!options.host.empty(), "[GroupOptions] host: found \"\", allowed: a name or address");
    TORCH_CHECK(options.port != 0, "[GroupOptions] port: found 0, allowed: 1 to 65535");
    return;
  }
  const auto folder = std::filesystem::absolute(options.file).parent_path();
  TORCH_CHECK(std::filesystem::is_directory(folder), "[GroupOptions] file: found ", io::in_quotes(options.file),
              ", allowed: a path in a folder that exists");
}

}  // namespace fp8::runtime::distributed
