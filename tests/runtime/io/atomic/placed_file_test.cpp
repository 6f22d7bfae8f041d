// SPDX-License-Identifier: Apache-2.0
// Files filled in place: their size, what survives from one run to the next, full disks, copies within the kernel.
#include <fcntl.h>
#include <sys/stat.h>

#include "fp8/runtime/io/json/resumable_file.h"
#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using PlacedFileTest = IoTest;
using testing::HasSubstr;

TEST_F(PlacedFileTest, HasItsSizeAndKeepsItsBytes) {
  {
    PlacedFile file(path("f"), 10, "shown");
    EXPECT_EQ(bytes_of(path("f")), std::string(10, '\0'));
    file.write(7, "xyz", 3);
    file.write(0, "ab", 2);
  }
  {
    PlacedFile file(path("f"), 10, "shown");  // another run goes on
    char text[3];
    file.read(7, text, 3);
    EXPECT_EQ(std::string(text, 3), "xyz");
    file.write(2, "c", 1);
    EXPECT_THAT(test::one_line_error<Error>([&] { file.read(9, text, 2); }), HasSubstr("shown: ends at byte 10"));
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
  EXPECT_THAT(test::one_line_error<Error>([&] { PlacedFile file(path("folder"), 1, "shown"); }),
              HasSubstr("shown: can't create"));
  std::filesystem::create_symlink(path("elsewhere"), path("link"));
  EXPECT_THAT(test::one_line_error<Error>([&] { PlacedFile file(path("link"), 1, "shown"); }),
              HasSubstr("shown: can't create"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(test::one_line_error<Error>([&] { PlacedFile file(path("pipe"), 1, "shown"); }), HasSubstr("shown: "));
  EXPECT_THAT(test::one_line_error<Error>([&] { PlacedFile file(path("f"), std::uint64_t{1} << 63, "shown"); }),
              HasSubstr("larger than the file size limit"));
  const FileSizeLimit limit(1000);
  EXPECT_THAT(test::one_line_error<Error>([&] { PlacedFile file(path("g"), 1001, "shown"); }),
              HasSubstr("shown: larger than the file size limit (needed 1001 bytes)"));
}

}  // namespace
}  // namespace fp8::io
