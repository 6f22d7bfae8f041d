// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte alphabet: each byte is written as one printable code point, so that byte strings are text for the BPE.
//
//   bytes 21..7E, A1..AC, AE..FF   the code point of the same number
//   the other 68, ascending        U+0100, U+0101, ... U+0143       (space 20 -> U+0120, newline 0A -> U+010A)
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::text {

/// Appends the written form of each byte of `bytes`.
void append_byte_letters(std::string& text, std::string_view bytes);
/// The byte a code point stands for, or -1.
int byte_of_letter(std::uint32_t code_point);

}  // namespace fp8::text
