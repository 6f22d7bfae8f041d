// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/quality.h"

#include <fmt/format.h>

#include <algorithm>

#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {

std::string QualityNumber::text(const io::Json& numbers) const {
  return fmt::format(fmt::runtime(format), times * numbers[key].get<double>());
}

std::string QualityNumber::interval(const io::Json& numbers) const {
  const auto found = numbers["intervals"].find(key);
  if (found == numbers["intervals"].end() || !found->is_array()) return "";
  const auto bound = [&](std::size_t i) {
    return fmt::format(fmt::runtime(in_interval), times * (*found)[i].get<double>());
  };
  const std::string low = bound(0);
  return low.substr(0, low.find(' ')) + " to " + bound(1);  // the unit is said once
}

const QualityNumber& quality_number(const std::string& key) {
  return *std::ranges::find(kQualityNumbers, key, &QualityNumber::key);
}

std::string data_text(const io::Json& numbers) {
  const auto& names = numbers["data"];
  return one_line(names[0].get<std::string>()) +
         (names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "");
}

std::string chunks_text(const io::Json& numbers) {
  const auto count = [&](const char* key) { return grouped(numbers[key].get<std::int64_t>()); };
  if (numbers.contains("source_tokens")) return count("chunks");
  const auto text = fmt::format("{} of {} tokens", count("chunks"), count("seq_len"));
  return numbers.contains("stride") ? text + fmt::format(", {} apart", count("stride")) : text;
}

}  // namespace fp8::commands
