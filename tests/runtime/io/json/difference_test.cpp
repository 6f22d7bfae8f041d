// SPDX-License-Identifier: Apache-2.0
// The first leaf in which two objects differ, where it is and what stands there.
#include <gtest/gtest.h>

#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::io {
namespace {

TEST(Difference, OfALeaf) {
  const Json was = {{"a", 1}, {"option", {{"format", "fp8"}, {"rows", 3}}}};
  Json is = was;
  EXPECT_FALSE(first_difference(was, is).has_value());
  EXPECT_EQ(difference(was, is), "");
  is["option"]["format"] = "modelopt";
  const auto found = first_difference(was, is);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, "option: format");
  EXPECT_EQ(found->was, "\"fp8\"");
  EXPECT_EQ(found->is, "\"modelopt\"");
  EXPECT_EQ(difference(was, is), R"('option: format' was "fp8", is "modelopt")");
}

TEST(Difference, OfWhatStandsInOneOnly) {
  EXPECT_EQ(difference({{"a", 1}}, {{"a", 1}, {"b", {{"c", 2}}}}), "'b' was nothing, is {\"c\":2}");
  EXPECT_EQ(difference({{"a", 1}, {"b", 2}}, {{"a", 1}}), "'b' was 2, is nothing");
  EXPECT_EQ(difference({{"a", {1, 2}}}, {{"a", {1, 3}}}), "'a' was [1,2], is [1,3]");
}

TEST(Difference, ShowsNoMoreThanALine) {
  const std::string text = difference({{"a", std::string(1000, 'x')}}, {{"a", "y\n"}});
  EXPECT_LT(text.size(), 200u);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace fp8::io
