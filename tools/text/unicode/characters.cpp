// SPDX-License-Identifier: Apache-2.0
// See characters.h.
#include "fp8/tools/text/unicode/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/text/unicode/utf8.h"

namespace fp8::text {
namespace {

struct Range {
  std::uint32_t first, last;
};

// Marks, punctuation and control characters that Unicode has had since version 9; what lies between is of no such kind.
constexpr Range kLater[] = {
    {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x8E2},     {0x9FD, 0x9FE},     {0xA76, 0xA76},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC3C},     {0xC77, 0xC77},     {0xC84, 0xC84},
    {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},
    {0x180F, 0x1886},   {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E5D},
    {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F89},
    {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111CF, 0x111CF}, {0x1123E, 0x11241}, {0x1133B, 0x1133B},
    {0x11438, 0x1145E}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182F, 0x11FFF}, {0x12FF1, 0x13455},
    {0x16E97, 0x16F4F}, {0x16FE2, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF}, {0x1E944, 0x1E95F}};

// The same of marks of all kinds, since version 10.
constexpr Range kLaterMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},     {0xB55, 0xB55},
    {0xC04, 0xC3C},     {0xCF3, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
    {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
    {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x11A99}, {0x11D31, 0x13455}, {0x16F4F, 0x16F4F},
    {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1}, {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E4EF}};

template <std::size_t N>
bool in_ranges(std::uint32_t c, const Range (&ranges)[N]) {
  const auto* const found = std::find_if(std::begin(ranges), std::end(ranges), [c](Range r) { return c <= r.last; });
  return found != std::end(ranges) && c >= found->first;
}

int category(std::uint32_t code_point) { return utf8proc_category(static_cast<utf8proc_int32_t>(code_point)); }

// Of a set of kinds, as Unicode 8 had them.
bool is_one_of(std::uint32_t c, int first, int last) {
  const int found = category(c);
  return found >= first && found <= last && !in_ranges(c, kLater);
}

// The lower case of letters that are later than utf8proc's tables, or 0.
std::uint32_t later_lower(std::uint32_t c) {
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
  switch (c) {
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    default:
      return 0;
  }
}

}  // namespace

bool is_punctuation(std::uint32_t c) {
  if (c < 0x80)
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
  return c == 0x166D || c == 0x111C9 || is_one_of(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_nonspacing_mark(std::uint32_t c) {
  return c >= 0x300 && (c == 0x1734 || (c != 0x111C9 && is_one_of(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN)));
}

bool is_mark(std::uint32_t c) {
  if (c < 0x300) return false;
  const int found = category(c);
  const bool now = found >= UTF8PROC_CATEGORY_MN && found <= UTF8PROC_CATEGORY_ME && !in_ranges(c, kLaterMarks);
  return now || c == 0x1CF2 || c == 0x1CF3;
}

bool is_control(std::uint32_t c) {
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  return is_one_of(c, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool is_ideograph(std::uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(std::string& text, std::uint32_t c) {
  if (c < 0x80) {
    text.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    text.append("i\xCC\x87");
  } else {
    const std::uint32_t later = later_lower(c);
    const auto lower = later ? later : static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    io::utf8_append(text, static_cast<char32_t>(lower));
  }
}

std::size_t grapheme_size(std::string_view text, std::size_t begin) {
  CodePoint last = decode_at(text, begin);
  std::size_t end = begin + last.size;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const CodePoint next = decode_at(text, end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state))
      break;
    end += next.size;
    last = next;
  }
  return end - begin;
}

}  // namespace fp8::text
