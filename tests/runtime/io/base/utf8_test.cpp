// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

// RFC 3629's definition the long way round: every code point has exactly one encoding, by its number of bits.
std::string encode(std::uint32_t code) {
  std::string out;
  const int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const std::uint32_t lead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(lead[extra] + code / (1u << (6 * extra)));
  for (int i = extra - 1; i >= 0; --i) out += static_cast<char>(0x80 + code / (1u << (6 * i)) % 64);
  return out;
}

TEST(Utf8, EveryCodePointGoesThereAndBack) {
  for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = encode(code);
    std::string ours;
    utf8_append(ours, code);
    ASSERT_EQ(ours, text) << code;
    ASSERT_EQ(utf8_length(text, 0), text.size()) << code;
    ASSERT_EQ(utf8_decode(text, 0, text.size()), code);
  }
}

TEST(Utf8, NothingElseOfUpToThreeBytesIsValid) {
  std::vector<bool> valid(1 << 24, false);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::uint32_t key = 0;
    const std::string text = encode(code);
    for (const char c : text) key = key << 8 | static_cast<unsigned char>(c);
    if (text.size() == 3) valid[key] = true;
  }
  for (std::uint32_t key = 0; key < 1 << 24; ++key) {
    const std::string text = {static_cast<char>(key >> 16), static_cast<char>(key >> 8), static_cast<char>(key)};
    ASSERT_EQ(utf8_length(text, 0) == 3, valid[key]) << std::hex << key;
  }
}

TEST(Utf8, Refuses) {
  const char* bad[] = {"\x80",
                       "\xc0\x80",
                       "\xc1\xbf",
                       "\xe0\x80\x80",
                       "\xed\xa0\x80",
                       "\xf0\x80\x80\x80",
                       "\xf4\x90\x80\x80",
                       "\xf5\x80\x80\x80",
                       "\xff",
                       "\xc3",
                       "\xe2\x82",
                       "\xf0\x9f\x98"};
  for (const char* text : bad) EXPECT_FALSE(is_utf8(text));
  EXPECT_TRUE(
      is_utf8("gr\xc3\xb6\xc3\x9f"
              "e \xf0\x9f\x98\x80"));
}

}  // namespace
}  // namespace fp8::io
