// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/atomic/atomic_file.h"

#include <sys/stat.h>

#include <thread>
#include <vector>

#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using AtomicFileTest = IoTest;
using testing::HasSubstr;

// A process id that belongs to nobody: that of a child which has ended.
pid_t dead_pid() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST_F(AtomicFileTest, AppearsAtCommitOnly) {
  AtomicFile file(path("out"));
  file.append("abc");
  EXPECT_FALSE(std::filesystem::exists(path("out")));
  EXPECT_EQ(names_in(folder_).size(), 1u);
  file.write_at(1, "BCD", 3);
  file.append("!");
  file.commit();
  EXPECT_EQ(bytes_of(path("out")), "aBC!");
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
  EXPECT_THAT(test::one_line_error<Error>([&] { file.commit(); }), HasSubstr("committed before"));
}

TEST_F(AtomicFileTest, ReplacesAndLeavesTheOldOneUntilThen) {
  put("out", "old");
  {
    AtomicFile file(path("out"));
    file.append("new");
    EXPECT_EQ(bytes_of(path("out")), "old");
  }
  EXPECT_EQ(bytes_of(path("out")), "old");
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
  AtomicFile file(path("out"));
  file.append("new");
  file.commit();
  EXPECT_EQ(bytes_of(path("out")), "new");
}

TEST_F(AtomicFileTest, WritesThroughALink) {
  put("real", "old");
  std::filesystem::create_symlink("real", path("link"));
  AtomicFile file(path("link"));
  file.append("new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(bytes_of(path("real")), "new");
}

TEST_F(AtomicFileTest, RefusesPlacesThatAreNoFile) {
  EXPECT_EQ(test::one_line_error<Error>([&] { AtomicFile file(folder_); }),
            folder_.string() + ": is a folder, expected a file");
  EXPECT_EQ(test::one_line_error<Error>([&] { AtomicFile file("/dev/full"); }), "/dev/full: is not a regular file");
  EXPECT_EQ(test::one_line_error<Error>([&] { AtomicFile file(path("none/out")); }),
            path("none/out").string() + ": can't create: No such file or directory");
  EXPECT_THAT(test::one_line_error<Error>([&] { AtomicFile file(folder_.string() + "/"); }),
              HasSubstr("names no file"));
}

TEST_F(AtomicFileTest, ReservedSpaceThatIsNotUsedIsGivenBack) {
  AtomicFile file(path("out"), 1 << 20);
  file.append("abc");
  file.commit();
  struct stat status;
  ASSERT_EQ(::stat(path("out").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 3);
  EXPECT_LE(status.st_blocks * 512, 64 * 1024);
}

TEST_F(AtomicFileTest, WritesFromManyThreads) {
  AtomicFile file(path("out"), 8 * 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&file, t] {
      for (int i = 0; i < 1000; ++i) {
        const char c = static_cast<char>('a' + t);
        file.write_at(static_cast<std::uint64_t>(i) * 8 + static_cast<std::uint64_t>(t), &c, 1);
      }
    });
  for (auto& thread : threads) thread.join();
  file.commit();
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += "abcdefgh";
  EXPECT_EQ(bytes_of(path("out")), expected);
}

TEST_F(AtomicFileTest, TwoWritersOfOneFileDontMix) {
  AtomicFile a(path("out")), b(path("out"));
  a.append("first");
  b.append("second");
  a.commit();
  EXPECT_EQ(bytes_of(path("out")), "first");
  b.commit();
  EXPECT_EQ(bytes_of(path("out")), "second");
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
}

TEST_F(AtomicFileTest, RemovesWhatAKilledRunLeftAndNothingElse) {
  const std::string dead = ".out.partial-" + std::to_string(dead_pid()) + "-0";
  const std::string alive = ".out.partial-1-0";  // process 1 lives
  put(dead, "x");
  put(alive, "x");
  put(".out.partial-x-0", "x");
  put(".other.partial-" + std::to_string(dead_pid()) + "-0", "x");
  AtomicFile file(path("out"));
  file.commit();
  const auto names = names_in(folder_);
  EXPECT_EQ(names.count(dead), 0u);
  EXPECT_EQ(names.count(alive), 1u);
  EXPECT_EQ(names.size(), 4u);
}

TEST_F(AtomicFileTest, AFullDiskIsFoundBeforeTheWorkAndNamed) {
  const auto message = on_small_disk(folder_, [&] {
    const std::string reserved = test::one_line_error<Error>([&] { AtomicFile file(path("out"), 8 << 20); });
    const std::string appended = test::one_line_error<Error>([&] {
      AtomicFile file(path("out"));
      const std::string block(1 << 16, 'x');
      for (int i = 0; i < 64; ++i) file.append(block);
      file.commit();
    });
    return reserved + "\n" + appended + "\n" + std::to_string(names_in(folder_).size());
  });
  if (!message) GTEST_SKIP() << "mounting a tmpfs needs root";
  const std::string name = path("out").string();
  EXPECT_THAT(*message, testing::StartsWith(name + ": no space left on device (needed 8388608 bytes)\n" + name +
                                            ": no space left on device (needed "));
  EXPECT_THAT(*message, testing::EndsWith(" bytes)\n0"));
}

TEST_F(AtomicFileTest, AFileSizeLimitIsNamed) {
  const FileSizeLimit limit(100'000);
  const std::string name = path("out").string();
  EXPECT_EQ(test::one_line_error<Error>([&] {
              AtomicFile file(name);
              file.append(std::string(60'000, 'x'));
              file.append(std::string(60'000, 'x'));
            }),
            name + ": larger than the file size limit (needed 120000 bytes)");
  EXPECT_TRUE(names_in(folder_).empty());
}

}  // namespace
}  // namespace fp8::io
