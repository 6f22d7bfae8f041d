// SPDX-License-Identifier: Apache-2.0
// --help: a command on one screen, its lines no longer than the terminal's.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "fp8/tools/commands/terminal/page.h"

namespace fp8::commands {

/// `text` in lines of at most `width` columns, the second and later ones behind `indent` spaces; a word that is longer
/// has a line of its own. start: columns that stand before the first. No newline at the end.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent, std::size_t start = 0);

/// The page of a command, or of the program or a group with its commands. all: advanced options too, and those for
/// several processes; else a line says how many there are.
std::string help_text(const CommandPage& page, std::size_t width, bool all);

/// "fp8 quantize --model PATH --out PATH [OPTION]...", with what is required.
std::string usage_line(const CommandPage& page);

/// "fp8 measurements merge".
std::string full_name(const CommandPage& page);

/// What a heading calls them.
const char* heading_of(Shelf shelf);

}  // namespace fp8::commands
