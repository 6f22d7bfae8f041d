// SPDX-License-Identifier: Apache-2.0
// Walking through UTF-8 by code points. Text enters through sanitize(); past it every function here may assume that it
// is well-formed (checks and encoding: runtime/io/base/text.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::text {

/// A code point and the bytes it took.
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t size = 0;
};

/// Bytes of the code point whose first byte is `lead` (1..4); 1 for a byte that can't lead.
inline std::size_t sequence_size(unsigned char lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

/// The code point at `position` < text.size(). text: well-formed.
CodePoint decode_at(std::string_view text, std::size_t position);
/// The code point that ends at `end` > 0. text: well-formed.
CodePoint decode_before(std::string_view text, std::size_t end);
/// `text` with each maximal ill-formed subpart replaced by U+FFFD (Unicode 3.9, as Python's errors="replace" does).
std::string sanitize(std::string_view text);

/// Unicode's property White_Space (what `\s` means in a tokenizer.json).
bool is_white_space(std::uint32_t code_point);

}  // namespace fp8::text
