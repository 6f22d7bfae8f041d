// SPDX-License-Identifier: Apache-2.0
// Edit distance against its textbook values and its recursive definition.
#include <gtest/gtest.h>

#include <random>

#include "fp8/configs/name_patterns.h"

namespace fp8::configs {
namespace {

std::size_t by_definition(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::size_t replaced = by_definition(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1);
  const bool exchanged = a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0];
  return std::min({replaced, by_definition(a.substr(1), b) + 1, by_definition(a, b.substr(1)) + 1,
                   exchanged ? by_definition(a.substr(2), b.substr(2)) + 1 : replaced});
}

TEST(Closest, TextbookDistances) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("MODE", "mode"), 0u);
  EXPECT_EQ(edit_distance("hlep", "help"), 1u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // an exchange and an insertion between the two would be 2
}

TEST(Closest, EqualsTheRecursiveDefinition) {
  std::mt19937 random(3);
  const auto word = [&] {
    std::string text(random() % 6, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 500; ++i) {
    const std::string a = word(), b = word();
    EXPECT_EQ(edit_distance(a, b), by_definition(a, b)) << a << " " << b;
  }
}

TEST(Closest, FindsTheNearestAndBoundsTheWork) {
  EXPECT_EQ(closest("obsever", {"mode", "observer", "method"}), "observer");
  EXPECT_EQ(closest("x", {}), "");
  EXPECT_EQ(closest("", {"ab", "a"}), "a");
  EXPECT_EQ(closest(std::string(100000, 'z'), {"mode"}), "mode");
}

}  // namespace
}  // namespace fp8::configs
