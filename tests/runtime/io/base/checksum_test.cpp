// SPDX-License-Identifier: Apache-2.0
// Against the numbers of the reference library (libxxhash 0.8.1, XXH64 with seed 0).
#include "fp8/runtime/io/base/checksum.h"

#include <gtest/gtest.h>

#include <utility>

namespace fp8::io {
namespace {

/// Byte i is (i * i + 7 * i) mod 251.
std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * i + 7 * i) % 251);
  return bytes;
}

constexpr std::pair<std::size_t, const char*> kSums[] = {
    {0, "ef46db3751d8e999"},    {1, "e934a84adb052768"},    {3, "bb3a592908a981a8"},  {4, "798a8b758de10b9c"},
    {7, "c524fe6186d68234"},    {8, "628b254fd17d4862"},    {31, "7d36fafd7e8f54d5"}, {32, "8ca809248427ab85"},
    {33, "701316fef6f836d3"},   {63, "abdc7bc152c8c7f4"},   {64, "134758ba0f580486"}, {100, "3553324796eea83a"},
    {1000, "e83f2963bc234754"}, {65541, "7222e51c39c60f9a"}};

TEST(Checksum, IsXxh64) {
  EXPECT_EQ(checksum_text(checksum("abc")), "44bc2cf5ad770999");
  EXPECT_EQ(checksum_text(checksum("Nobody inspects the spammish repetition")), "fbcea83c8a378bf1");
  for (const auto& [size, sum] : kSums) EXPECT_EQ(checksum_text(checksum(pattern(size))), sum) << size;
}

TEST(Checksum, PiecesMakeNoDifference) {
  const std::string bytes = pattern(1000);
  for (std::size_t piece : {1u, 5u, 31u, 32u, 33u, 64u, 999u}) {
    Checksum sum;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      sum.value();  // may be asked at any time
      sum.update(bytes.data() + at, std::min(piece, bytes.size() - at));
    }
    EXPECT_EQ(checksum_text(sum.value()), "e83f2963bc234754") << piece;
  }
}

TEST(Checksum, OneBitOrTheOrderMatters) {
  const std::string text = "sixteen bytes..., and five";
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto other = text;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_NE(checksum(other), checksum(text));
    }
  }
  EXPECT_NE(checksum("aaaaaaaabbbbbbbb"), checksum("bbbbbbbbaaaaaaaa"));
}

}  // namespace
}  // namespace fp8::io
