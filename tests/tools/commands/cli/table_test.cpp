// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/table.h"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>

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

Table wide() {
  Table table({"module", ">weight\nSQNR dB", ">weight\namax", "why"});
  table.row({"model.layers.10.self_attn.q_proj", "31.5", "0.7", "its scale is that of its neighbours"});
  return table;
}

TEST(Table, WhatFitsStaysAsItIs) {
  EXPECT_EQ(wide().text(), wide().text(100));
  EXPECT_EQ(wide().text().substr(0, wide().text().find("\n")),
            "module                            weight SQNR dB  weight amax  why");
}

TEST(Table, FitsByHeadersOfTwoLinesThenProseThenNames) {
  EXPECT_EQ(wide().text(76),
            "                                   weight  weight\n"
            "module                            SQNR dB    amax  why\n"
            "model.layers.10.self_attn.q_proj     31.5     0.7  its scale is that of its\n"
            "                                                   neighbours\n");
  EXPECT_EQ(wide().text(64),
            "                        weight  weight\n"
            "module                 SQNR dB    amax  why\n"
            "model...f_attn.q_proj     31.5     0.7  its scale is that of its\n"
            "                                        neighbours\n");
}

TEST(Table, ColumnsWithoutRoomAreNamed) {
  EXPECT_EQ(wide().text(40),
            "                          weight  weight\n"
            "module                   SQNR dB    amax\n"
            "model.l..lf_attn.q_proj     31.5     0.7\n"
            "(no room for: why; COLUMNS or a pipe makes room)\n");
}

TEST(Table, NoLineIsLongerThanTheTerminal) {
  for (const std::size_t width : {30, 80, 120, 200}) {
    std::istringstream lines(wide().text(width));
    for (std::string line; std::getline(lines, line);) {
      if (line[0] == '(') continue;
      EXPECT_LE(line.size(), width);
    }
  }
}

}  // namespace
}  // namespace fp8::commands
