// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/options/input_options.h"

#include <gmock/gmock.h>

#include <fstream>

#include "fp8/tools/commands/cli/context.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

class DataFilesTest : public ::testing::Test {
 protected:
  DataFilesTest() {
    fs::create_directories(folder / "a/deep");
    for (const char* const name : {"b.txt", "a.txt", "c.md", ".hidden.txt", "[x].txt", "a/d.txt", "a/deep/e.txt"})
      std::ofstream(folder / name) << "x";
    fs::create_directory_symlink(folder / "a", folder / "loop");
  }
  /// Below the folder.
  std::vector<std::string> found(const std::vector<std::string>& patterns) const {
    std::vector<std::string> names, all;
    for (const auto& pattern : patterns) names.push_back((folder / pattern).string());
    for (const auto& file : data_files("--data", names)) all.push_back(file.lexically_relative(folder / "").string());
    return all;
  }
  test::TempDir folder;
};

TEST_F(DataFilesTest, PatternsInTheOrderOfTheirBytes) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(found({"*.txt"}), (Names{"[x].txt", "a.txt", "b.txt"}));
  EXPECT_EQ(found({"?.txt", "c.md"}), (Names{"a.txt", "b.txt", "c.md"}));
  EXPECT_EQ(found({"b.txt", "[ac].*"}), (Names{"b.txt", "a.txt", "c.md"}));
  EXPECT_EQ(found({"[x].txt"}), Names{"[x].txt"});  // there by its name
  EXPECT_EQ(found({"*/*.txt"}), (Names{"a/d.txt", "loop/d.txt"}));
  EXPECT_EQ(found({"**/*.txt"}), (Names{"[x].txt", "a.txt", "b.txt", "a/d.txt", "a/deep/e.txt"}));
  EXPECT_EQ(found({"missing.txt"}), Names{"missing.txt"});  // who reads it says so
}

TEST_F(DataFilesTest, WhatNoFileFits) {
  try {
    found({"*.json"});
    ADD_FAILURE() << "no UsageError";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("*.json', which no file fits"));
  }
  EXPECT_THROW(data_files("--data", {"-", "-"}), UsageError);
  EXPECT_EQ(data_files("--data", {"-"}), text::DataFiles{"-"});
}

}  // namespace
}  // namespace fp8::commands
