// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/output.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fp8::commands {
namespace {

TEST(Output, OneLine) {
  EXPECT_EQ(one_line("a\nb\r\n\tc\n"), "a b c");
  EXPECT_EQ(one_line("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(one_line("\x1b[31mred"), "[31mred");
  EXPECT_EQ(one_line(""), "");
}

TEST(Output, AnAllocatorsMessageIsOneForPeople) {
  EXPECT_EQ(memory_message("[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you "
                           "tried to allocate 3349936 bytes. "
                           "Error code 12 (Cannot allocate memory)"),
            "out of memory: 3.3 MB more are not to be had");
  EXPECT_EQ(
      memory_message("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99999999999999999999999 bytes"),
      "out of memory");
  EXPECT_EQ(memory_message("something else"), "something else");
}

TEST(Output, Grouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(grouped(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(Output, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(3349936), "3.3 MB");
  EXPECT_EQ(human_bytes(999999), "1.0 MB");
  EXPECT_EQ(human_bytes(INT64_MAX), "9223.4 PB");
}

TEST(Output, HumanSeconds) {
  EXPECT_EQ(human_seconds(0.4242), "0.42 s");
  EXPECT_EQ(human_seconds(12.34), "12.3 s");
  EXPECT_EQ(human_seconds(200), "3 min 20 s");
  EXPECT_EQ(human_seconds(7500), "2 h 5 min");
}

}  // namespace
}  // namespace fp8::commands
