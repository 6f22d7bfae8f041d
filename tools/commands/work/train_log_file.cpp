// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/train_log_file.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace fp8::commands {
namespace {

constexpr std::uint64_t kMaxLog = std::uint64_t{1} << 30;

}  // namespace

void for_each_step(const std::filesystem::path& path, const std::function<bool(io::Json, std::size_t)>& found) {
  const auto text = io::read_file(path, kMaxLog);
  std::size_t line = 1;
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++line) {
    const auto where = path.string() + ", line " + std::to_string(line);
    auto entry = io::parse_json(std::string_view(text).substr(begin, end - begin), where);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_integer() || !entry.contains("loss"))
      throw io::Error(where + ": is no step of a training log, expected {\"step\": N, \"loss\": X, ...}, found " +
                      io::printable(entry.dump()));
    if (!found(std::move(entry), end + 1)) return;
  }
}

std::vector<io::Json> read_log(const std::filesystem::path& path) {
  std::vector<io::Json> entries;
  for_each_step(path, [&](io::Json entry, std::size_t) {
    entries.push_back(std::move(entry));
    return true;
  });
  return entries;
}

}  // namespace fp8::commands
