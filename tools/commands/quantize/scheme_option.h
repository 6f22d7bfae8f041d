// SPDX-License-Identifier: Apache-2.0
// --scheme of quantize and convert: whose scales the weights have, and how those of blocks are.
//
//   tensor  tensor:unfused  channel  block  block:64  block:e8m0  block:64,e8m0  mx
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp8/quant/scheme/scheme.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

/// Where the parts of the option go; they are left as they are where it does not say them.
struct SchemeTargets {
  std::optional<quant::WeightWord>& word;
  std::int64_t& block;
  std::optional<bool>& power_of_two;
  bool* unfused = nullptr;  ///< of quantize
};

/// Adds it, and the options that were parts of it. help: what is the default.
void add_scheme_option(Options& options, const SchemeTargets& targets, const std::string& help);

}  // namespace fp8::commands
