// SPDX-License-Identifier: Apache-2.0
// What a journal makes of a file that was cut short at any byte, or damaged in any byte.
#include <thread>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/json/resumable_file.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using JournalTest = IoTest;
using testing::HasSubstr;

std::vector<std::string> found(const std::filesystem::path& path) {
  std::vector<std::string> texts;
  const Journal journal(path);
  for (const auto& entry : journal.entries()) texts.push_back(entry.dump());
  return texts;
}

TEST_F(JournalTest, KeepsWhatWasAppended) {
  {
    Journal journal(path("j"));
    EXPECT_TRUE(journal.entries().empty());
    journal.append({{"identity", 1}});
    journal.append({{"unit", "a\n\"b\""}});
  }
  const std::string text = "{\"unit\":\"a\\n\\\"b\\\"\"}";
  EXPECT_THAT(bytes_of(path("j")),
              testing::EndsWith("{\"xxh64\":\"" + checksum_text(checksum(text)) + "\",\"entry\":" + text + "}\n"));
  EXPECT_THAT(found(path("j")), testing::ElementsAre("{\"identity\":1}", text));
  Journal journal(path("j"));
  journal.clear();
  EXPECT_TRUE(journal.entries().empty());
  journal.append({{"c", 3}});
  EXPECT_THAT(found(path("j")), testing::ElementsAre("{\"c\":3}"));
}

TEST_F(JournalTest, CutAnywhereItKeepsTheWholeLines) {
  {
    Journal journal(path("j"));
    for (int i = 0; i < 3; ++i) journal.append({{"unit", i}});
  }
  const std::string whole = bytes_of(path("j"));
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    put("j", whole.substr(0, size));
    const auto lines =
        static_cast<std::size_t>(std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size), '\n'));
    Journal journal(path("j"));
    ASSERT_EQ(journal.entries().size(), lines) << size;
    journal.append({{"unit", 9}});
    const auto after = found(path("j"));
    ASSERT_EQ(after.size(), lines + 1) << size;
    EXPECT_EQ(after.back(), "{\"unit\":9}");
  }
}

TEST_F(JournalTest, ADamagedByteLosesItsLineOnly) {
  {
    Journal journal(path("j"));
    for (int i = 0; i < 3; ++i) journal.append({{"unit", i}});
  }
  const std::string whole = bytes_of(path("j"));
  const std::size_t line = whole.size() / 3;
  for (std::size_t at = line; at + 1 < 2 * line; ++at) {  // all of the second but its end
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    put("j", damaged);
    if (damaged[at] == '\n') continue;
    Journal journal(path("j"));
    EXPECT_EQ(journal.damaged(), 1u) << at;
    ASSERT_EQ(journal.entries().size(), 2u) << at;
    EXPECT_EQ(journal.entries()[0]["unit"], 0);
    EXPECT_EQ(journal.entries()[1]["unit"], 2);
  }
}

TEST_F(JournalTest, LinesOfManyThreadsStayWhole) {
  {
    Journal journal(path("j"));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) journal.append({{"thread", t}, {"i", i}});
      });
    }
    for (auto& t : threads) t.join();
  }
  Journal journal(path("j"));
  EXPECT_EQ(journal.entries().size(), 800u);
  EXPECT_EQ(journal.damaged(), 0u);
}

TEST_F(JournalTest, WhatIsNoFileIsRefused) {
  std::filesystem::create_directory(path("folder"));
  EXPECT_THAT(test::one_line_error<Error>([&] { Journal journal(path("folder")); }), HasSubstr("folder"));
  std::filesystem::create_symlink(path("elsewhere"), path("link"));
  EXPECT_THAT(test::one_line_error<Error>([&] { Journal journal(path("link")); }), HasSubstr("link"));
  EXPECT_FALSE(std::filesystem::exists(path("elsewhere")));
}

}  // namespace
}  // namespace fp8::io
