// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using FileTest = IoTest;

TEST_F(FileTest, ReadsAWholeFile) {
  const std::string bytes("a\0b\n", 4);
  EXPECT_EQ(read_file(put("x", bytes), 4), bytes);
  EXPECT_EQ(read_file(put("empty", ""), 4), "");
}

TEST_F(FileTest, IsThereWhateverItIs) {
  EXPECT_TRUE(is_there(folder_));
  EXPECT_FALSE(is_there(path("none")));
  std::filesystem::create_symlink("nothing", path("link"));
  EXPECT_TRUE(is_there(path("link")));
  EXPECT_FALSE(is_there(path(std::string(5000, 'n'))));
}

TEST_F(FileTest, RefusesWhatIsTooLarge) {
  const auto file = put("x", "12345");
  EXPECT_EQ(test::one_line_error<Error>([&] { read_file(file, 4); }), file.string() + ": 5 bytes, allowed at most 4");
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(test::one_line_error<Error>([&] { read_file(folder_, 4); }),
            folder_.string() + ": is a folder, expected a file");
  EXPECT_EQ(test::one_line_error<Error>([&] { read_file(path("none"), 4); }),
            path("none").string() + ": can't open: No such file or directory");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);  // nobody writes: a plain open would wait for ever
  EXPECT_EQ(test::one_line_error<Error>([&] { read_file(path("pipe"), 4); }),
            path("pipe").string() + ": is not a regular file");
  EXPECT_EQ(test::one_line_error<Error>([&] { read_file("/dev/zero", 4); }), "/dev/zero: is not a regular file");
}

TEST_F(FileTest, ReadAtNamesTheEndOfAShortFile) {
  const auto name = put("x", "0123456789");
  const Descriptor file = open_regular(name);
  char bytes[4];
  read_at(file.get(), name, 3, bytes, 4);
  EXPECT_EQ(std::string(bytes, 4), "3456");
  EXPECT_EQ(test::one_line_error<Error>([&] { read_at(file.get(), name, 8, bytes, 4); }),
            name.string() + ": ends at byte 10, expected 2 more (cut short while it was read?)");
}

TEST(FailErrno, NamesAFullDisk) {
  EXPECT_EQ(test::one_line_error<Error>([] { fail_errno("out", "write", ENOSPC, 12); }),
            "out: no space left on device (needed 12 bytes)");
  EXPECT_EQ(test::one_line_error<Error>([] { fail_errno("out", "write", EDQUOT); }), "out: no space left on device");
  EXPECT_EQ(test::one_line_error<Error>([] { fail_errno("out", "write", EACCES); }),
            "out: can't write: Permission denied");
}

TEST(Descriptor, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    Descriptor a(ends[0]);
    Descriptor b = std::move(a);
    EXPECT_EQ(a.get(), -1);
    EXPECT_EQ(b.get(), ends[0]);
    a = std::move(b);
    EXPECT_EQ(a.get(), ends[0]);
  }
  EXPECT_EQ(::close(ends[0]), -1);
  EXPECT_EQ(::close(ends[1]), 0);
}

}  // namespace
}  // namespace fp8::io
