// SPDX-License-Identifier: Apache-2.0
// Against the numbers of the reference library (libxxhash 0.8.1, XXH64 with seed 0).
#include "fp8/runtime/io/base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
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

// Against the test vectors of FNV's authors (Fowler, Noll, Vo).

std::string of_bytes(std::string_view bytes) {
  Fnv hash;
  hash.add(bytes.data(), bytes.size());
  return hash.text();
}

TEST(Fnv, IsFnv1a) {
  EXPECT_EQ(of_bytes(""), "cbf29ce484222325");
  EXPECT_EQ(of_bytes("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(of_bytes("foobar"), "85944171f73967e8");
}

TEST(Fnv, TextsEndInAZero) {
  Fnv hash;
  hash.add("foobar");
  EXPECT_EQ(hash.text(), "34531ca7168b8f38");
  Fnv parts, whole;
  parts.add("foo"), parts.add("bar"), whole.add("foobar");
  EXPECT_NE(parts.value(), whole.value());
}

TEST(Fnv, FloatsAreTheirBytes) {
  const std::vector<float> values = {1.0f, -2.5f};
  Fnv hash;
  hash.add(values);
  EXPECT_EQ(hash.text(), of_bytes({reinterpret_cast<const char*>(values.data()), 8}));
}

TEST(Fnv, AStepTakesAWholeWord) {
  Fnv hash, byte;
  hash.step('a'), byte.add("a", 1);
  EXPECT_EQ(hash.value(), byte.value());
  hash.step(0x0102030405060708u);
  EXPECT_EQ(hash.value(), (byte.value() ^ 0x0102030405060708u) * 0x100000001b3u);
}

// Against the vectors of NIST (FIPS 180-4's examples, SHA256ShortMsg, SHA256LongMsg's million) and of RFC 4231.

std::string digits_of(const std::string& bytes) {
  std::string digits;
  for (const unsigned char byte : bytes)
    for (const int shift : {4, 0}) digits += "0123456789abcdef"[byte >> shift & 15];
  return digits;
}

TEST(Sha256, IsNists) {
  EXPECT_EQ(digits_of(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digits_of(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digits_of(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digits_of(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, HmacIsRfc4231s) {
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace fp8::io
