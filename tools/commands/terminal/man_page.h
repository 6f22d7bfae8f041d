// SPDX-License-Identifier: Apache-2.0
// Manual pages of section 1, in the language of man(7).
#pragma once
#include <string>

#include "fp8/tools/commands/terminal/page.h"

namespace fp8::commands {

/// "fp8-measurements-merge": the name of the page; its file is this and ".1".
std::string man_name(const CommandPage& page);

/// roff of one page; the program's own has the table of commands. version: "0.1.0".
std::string man_page(const CommandPage& page, const std::string& version);

}  // namespace fp8::commands
