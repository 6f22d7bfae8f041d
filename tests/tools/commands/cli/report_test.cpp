// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/report.h"

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
  EXPECT_EQ(table.text(0),
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
  EXPECT_EQ(wide().text(0), wide().text(100));
  EXPECT_EQ(wide().text(0).substr(0, wide().text(0).find("\n")),
            "module                            weight SQNR dB  weight amax  why");
}

TEST(Table, FitsByHeadersOfTwoLinesThenProseThenNames) {
  EXPECT_EQ(wide().text(76),
            "                                   weight  weight\n"
            "module                            SQNR dB    amax  why\n"
            "model.layers.10.self_attn.q_proj     31.5     0.7  its scale is that of its\n"
            "                                                   neighbours\n");
  EXPECT_EQ(wide().text(64),
            "                              weight  weight\n"
            "module                       SQNR dB    amax  why\n"
            "model.la...self_attn.q_proj     31.5     0.7  its scale is that\n"
            "                                              of its neighbours\n");
}

TEST(Table, ColumnsWithoutRoomAreNamed) {
  EXPECT_EQ(wide().text(40),
            "                          weight  weight\n"
            "module                   SQNR dB    amax\n"
            "model.l..lf_attn.q_proj     31.5     0.7\n"
            "(no room for: why; COLUMNS or a pipe makes room)\n");
}

TEST(Table, LongTextsOnTheRightGoOnBelowThemselves) {
  Table table({"quantize", ">DIR"});
  table.row({"scheme", "E4M3 channel weights, dynamic token activations, ocp"});
  table.row({"source", "3.3 MB"});
  EXPECT_EQ(table.text(40),
            "quantize                             DIR\n"
            "scheme     E4M3 channel weights, dynamic\n"
            "                  token activations, ocp\n"
            "source                            3.3 MB\n");
}

TEST(Broken, AtSpaces) {
  EXPECT_EQ(broken("one two three four\nfive\n\n", 0), "one two three four\nfive\n\n");
  EXPECT_EQ(broken("a sentence of six words here\nfive", 20), "a sentence of six\n  words here\nfive\n");
}

TEST(Fact, GoesOnBelowItself) {
  EXPECT_EQ(fact("size", "1.8 MB in 67 tensors", 0), "size    1.8 MB in 67 tensors\n");
  EXPECT_EQ(fact("damage", "28 modules, all of them within 1.5 dB", 40),
            "damage  28 modules, all of them within\n        1.5 dB\n");
  EXPECT_EQ(fact("form", "", 80), "form\n");
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
