// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/table.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fp8::commands {
namespace {

TEST(Table, AlignsColumnsByCharactersWithoutTrailingSpaces) {
  Table table({"name", ">bytes", "note"});
  table.row({"caf\xC3\xA9", "7", ""});
  table.row({"longer name", "1,000", "x"});
  EXPECT_EQ(table.text(),
            "name         bytes  note\n"
            "caf\xC3\xA9             7\n"
            "longer name  1,000  x\n");
}

TEST(Table, RowsHaveAsManyCellsAsTheHeader) {
  Table table({"a", "b"});
  EXPECT_THROW(table.row({"1"}), std::logic_error);
}

}  // namespace
}  // namespace fp8::commands
