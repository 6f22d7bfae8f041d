// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/group_options.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <optional>
#include <string>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/launcher.h"

namespace fp8::runtime::distributed {
namespace {

using io::kMaxRanks;

/// MASTER_PORT; because: ends the message where it is not set.
std::uint16_t port_from_environment(const std::string& because) {
  const char* text = io::environment_value("MASTER_PORT");
  TORCH_CHECK(text != nullptr, "[process group] MASTER_PORT: found none, allowed: 1 to 65535", because);
  const std::string problem = io::environment_problem("MASTER_PORT");
  TORCH_CHECK(problem.empty(), "[process group] ", problem);
  return static_cast<std::uint16_t>(io::parse_integer(text, 1, 65535).value());
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
  const char* host = io::environment_value("MASTER_ADDR");
  TORCH_CHECK(host != nullptr, "[process group] MASTER_ADDR: found none, allowed: the host of rank 0", because);
  options.host = host;
  options.port = port_from_environment(because);
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
