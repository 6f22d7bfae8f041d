// SPDX-License-Identifier: Apache-2.0
// The kinds of characters that the steps of tokenizers ask for. The kinds are those of Unicode 8 (is_mark:
// 9), as in Hugging Face's tables: a later mark or sign is none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fp8/runtime/io/base/base64.h"

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

// Walking through UTF-8 by code points. Text enters through sanitize(); past it every function here may assume that it
// is well-formed (checks and encoding: runtime/io/base/text.h).

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

// Unicode's normalization forms (UAX #15): decomposition, marks in canonical order, and for the forms with a C
// composition.
//
//   e U+0301 -> U+00E9 (C)        U+00E9 -> e U+0301 (D)        U+FB01 (fi ligature) -> f i (K)
//   U+212B (Angstrom sign) -> U+00C5 (C)        U+1100 U+1161 -> U+AC00 (C, Hangul)

enum class NormalForm { NFC, NFD, NFKC, NFKD };

/// text: well-formed UTF-8. Time is O(n log n) also where all of a text is marks.
std::string normalized(std::string_view text, NormalForm form);

// GPT-2's byte alphabet: each byte is written as one printable code point, so that byte strings are text for the BPE.
//
//   bytes 21..7E, A1..AC, AE..FF   the code point of the same number
//   the other 68, ascending        U+0100, U+0101, ... U+0143       (space 20 -> U+0120, newline 0A -> U+010A)

/// Appends the written form of each byte of `bytes`.
void append_byte_letters(std::string& text, std::string_view bytes);
/// The byte a code point stands for, or -1.
int byte_of_letter(std::uint32_t code_point);

// Finding a text in a text in time that grows with the two alone; std::string's find() takes up to their product.

/// Returns the place at which `what` first stands in `text` from byte `from` on, or npos.
inline std::size_t find_text(std::string_view text, std::string_view what, std::size_t from = 0) {
  if (from > text.size()) return std::string_view::npos;
  // glibc's memmem() is linear, and so are musl's and the BSDs'.
  const void* const found = ::memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

// As tables of tokens and of rules are written.
using io::from_base64;
using io::to_base64;

}  // namespace fp8::text
