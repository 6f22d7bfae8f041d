// SPDX-License-Identifier: Apache-2.0
// Against the numbers that the reference code of splitmix64 (Vigna, prng.di.unimi.it/splitmix64.c) gives.
#include "fp8/runtime/kernels/random_bits.h"

#include <gtest/gtest.h>

#include <bit>
#include <iterator>

namespace fp8::kernels {
namespace {

TEST(RandomBits, AreThoseOfSplitmix64) {
  constexpr std::uint64_t kOf1234567[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                          4593380528125082431u, 16408922859458223821u};
  for (std::uint64_t i = 0; i < std::size(kOf1234567); ++i) EXPECT_EQ(splitmix64(1234567, i), kOf1234567[i]) << i;
  EXPECT_EQ(splitmix64(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(splitmix64(0, 1), 0x6e789e6aa1b965f4u);
}

TEST(RandomBits, TheLastNumbersWrapAround) {
  EXPECT_EQ(splitmix64(7, ~std::uint64_t{0}), mix(7));
  EXPECT_EQ(mix(0), 0u);
}

TEST(RandomBits, OneBitChangesAboutHalfOfThem) {
  for (int bit = 0; bit < 64; ++bit) {
    const int changed = std::popcount(mix(0x0123456789abcdefu) ^ mix(0x0123456789abcdefu ^ (std::uint64_t{1} << bit)));
    EXPECT_GT(changed, 10) << bit;
    EXPECT_LT(changed, 54) << bit;
  }
}

}  // namespace
}  // namespace fp8::kernels
