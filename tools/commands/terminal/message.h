// SPDX-License-Identifier: Apache-2.0
// Messages of the library in the words of the command line.
#pragma once
#include <string>
#include <string_view>

namespace fp8::commands {

/// Without the names that the library's functions put before what they say ("[models] "), at the beginning and after a
/// colon: who typed a command line can't know them. Names with :: (of operators) and brackets elsewhere stay.
std::string without_origin(std::string_view message);

}  // namespace fp8::commands
