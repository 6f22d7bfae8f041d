// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/throws_with.h"

namespace fp8::io {
namespace {

using testing::ElementsAre;
using Numbers = Registry<int>;

Numbers::Pointer number(int value) { return std::make_shared<const int>(value); }

TEST(Registry, RowsAreThoseBuiltInThenThoseThatLive) {
  Numbers table(std::map<std::string, int>{{"one", 1}, {"two", 2}});
  Numbers::Pointer kept;
  {
    const Numbers::Entry three(table, "three", number(3));
    EXPECT_THAT(table.names(), ElementsAre("one", "two", "three"));
    EXPECT_EQ(three.row(), 3);
    kept = table.find("three");
  }
  EXPECT_EQ(table.find("three"), nullptr);
  EXPECT_EQ(*kept, 3);
  EXPECT_EQ(*table.find_if([](const auto& row) { return *row.row > 1; }), 2);
}

TEST(Registry, ANameStandsOnce) {
  Numbers table;
  const Numbers::Entry one(table, "one", number(1));
  EXPECT_EQ(
      test::error_of<std::invalid_argument>([&] { const Numbers::Entry entry(table, "one", number(2), "taken"); }),
      "taken");
  const auto refuse = [](const auto& rows) { throw std::invalid_argument(rows[0].name + " stands before"); };
  EXPECT_EQ(test::error_of([&] { const Numbers::Entry entry(table, "two", number(2), "", refuse); }),
            "one stands before");
  EXPECT_THAT(table.names(), ElementsAre("one"));
}

}  // namespace
}  // namespace fp8::io
