// SPDX-License-Identifier: Apache-2.0
// What RuntimeFlags says of the lists of autocast: set_lists() overrides the variables that name their files.
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime::autocast {
namespace {

template <auto list>
std::optional<io::FlagSetting> other_than_the_environments() {
  std::vector<std::string> warnings;
  const std::vector<std::string> names = lists().*list;
  if (names == AutocastLists::from_environment(warnings).*list) return std::nullopt;
  return io::FlagSetting{io::joined_first(names), io::FlagSource::call, "set_lists()"};
}

[[maybe_unused]] const io::FlagOwner g_list_flags[] = {
    {"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", other_than_the_environments<&AutocastLists::lower>},
    {"LOWER_LIST", other_than_the_environments<&AutocastLists::lower>},
    {"PT_HPU_AUTOCAST_FP32_OPS_LIST", other_than_the_environments<&AutocastLists::fp32>},
    {"FP32_LIST", other_than_the_environments<&AutocastLists::fp32>}};

}  // namespace
}  // namespace fp8::runtime::autocast
