// SPDX-License-Identifier: Apache-2.0
// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. No torch here.
//
//   0xxxxxxx | 110xxxxx 10xxxxxx | 1110xxxx 10xxxxxx 10xxxxxx | 11110xxx 10xxxxxx 10xxxxxx 10xxxxxx
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::io {

/// Bytes of the character that starts at text[at] (1 to 4), or 0 if there is no valid one. at < text.size().
std::size_t utf8_length(std::string_view text, std::size_t at);

/// The code point of the valid character of `length` bytes that starts at text[at].
std::uint32_t utf8_decode(std::string_view text, std::size_t at, std::size_t length);

/// Appends the character of `code` (<= 0x10FFFF, not a surrogate).
void utf8_append(std::string& out, std::uint32_t code);

bool is_utf8(std::string_view text);

/// Whether a terminal draws this code point and does nothing else: false for Unicode's categories Cc, Cf, Zl and Zp,
/// which give it orders, turn the direction of what follows, or take no room.
bool is_drawn(std::uint32_t code);

/// Appends "\u202e" for a code point, as JSON spells it: two of them above U+FFFF.
void append_escaped(std::string& out, std::uint32_t code);

}  // namespace fp8::io
