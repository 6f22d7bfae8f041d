// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/quantize/scheme_option.h"

#include <algorithm>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kMaxBlock = 1 << 20;

/// False for a detail that the word does not have.
bool take_detail(const SchemeTargets& targets, const std::string& detail) {
  using quant::WeightWord;
  if (targets.word == WeightWord::tensor && targets.unfused != nullptr && detail == "unfused") {
    *targets.unfused = true;
    return true;
  }
  if (targets.word != WeightWord::block) return false;
  if (detail == "e8m0" || detail == "f32") {
    targets.power_of_two = detail == "e8m0";
    return true;
  }
  const auto size = io::parse_integer(detail, 1, kMaxBlock);
  targets.block = size.value_or(0);
  return size.has_value();
}

}  // namespace

void add_scheme_option(Options& options, const SchemeTargets& targets, const std::string& help) {
  std::vector<std::string> words;
  for (const auto& row : enum_names<quant::WeightWord>) words.emplace_back(row.name);
  const auto set = [targets](std::size_t i, const std::vector<std::string>& details) {
    targets.word = enum_names<quant::WeightWord>[i].value;
    return std::ranges::all_of(details, [&](const auto& detail) { return take_detail(targets, detail); });
  };
  options.detailed_choice(
      "--scheme", words, set,
      std::string("block:N, block:e8m0, block:N,e8m0") + (targets.unfused ? ", tensor:unfused" : ""), help);
  options.integer("--block", targets.block, 1, kMaxBlock, "Rows and columns of a block");
  options.replaced("--block", "--scheme block:N");
  options.choice(
      "--scale-format", {"f32", "e8m0"}, [targets](std::size_t i) { targets.power_of_two = i == 1; },
      "Scales of blocks");
  options.replaced("--scale-format", "--scheme block:e8m0");
  if (targets.unfused == nullptr) return;
  options.flag("--no-fuse-scales", *targets.unfused, "Own scales for q, k, v and for gate, up");
  options.replaced("--no-fuse-scales", "--scheme tensor:unfused");
}

}  // namespace fp8::commands
