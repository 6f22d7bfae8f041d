// SPDX-License-Identifier: Apache-2.0
// What kind of character a code point is, as the steps of tokenizers ask. The kinds are those of Unicode 8 (is_mark:
// 9), as in Hugging Face's tables: a later mark or sign is none.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::text {

/// ASCII's punctuation and symbols (! to / and so on), and Unicode's category P.
bool is_punctuation(std::uint32_t code_point);
/// Unicode's category Mn: accents that stand above or below a letter.
bool is_nonspacing_mark(std::uint32_t code_point);
/// Unicode's category M: the same and those that take space.
bool is_mark(std::uint32_t code_point);
/// Unicode's categories Cc, Cf, Cs and Co.
bool is_control(std::uint32_t code_point);
/// The ideographs that BERT takes one by one.
bool is_ideograph(std::uint32_t code_point);

/// The lower case of a code point as UTF-8; two code points for U+0130.
void append_lower(std::string& text, std::uint32_t code_point);

/// The bytes of the grapheme (UAX #29, extended) that starts at `begin` < text.size(). text: well-formed UTF-8.
std::size_t grapheme_size(std::string_view text, std::size_t begin);

}  // namespace fp8::text
