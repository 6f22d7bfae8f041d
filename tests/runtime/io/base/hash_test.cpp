// SPDX-License-Identifier: Apache-2.0
// Against the test vectors of FNV's authors (Fowler, Noll, Vo).
#include <gtest/gtest.h>

#include <string_view>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::io {
namespace {

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

}  // namespace
}  // namespace fp8::io
