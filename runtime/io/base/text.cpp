// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

/// Code points of the categories Cc, Cf, Zl and Zp (Unicode 16).
constexpr CodeRange kNotDrawn[] = {{0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x600, 0x605},
                                   {0x61c, 0x61c},     {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},
                                   {0x8e2, 0x8e2},     {0x180e, 0x180e},   {0x200b, 0x200f},   {0x2028, 0x202e},
                                   {0x2060, 0x2064},   {0x2066, 0x206f},   {0xfeff, 0xfeff},   {0xfff9, 0xfffb},
                                   {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3},
                                   {0x1d173, 0x1d17a}, {0xe0001, 0xe0001}, {0xe0020, 0xe007f}};

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[at + i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                             : (first & 0xf0) == 0xe0         ? 3
                             : first >= 0xf0 && first <= 0xf4 ? 4
                                                              : 0;
  if (length == 0 || length > text.size() - at) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // The first continuation byte decides over overlong forms (e0 80..9f, f0 80..8f), surrogates (ed a0..) and > 10ffff
  // (f4 90..).
  const std::uint8_t second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return length;
}

std::uint32_t utf8_decode(std::string_view text, std::size_t at, std::size_t length) {
  const auto first = static_cast<std::uint8_t>(text[at]);
  if (length == 1) return first;
  std::uint32_t code = first & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<std::uint8_t>(text[at + i]) & 0x3f);
  return code;
}

void utf8_append(std::string& out, std::uint32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

bool is_drawn(std::uint32_t code) { return (code >= 0x20 && code < 0x7f) || !is_in(kNotDrawn, code); }

void append_escaped(std::string& out, std::uint32_t code) {
  if (code > 0xffff) {
    append_escaped(out, 0xd800 + ((code - 0x10000) >> 10));
    code = 0xdc00 + ((code - 0x10000) & 0x3ff);
  }
  append_hex(out += "\\u", code, 4);
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace fp8::io
