// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/group_options.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/launcher.h"

namespace fp8::runtime::distributed {
namespace {

using io::kMaxRanks;

/// An integer from the environment; nullopt where the variable is unset or empty.
std::optional<int> integer(const char* variable, int low, int high) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view all(text);
  int value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  const bool number = error == std::errc() && end == all.data() + all.size();
  TORCH_CHECK(number && value >= low && value <= high, "[process group] ", variable, ": found ", io::in_quotes(all),
              ", allowed: an integer from ", low, " to ", high);
  return value;
}

}  // namespace

GroupOptions group_options_from_environment() {
  GroupOptions options;
  std::optional<io::Launched> process;
  try {
    process = io::launched();
  } catch (const io::Error& error) {
    TORCH_CHECK(false, "[process group] ", error.what());
  }
  if (!process.has_value()) return options;
  options.rank = process->rank;
  options.size = process->size;
  if (options.size == 1) return options;
  const std::string because = " (" + process->size_variable + " is " + std::to_string(options.size) +
                              "); all ranks need the same, as in mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500";
  const char* host = std::getenv("MASTER_ADDR");
  TORCH_CHECK(host != nullptr && *host != '\0', "[process group] MASTER_ADDR: found none, allowed: the host of rank 0",
              because);
  options.host = host;
  const auto port = integer("MASTER_PORT", 1, 65535);
  TORCH_CHECK(port.has_value(), "[process group] MASTER_PORT: found none, allowed: 1 to 65535", because);
  options.port = static_cast<std::uint16_t>(*port);
  return options;
}

void check(const GroupOptions& options) {
  TORCH_CHECK(options.size >= 1 && options.size <= kMaxRanks, "[GroupOptions] size: found ", options.size,
              ", allowed: 1 to ", kMaxRanks);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.size, "[GroupOptions] rank: found ", options.rank,
              ", allowed: 0 to ", options.size - 1);
  const auto longest = std::chrono::hours(24 * 30);
  TORCH_CHECK(options.timeout >= std::chrono::milliseconds(1) && options.timeout <= longest,
              "[GroupOptions] timeout: found ", options.timeout.count(), " ms, allowed: 1 ms to 30 days");
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
