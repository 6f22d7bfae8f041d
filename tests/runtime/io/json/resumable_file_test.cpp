// SPDX-License-Identifier: Apache-2.0
// A journal of a file that was cut short at any byte, or damaged in any byte.
#include "fp8/runtime/io/json/resumable_file.h"

#include <fcntl.h>

#include "fp8/runtime/io/base/checksum.h"
#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"
#include "support/threads.h"

namespace fp8::io {
namespace {

using JournalTest = IoTest;

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
    test::on_threads(4, [&](int t) {
      for (int i = 0; i < 200; ++i) journal.append({{"thread", t}, {"i", i}});
    });
  }
  Journal journal(path("j"));
  EXPECT_EQ(journal.entries().size(), 800u);
  EXPECT_EQ(journal.damaged(), 0u);
}

TEST_F(JournalTest, WhatIsNoFileIsRefused) {
  std::filesystem::create_directory(path("folder"));
  EXPECT_IO_ERROR(Journal journal(path("folder")), HasSubstr("folder"));
  std::filesystem::create_symlink(path("elsewhere"), path("link"));
  EXPECT_IO_ERROR(Journal journal(path("link")), HasSubstr("link"));
  EXPECT_FALSE(std::filesystem::exists(path("elsewhere")));
}

// Files filled in place: their size, what survives from one run to the next, full disks, copies within the kernel.

using PlacedFileTest = IoTest;

TEST_F(PlacedFileTest, HasItsSizeAndKeepsItsBytes) {
  {
    PlacedFile file(path("f"), 10, "shown");
    EXPECT_EQ(bytes_of(path("f")), std::string(10, '\0'));
    file.write(7, "xyz", 3);
    file.write(0, "ab", 2);
  }
  {
    PlacedFile file(path("f"), 10, "shown");  // another run continues
    char text[3];
    file.read(7, text, 3);
    EXPECT_EQ(std::string(text, 3), "xyz");
    file.write(2, "c", 1);
    EXPECT_IO_ERROR(file.read(9, text, 2), HasSubstr("shown: ends at byte 10"));
  }
  EXPECT_EQ(bytes_of(path("f")), std::string("abc\0\0\0\0xyz", 10));
  PlacedFile smaller(path("f"), 4, "shown");
  EXPECT_EQ(bytes_of(path("f")), std::string("abc\0", 4));
  struct stat status;
  PlacedFile large(path("large"), 1 << 20, "shown");
  ASSERT_EQ(::stat(path("large").c_str(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, 1 << 20);  // reserved, not a hole
}

TEST_F(PlacedFileTest, CopiesRangesOfOtherFiles) {
  std::string source(300000, '\0');
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 31 % 253);
  put("in", source);
  const Descriptor in = open_regular(path("in"));
  PlacedFile file(path("f"), 200000, "shown");
  if (!file.copy(in.get(), 12345, 67, 100000)) GTEST_SKIP() << "no copy_file_range here";
  EXPECT_EQ(bytes_of(path("f")).substr(67, 100000), source.substr(12345, 100000));
  EXPECT_FALSE(file.copy(in.get(), 299990, 0, 20));  // the input ends before
  EXPECT_FALSE(file.copy(-1, 0, 0, 20));
}

TEST_F(PlacedFileTest, AFullDiskShowsAtOnce) {
  std::filesystem::create_directory(path("disk"));
  const auto message = on_small_disk(path("disk"), [&] {
    return test::one_line_error<Error>([&] { PlacedFile file(path("disk/f"), 2 << 20, "shown"); });
  });
  if (!message.has_value()) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(*message, "shown: no space left on device (needed 2097152 bytes)");
}

TEST_F(PlacedFileTest, RefusesWhatIsNoFileOrTooLarge) {
  std::filesystem::create_directory(path("folder"));
  EXPECT_IO_ERROR(PlacedFile file(path("folder"), 1, "shown"), HasSubstr("shown: can't create"));
  std::filesystem::create_symlink(path("elsewhere"), path("link"));
  EXPECT_IO_ERROR(PlacedFile file(path("link"), 1, "shown"), HasSubstr("shown: can't create"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_IO_ERROR(PlacedFile file(path("pipe"), 1, "shown"), HasSubstr("shown: "));
  EXPECT_IO_ERROR(PlacedFile file(path("f"), std::uint64_t{1} << 63, "shown"),
                  HasSubstr("larger than the file size limit"));
  const FileSizeLimit limit(1000);
  EXPECT_IO_ERROR(PlacedFile file(path("g"), 1001, "shown"),
                  HasSubstr("shown: larger than the file size limit (needed 1001 bytes)"));
}

}  // namespace
}  // namespace fp8::io
