// SPDX-License-Identifier: Apache-2.0

#include "fp8/tools/commands/options/input_options.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

struct DataFilesTest : ::testing::Test {
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
  EXPECT_ERROR(UsageError, found({"*.json"}), "*.json', which no file fits");
  EXPECT_THROW(data_files("--data", {"-", "-"}), UsageError);
  EXPECT_EQ(data_files("--data", {"-"}), text::DataFiles{"-"});
}

// Shares of forwards: all samples, each once, in order, and never a part of a forward.

TEST(Forwards, SharesAreOfWholeOnes) {
  const std::vector<std::int64_t> sizes = {2, 2, 1, 4, 2};  // samples 0-1, 2-3, 4, 5-8, 9-10
  const Forwards forwards(11, [&](std::int64_t first) {
    std::int64_t at = 0;
    for (const auto size : sizes) {
      if (at == first) return size;
      at += size;
    }
    ADD_FAILURE() << first;
    return std::int64_t{1};
  });
  EXPECT_EQ(forwards.count(), 5);
  EXPECT_EQ(forwards.samples(), 11);
  for (const std::int64_t shares : {1, 2, 3, 5, 8, 1000}) {
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < shares; ++i) {
      const auto share = forwards.share(i, shares);
      EXPECT_EQ(share.first, next);
      next += share.count;
      const auto starts = forwards.starts(share);
      EXPECT_EQ(starts.front(), share.first);
      EXPECT_EQ(starts.back(), next);
    }
    EXPECT_EQ(next, 11) << shares;
  }
  EXPECT_THAT(forwards.starts(forwards.share(1, 2)), ElementsAre(4, 5, 9, 11));
  EXPECT_THAT(forwards.starts(forwards.share(0, 1000)), ElementsAre(0));
}

TEST(Forwards, OfNothing) {
  const Forwards none(0, [](std::int64_t) { return 1; });
  EXPECT_EQ(none.count(), 0);
  EXPECT_EQ(none.share(0, 3).count, 0);
}

}  // namespace
}  // namespace fp8::commands
