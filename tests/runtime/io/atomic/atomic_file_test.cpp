// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/atomic/atomic_file.h"

#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"
#include "support/child.h"
#include "support/threads.h"

namespace fp8::io {
namespace {

using AtomicFileTest = IoTest;

// A process id that no process has: that of a child which has ended.
pid_t dead_pid() {
  const pid_t child = test::start_child([] {});
  test::status_of(child);
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
  EXPECT_IO_ERROR(file.commit(), HasSubstr("committed before"));
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
  EXPECT_IO_ERROR(AtomicFile file(folder_), folder_.string() + ": is a folder, expected a file");
  EXPECT_IO_ERROR(AtomicFile file("/dev/full"), "/dev/full: is not a regular file");
  EXPECT_IO_ERROR(AtomicFile file(path("none/out")),
                  path("none/out").string() + ": can't create: No such file or directory");
  EXPECT_IO_ERROR(AtomicFile file(folder_.string() + "/"), HasSubstr("names no file"));
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
  test::on_threads(8, [&](int t) {
    const char c = static_cast<char>('a' + t);
    for (int i = 0; i < 1000; ++i)
      file.write_at(static_cast<std::uint64_t>(i) * 8 + static_cast<std::uint64_t>(t), &c, 1);
  });
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

using TemporariesTest = IoTest;

TEST_F(TemporariesTest, RemovesListedFilesAndFoldersOnly) {
  put("file", "x");
  put("kept", "x");
  put("folder/a", "x");
  put("folder/sub/b", "x");
  for (int i = 0; i < 500; ++i) put("folder/many/" + std::string(60, 'n') + std::to_string(i), "");
  put("gone", "x");
  std::filesystem::create_symlink(path("kept"), path("folder/link"));
  const ListedTemporary file(path("file"), TemporaryKind::file), folder(path("folder"), TemporaryKind::folder);
  { const ListedTemporary over(path("gone"), TemporaryKind::file); }
  remove_temporaries();
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"kept", "gone"}));
}

TEST_F(TemporariesTest, GivesLeasesBackAndLeavesThem) {
  put("lease", "x");
  const ListedTemporary lease(path("lease"), TemporaryKind::lease);
  remove_temporaries();
  struct stat status = {};
  ASSERT_EQ(::stat(path("lease").c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, 0);
}

TEST_F(TemporariesTest, DoesNotFollowALinkThatTookTheFoldersPlace) {
  put("elsewhere/kept", "x");
  std::filesystem::create_directory_symlink(path("elsewhere"), path("folder"));
  const ListedTemporary folder(path("folder"), TemporaryKind::folder);
  remove_temporaries();
  EXPECT_EQ(names_in(path("elsewhere")), std::set<std::string>{"kept"});
}

TEST_F(TemporariesTest, MoreThanTheTableHoldsAreLeftAlone) {
  std::vector<std::unique_ptr<ListedTemporary>> rows;
  for (int i = 0; i < 100; ++i)
    rows.push_back(std::make_unique<ListedTemporary>(put(std::to_string(i), ""), TemporaryKind::file));
  remove_temporaries();
  EXPECT_EQ(names_in(folder_).size(), 100u - 64u);
}

// The steps of a program at Ctrl-C: a handler, a signal in the middle of an output folder, an exit.
TEST_F(TemporariesTest, LeavesNothingBehindAfterSigint) {
  const pid_t child = test::start_child([&] {
    ::signal(SIGINT, [](int) {
      remove_temporaries();
      ::_exit(130);
    });
    OutputDirectory out(path("out"), false);
    AtomicFile shard(out.file("model.safetensors"), 1 << 20);
    shard.append("half of it");
    AtomicFile other(path("other.json"));
    put(std::filesystem::relative(out.file("chat_templates/a"), folder_).string(), "x");
    ::raise(SIGINT);
    ::_exit(1);
  });
  EXPECT_EQ(test::status_of(child), 130);
  EXPECT_TRUE(names_in(folder_).empty());
}

}  // namespace
}  // namespace fp8::io
