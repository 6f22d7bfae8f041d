// SPDX-License-Identifier: Apache-2.0
// Messages of the library in the words of the command line.
#pragma once

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/base/environment.h"

namespace fp8::commands {

/// Without the names that the library's functions put before what they say ("[models] "), at the beginning and after a
/// colon: the user of a command line can't know them. Names with :: (of operators) and brackets elsewhere stay.
std::string without_origin(std::string_view message);

// The allowed word that the user probably meant by another.

/// The one of `allowed` that `found` was meant to be: it begins so and no other does, or few letters differ (two that
/// changed places count once, case does not). "" where none is near. Leading dashes don't count; only the first 64
/// bytes of `found` are looked at.
std::string meant(std::string_view found, const std::vector<std::string>& allowed);

/// ", did you mean 'quantize'?", or "".
std::string did_you_mean(std::string_view found, const std::vector<std::string>& allowed);

// The terminal of the messages: its width and its colours.

/// --color.
enum class ColorMode : std::uint8_t { automatic, always, never };
FP8_ENUM_NAMES(ColorMode, {automatic, "auto"}, {always, "always"}, {never, "never"});
using fp8::name_of;

enum class Color : std::uint8_t { red, yellow, green };

/// Columns of the terminal that `descriptor` is; 0 where it is none, or says nothing.
std::size_t terminal_width(int descriptor);
/// Code points of UTF-8, which is columns for all that we print.
std::size_t columns_of(std::string_view text);

/// For the whole process.
void set_color_mode(ColorMode mode);

/// True if colours go to a stream. NO_COLOR, CLICOLOR_FORCE, FORCE_COLOR, CLICOLOR as no-color.org,
/// bixense.com/clicolors and force-color.org say; a mode other than auto wins. terminal: the stream is one that
/// moves its cursor.
bool takes_color(ColorMode mode, bool terminal, const io::GetVariable& get);
/// Of stderr, in the process' mode and environment.
bool stderr_takes_color();

/// stderr is a terminal that moves its cursor (TERM is not dumb).
bool stderr_is_terminal();

/// The text between escape codes.
std::string painted(std::string_view text, Color color);

}  // namespace fp8::commands
