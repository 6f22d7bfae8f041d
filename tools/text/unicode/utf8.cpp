// SPDX-License-Identifier: Apache-2.0
// See utf8.h. The accepted byte ranges are Unicode's table 3-7.
#include "fp8/tools/text/unicode/utf8.h"

namespace fp8::text {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

struct Checked {
  std::size_t size;  // bytes of the code point, or of the maximal ill-formed subpart
  bool valid;
};

// Second bytes are narrower than 80..BF after E0 (no overlong), ED (no surrogates), F0 (no overlong), F4 (<= U+10FFFF).
Checked check_at(std::string_view text, std::size_t i) {
  const unsigned char lead = byte_at(text, i);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t size = sequence_size(lead);
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t k = 1; k < size; ++k) {
    if (i + k >= text.size()) return {k, false};
    const unsigned char next = byte_at(text, i + k);
    if (next < (k == 1 ? low : 0x80) || next > (k == 1 ? high : 0xBF)) return {k, false};
  }
  return {size, true};
}

}  // namespace

CodePoint decode_at(std::string_view text, std::size_t position) {
  const unsigned char lead = byte_at(text, position);
  const std::size_t size = sequence_size(lead);
  if (size == 1 || position + size > text.size()) return {lead, 1};
  std::uint32_t value = lead & (0xFFu >> (size + 1));
  for (std::size_t k = 1; k < size; ++k) value = value << 6 | (byte_at(text, position + k) & 0x3F);
  return {value, size};
}

CodePoint decode_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (byte_at(text, begin) & 0xC0) == 0x80) --begin;
  return decode_at(text, begin);
}

std::string sanitize(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Checked checked = check_at(text, i);
    result.append(checked.valid ? text.substr(i, checked.size) : std::string_view("\xEF\xBF\xBD"));
    i += checked.size;
  }
  return result;
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace fp8::text
