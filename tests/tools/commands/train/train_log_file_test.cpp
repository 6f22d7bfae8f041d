// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_log_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

std::filesystem::path log_of(const test::TempDir& folder, const std::string& text) {
  std::ofstream(folder / "log.jsonl") << text;
  return folder / "log.jsonl";
}

TEST(TrainLogFile, IsReadLineByLineAndALastOneCutShortIsLeftOut) {
  const test::TempDir folder;
  const auto entries = read_log(log_of(folder, "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": null}\n{\"st"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["loss"], 2.5);
  EXPECT_TRUE(entries[1]["loss"].is_null());
}

TEST(TrainLogFile, EndsWhereTheCallerHasSeenEnough) {
  const test::TempDir folder;
  const std::string first = "{\"step\": 1, \"loss\": 2}\n";
  std::size_t calls = 0, end = 0;
  for_each_step(log_of(folder, first + "no step\n"), [&](const io::Json&, std::size_t behind) {
    ++calls;
    end = behind;
    return false;
  });
  EXPECT_EQ(calls, 1u);
  EXPECT_EQ(end, first.size());
}

TEST(TrainLogFile, AnythingElseIsRefusedWithFileAndLine) {
  const test::TempDir folder;
  for (const char* line : {"{\"step\": 1}", "[]", "{\"step\": 1.5, \"loss\": 2}", "step"}) {
    const auto path = log_of(folder, std::string("{\"step\": 1, \"loss\": 2}\n") + line + "\n");
    try {
      read_log(path);
      ADD_FAILURE() << line;
    } catch (const io::Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("log.jsonl, line 2"));
    }
  }
}

}  // namespace
}  // namespace fp8::commands
