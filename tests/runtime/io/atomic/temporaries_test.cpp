// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

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

// What a program does at Ctrl-C, for real: a handler, a signal in the middle of an output folder, an exit.
TEST_F(TemporariesTest, LeavesNothingBehindAfterSigint) {
  const pid_t child = ::fork();
  if (child == 0) {
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
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_TRUE(names_in(folder_).empty());
}

}  // namespace
}  // namespace fp8::io
