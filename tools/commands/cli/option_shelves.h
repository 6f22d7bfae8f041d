// SPDX-License-Identifier: Apache-2.0
// Which options a newcomer sees: those of `fp8 CMD --help`. The others stand in --help-all.
#pragma once
#include <string_view>

#include "fp8/tools/commands/terminal/page.h"

namespace fp8::commands {

/// command: "quantize", "measurements merge". Of a command that the table does not know each is common.
Shelf shelf_of(std::string_view command, std::string_view option);

}  // namespace fp8::commands
