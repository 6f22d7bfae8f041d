// SPDX-License-Identifier: Apache-2.0
// Against the vectors of NIST (FIPS 180-4's examples, SHA256ShortMsg, SHA256LongMsg's million) and of RFC 4231.
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::io {
namespace {

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
