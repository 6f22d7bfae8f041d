// SPDX-License-Identifier: Apache-2.0
// OutputDirectory and refuse_same_path of atomic_file.h.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"
#include "support/child.h"

// How OutputDirectory puts a folder in another's place, with the renames of this process in the test's hand: refused by
// the file system, or the last thing that a run does before it dies. The definitions below stand in for the C
// library's.

namespace {

struct Calls {
  int exchange_error = 0;  ///< errno that renameat2 ends with; 0: it works
  int die_at = -1;         ///< the process ends at the call of this number
  bool signalled = false;  ///< as a signal ends it
  int count = 0, exchanges = 0;
  const char* watched = nullptr;  ///< a path that should be there at each call
  int missing = 0;                ///< calls at which it was not
};
Calls g_calls;

void begin_call() {
  if (g_calls.watched != nullptr && ::access(g_calls.watched, F_OK) != 0) ++g_calls.missing;
  if (g_calls.count++ != g_calls.die_at) return;
  if (g_calls.signalled) fp8::io::remove_temporaries();
  ::_exit(9);
}

}  // namespace

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned int flags) noexcept {
  begin_call();
  if (g_calls.exchange_error != 0) {
    errno = g_calls.exchange_error;
    return -1;
  }
  const long result = ::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (result == 0) ++g_calls.exchanges;
  return static_cast<int>(result);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  begin_call();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace fp8::io {
namespace {

using OutputDirectoryTest = IoTest;

void write(const fs::path& path, std::string_view text) { std::ofstream(path) << text; }

TEST_F(OutputDirectoryTest, AppearsAtCommitOnly) {
  OutputDirectory out(path("a/b/out"), false);
  write(out.file("config.json"), "{}");
  write(out.file("chat_templates/x.jinja"), "hello");
  EXPECT_FALSE(fs::exists(path("a/b/out")));
  out.commit();
  EXPECT_EQ(bytes_of(path("a/b/out/config.json")), "{}");
  EXPECT_EQ(bytes_of(path("a/b/out/chat_templates/x.jinja")), "hello");
  EXPECT_IO_ERROR(out.commit(), HasSubstr("committed before"));
}

TEST_F(OutputDirectoryTest, LeavesNothingBehind) {
  {
    OutputDirectory out(path("out"), false);
    write(out.file("config.json"), "{}");
    out.commit();
  }
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
  {
    OutputDirectory out(path("other"), false);
    write(out.file("config.json"), "{}");
  }
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
}

TEST_F(OutputDirectoryTest, TakesAnEmptyFolderAndATrailingSlash) {
  fs::create_directory(path("out"));
  OutputDirectory out(path("out/"), false);
  EXPECT_EQ(out.path(), path("out"));
  write(out.file("x"), "1");
  out.commit();
  EXPECT_EQ(bytes_of(path("out/x")), "1");
}

TEST_F(OutputDirectoryTest, RefusesAFolderWithFilesUnlessOverwrite) {
  put("out/config.json", "old");
  put("out/stale.safetensors", "old");
  const std::string name = path("out").string();
  EXPECT_IO_ERROR(OutputDirectory out(name, false),
                  name + ": exists and is not empty, expected a new or empty folder (or overwrite)");
  {
    OutputDirectory dropped(name, true);
    write(dropped.file("config.json"), "new");
  }
  EXPECT_EQ(bytes_of(path("out/config.json")), "old");
  {
    OutputDirectory out(name, true);
    write(out.file("config.json"), "new");
    out.commit();
    EXPECT_EQ(names_in(path("out")), std::set<std::string>{"config.json"});
    EXPECT_EQ(bytes_of(path("out/config.json")), "new");
  }
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
}

TEST_F(OutputDirectoryTest, NeverOverwritesAFolderOfSomethingElse) {
  put("home/letters.txt", "dear");
  EXPECT_IO_ERROR(OutputDirectory out(path("home"), true), HasSubstr("holds no checkpoint or measurement files"));
  EXPECT_EQ(bytes_of(path("home/letters.txt")), "dear");
  for (const char* ours : {"a/x_hooks_maxabs.npz", "b/x_mod_list.json", "c/model.safetensors", "d/config.json"}) {
    put(ours, "x");
    EXPECT_NO_THROW(OutputDirectory(path(ours).parent_path(), true)) << ours;
  }
}

TEST_F(OutputDirectoryTest, RefusesWhatIsNoFolder) {
  put("file", "x");
  EXPECT_IO_ERROR(OutputDirectory out(path("file"), true),
                  path("file").string() + ": exists and is not a folder, expected a new or empty folder");
  fs::create_symlink("nowhere", path("link"));
  EXPECT_IO_ERROR(OutputDirectory out(path("link"), true), HasSubstr("is a link to nothing"));
  EXPECT_IO_ERROR(OutputDirectory out(path("file/out"), true), HasSubstr(path("file").string()));
  EXPECT_IO_ERROR(OutputDirectory out("/", true), HasSubstr("can't be an output folder"));
  EXPECT_IO_ERROR(OutputDirectory out("", true), HasSubstr("no output folder"));
}

TEST_F(OutputDirectoryTest, GoesThroughALink) {
  fs::create_directory(path("real"));
  fs::create_directory_symlink("real", path("link"));
  OutputDirectory out(path("link"), false);
  EXPECT_EQ(out.path(), path("real"));
  write(out.file("x"), "1");
  out.commit();
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(bytes_of(path("real/x")), "1");
}

TEST_F(OutputDirectoryTest, RefusesNamesThatLeaveIt) {
  OutputDirectory out(path("out"), false);
  for (const char* name : {"", "/etc/passwd", "../x", "a/../../x", "a/"})
    EXPECT_IO_ERROR((void)out.file(name), HasSubstr("expected a relative name without '..'")) << name;
}

TEST_F(OutputDirectoryTest, TwoRunsMeetAnError) {
  OutputDirectory first(path("out"), false);
  EXPECT_IO_ERROR(
      OutputDirectory second(path("out"), false),
      path("out").string() + ": another run is writing it now (it holds " + path(".out.lock").string() + ")");
  write(first.file("x"), "1");
  first.commit();
  EXPECT_EQ(bytes_of(path("out/x")), "1");
}

TEST_F(OutputDirectoryTest, AnotherProcessHoldsTheLockOnlyWhileItLives) {
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    auto* out = new OutputDirectory(path("out"), false);
    write(out->file("x"), "half");
    if (::write(ready[1], "r", 1) != 1 || ::read(done[0], &byte, 1) != 1) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_IO_ERROR(OutputDirectory out(path("out"), false), HasSubstr("another run is writing it now"));
  ASSERT_EQ(::write(done[1], "d", 1), 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(names_in(folder_).size(), 2u) << "a killed run leaves its lock file and its partial folder";
  {
    OutputDirectory out(path("out"), false);
    EXPECT_TRUE(fs::is_empty(out.temporary()));
    out.commit();
  }
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
  for (const int end : {ready[0], ready[1], done[0], done[1]}) ::close(end);
}

TEST_F(OutputDirectoryTest, RemovesLeftoversOfItsNameOnly) {
  put(".out.partial-123456/x", "");
  put(".out.partial-/x", "");
  put(".out.partial-12x/x", "");
  put(".out2.partial-123456/x", "");
  { OutputDirectory out(path("out"), false); }
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{".out.partial-", ".out.partial-12x", ".out2.partial-123456"}));
}

TEST_F(OutputDirectoryTest, PutsBackWhatARunThatDiedBetweenTheRenamesMovedAway) {
  put(".out.old-123456/config.json", "old");
  EXPECT_IO_ERROR(OutputDirectory out(path("out"), false), HasSubstr("exists and is not empty"));
  EXPECT_EQ(bytes_of(path("out/config.json")), "old");
  put(".out.old-123456/config.json", "older");
  { OutputDirectory out(path("out"), true); }
  EXPECT_EQ(bytes_of(path("out/config.json")), "old");
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
}

TEST_F(OutputDirectoryTest, PutsTheOldOneBackWhenTheRenameFails) {
  const auto result = on_small_disk(folder_, [&] {
    put("out/config.json", "old");
    std::string message;
    {
      OutputDirectory out(path("out"), true);
      if (::mount("tmpfs", out.temporary().c_str(), "tmpfs", 0, "size=64k") != 0) return std::string("no second mount");
      write(out.file("config.json"), "new");
      message = test::one_line_error<Error>([&] { out.commit(); });  // a mount point can't be renamed
      ::umount(out.temporary().c_str());
    }
    return message + "\n" + bytes_of(path("out/config.json")) + "\n" + std::to_string(names_in(folder_).size());
  });
  if (!result) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_EQ(*result, path("out").string() + ": can't rename: Device or resource busy\nold\n1");
}

TEST_F(OutputDirectoryTest, DoesNotReplaceWhatAppearedMeanwhile) {
  OutputDirectory out(path("out"), false);
  write(out.file("x"), "ours");
  put("out/x", "theirs");
  EXPECT_IO_ERROR(out.commit(), HasSubstr("exists and is not empty"));
  EXPECT_EQ(bytes_of(path("out/x")), "theirs");
}

TEST_F(OutputDirectoryTest, AFullDiskLeavesNothingUnderTheFinalName) {
  const auto result = on_small_disk(folder_, [&] {
    const std::string message = test::one_line_error<Error>([&] {
      OutputDirectory out(path("out"), false);
      AtomicFile shard(out.file("model.safetensors"), 4 << 20);
      out.commit();
    });
    return message + "\n" + std::to_string(names_in(folder_).size());
  });
  if (!result) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_THAT(*result, HasSubstr("model.safetensors: no space left on device (needed 4194304 bytes)\n0"));
}

TEST_F(OutputDirectoryTest, AReadOnlyParentIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory(path("parent"));
  ::chmod(path("parent").c_str(), 0500);
  EXPECT_IO_ERROR(OutputDirectory out(path("parent/out"), false), HasSubstr("Permission denied"));
  ::chmod(path("parent").c_str(), 0700);
}

TEST_F(OutputDirectoryTest, TheInputIsNoOutput) {
  put("model/config.json", "x");
  put("model2/config.json", "x");
  fs::create_directory_symlink("model", path("link"));
  const auto refused = [&](const fs::path& input, const fs::path& output) {
    return test::one_line_error<Error>([&] { refuse_same_path(input, output); });
  };
  EXPECT_EQ(refused(path("model"), path("model")),
            path("model").string() + ": is the input itself, expected another path");
  EXPECT_THAT(refused(path("model"), path("model/")), HasSubstr("is the input itself"));
  EXPECT_THAT(refused(path("model"), path("model/../model/.")), HasSubstr("is the input itself"));
  EXPECT_THAT(refused(path("model"), path("link")), HasSubstr("is the input itself"));
  EXPECT_THAT(refused(path("model"), path("model/new/deep")),
              HasSubstr("lies inside the input " + path("model").string()));
  EXPECT_THAT(refused(path("model"), path("link/new")), HasSubstr("lies inside the input"));
  EXPECT_THAT(refused(path("model"), folder_), HasSubstr("holds the input"));
  EXPECT_THAT(refused(path("model/config.json"), path("model")), HasSubstr("holds the input"));
  fs::create_hard_link(path("model/config.json"), path("hard"));
  EXPECT_THAT(refused(path("model/config.json"), path("hard")), HasSubstr("is the input itself"));
  EXPECT_NO_THROW(refuse_same_path(path("model"), path("model2")));
  EXPECT_NO_THROW(refuse_same_path(path("model"), path("new")));
  EXPECT_NO_THROW(refuse_same_path(path("model"), path("mod")));
}

// OutputDirectory with Partial: files of a killed run (here: a child that ends at once), and runs that continue it.

using PartialFolderTest = IoTest;

/// A run that is killed after it wrote one file.
void killed_run(const fs::path& out, Partial partial) {
  test::status_of_child([&] {
    OutputDirectory folder(out, false, partial);
    std::ofstream(folder.file("part")) << "half" << std::flush;
    ::_exit(0);  // no destructor
  });
}

TEST_F(PartialFolderTest, NowGoesOnWithWhatIsThere) {
  for (const Partial first : {Partial::later, Partial::now}) {
    killed_run(path("out"), first);
    EXPECT_THAT(names_in(folder_), ElementsAre(".out.lock", ".out.partial"));
    OutputDirectory out(path("out"), false, Partial::now);
    EXPECT_TRUE(out.continued());
    EXPECT_FALSE(out.discarded());
    EXPECT_EQ(bytes_of(out.file("part")), "half");
    std::ofstream(out.file("config.json")) << "{}";
    out.sync();
    fs::remove(out.file("part"));
    out.commit();
    EXPECT_THAT(names_in(path("out")), ElementsAre("config.json"));
    EXPECT_THAT(names_in(folder_), testing::Not(testing::Contains(".out.partial")));
    fs::remove_all(path("out"));
  }
}

TEST_F(PartialFolderTest, OthersBeginAnewAndSaySo) {
  for (const Partial second : {Partial::later, Partial::never}) {
    killed_run(path("out"), Partial::later);
    OutputDirectory out(path("out"), false, second);
    EXPECT_TRUE(out.discarded());
    EXPECT_FALSE(out.continued());
    EXPECT_FALSE(fs::exists(out.file("part")));
  }
  EXPECT_TRUE(names_in(folder_).empty());
  killed_run(path("out"), Partial::never);
  OutputDirectory out(path("out"), false, Partial::now);
  EXPECT_FALSE(out.continued());
}

TEST_F(PartialFolderTest, AFailedRunKeepsItsPartsOnlyIfItResumes) {
  {
    OutputDirectory out(path("out"), false, Partial::later);
    std::ofstream(out.file("part")) << "half";
  }
  EXPECT_TRUE(names_in(folder_).empty());
  { OutputDirectory out(path("out"), false, Partial::now); }
  EXPECT_TRUE(names_in(folder_).empty());  // nothing was made
  {
    OutputDirectory out(path("out"), false, Partial::now);
    std::ofstream(out.file("part")) << "half" << std::flush;
    remove_temporaries();  // what a second Ctrl-C does
  }
  EXPECT_THAT(names_in(folder_), ElementsAre(".out.partial"));
  EXPECT_EQ(bytes_of(path(".out.partial/part")), "half");
}

TEST_F(PartialFolderTest, WhatIsNoFolderIsNotContinued) {
  put(".out.partial", "a file");
  EXPECT_IO_ERROR(OutputDirectory out(path("out"), false, Partial::now), testing::HasSubstr("can't create"));
  fs::remove(path(".out.partial"));
  fs::create_directory(path("elsewhere"));
  fs::create_directory_symlink(path("elsewhere"), path(".out.partial"));
  EXPECT_IO_ERROR(OutputDirectory out(path("out"), false, Partial::now), testing::HasSubstr("can't create"));
}

struct OutputExchange : IoTest {
  OutputExchange() { g_calls = {}; }
  ~OutputExchange() override { g_calls = {}; }

  /// A folder of three files that all say which run they are of.
  void put_old() const {
    for (const char* name : {"config.json", "model.safetensors", "deep/tokenizer.json"})
      put(std::string("out/") + name, "old");
  }
  void overwrite(Partial partial = Partial::never) const {
    OutputDirectory out(path("out"), true, partial);
    for (const char* name : {"config.json", "model.safetensors", "deep/tokenizer.json"}) write(out.file(name), "new");
    out.sync();
    const std::string watched = path("out").string();
    g_calls.count = 0;
    g_calls.watched = watched.c_str();
    out.commit();
    g_calls.watched = nullptr;
  }
  /// The text that all files of `out` hold.
  std::string content() const {
    const std::string one = bytes_of(path("out/config.json"));
    EXPECT_EQ(bytes_of(path("out/model.safetensors")), one);
    EXPECT_EQ(bytes_of(path("out/deep/tokenizer.json")), one);
    return one;
  }
};

TEST_F(OutputExchange, AnOverwriteIsOneStep) {
  put("a/x", "");
  put("b/x", "");
  if (::syscall(SYS_renameat2, AT_FDCWD, path("a").c_str(), AT_FDCWD, path("b").c_str(), RENAME_EXCHANGE) != 0)
    GTEST_SKIP() << "the file system of " << folder_ << " knows no exchange";
  for (const char* probe : {"a", "b"}) fs::remove_all(path(probe));
  put_old();
  overwrite();
  EXPECT_EQ(g_calls.exchanges, 1);
  EXPECT_EQ(g_calls.missing, 0) << "one of both folders stands under the name at every moment";
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
}

TEST_F(OutputExchange, TwoRenamesDoItWhereTheFileSystemKnowsNoExchange) {
  for (const int code : {EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EXDEV}) {
    fs::remove_all(path("out"));
    put_old();
    g_calls = {};
    g_calls.exchange_error = code;
    overwrite();
    EXPECT_EQ(g_calls.exchanges, 0);
    EXPECT_EQ(g_calls.missing, 1) << "the moment between the two";
    EXPECT_EQ(content(), "new");
    EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
  }
}

TEST_F(OutputExchange, ARunThatDiesAtAnyStepIsPutRightByTheNext) {
  for (const int code : {0, EINVAL})
    for (const Partial partial : {Partial::never, Partial::later, Partial::now}) {
      std::set<std::string> outcomes;
      int died = 0;
      for (int step = 0;; ++step) {
        SCOPED_TRACE("errno " + std::to_string(code) + ", step " + std::to_string(step));
        fs::remove_all(folder_);
        put_old();
        const int status = test::status_of_child([&] {
          g_calls = {};
          g_calls.exchange_error = code;
          // The count begins anew at the commit: what is written before it is renamed too.
          OutputDirectory out(path("out"), true, partial);
          for (const char* name : {"config.json", "model.safetensors", "deep/tokenizer.json"})
            write(out.file(name), "new");
          out.sync();
          g_calls.count = 0;
          g_calls.die_at = step;
          out.commit();
          ::_exit(0);
        });
        if (status == 0) break;
        ASSERT_EQ(status, 9);
        ++died;
        EXPECT_TRUE(code != 0 || fs::exists(path("out"))) << "with an exchange it is never missing";
        { OutputDirectory next(path("out"), true); }
        outcomes.insert(content());
        EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"});
      }
      EXPECT_GE(died, 2);
      EXPECT_TRUE(outcomes.count("old") == 1) << "a run that died has not replaced what was there";
    }
}

TEST_F(OutputExchange, ARunThatASignalEndsLeavesWhatWasThere) {
  for (const int step : {0, 1}) {
    fs::remove_all(folder_);
    put_old();
    const int status = test::status_of_child([&] {
      OutputDirectory out(path("out"), true);
      write(out.file("config.json"), "new");
      g_calls = {.die_at = step, .signalled = true};
      out.commit();
      ::_exit(0);
    });
    EXPECT_EQ(status, 9);
    EXPECT_EQ(content(), "old");
    EXPECT_EQ(names_in(folder_), std::set<std::string>{"out"}) << step;
  }
}

TEST_F(OutputExchange, WhatIsLeftOfAReplacedFolderIsNotGoneOnFrom) {
  put_old();
  overwrite(Partial::later);
  OutputDirectory next(path("out"), true, Partial::now);
  EXPECT_FALSE(next.continued());
  EXPECT_TRUE(fs::is_empty(next.temporary()));
}

}  // namespace
}  // namespace fp8::io
