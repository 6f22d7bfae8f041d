// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/quantize/budget.h"

namespace fp8::commands {

double parse_budget(const std::string& text) {
  const auto value = text.starts_with("kl=") ? parse_number(text.substr(3)) : std::nullopt;
  if (!value.has_value() || !(*value > 0))
    throw UsageError("--budget: found '" + text + "', allowed: kl=X with X > 0, e.g. kl=0.01");
  return *value;
}

decltype(meet_budget) meet_budget;

}  // namespace fp8::commands
