// SPDX-License-Identifier: Apache-2.0
// How OutputDirectory puts a folder in another's place, with the renames of this process in the test's hand: refused by
// the file system, or the last thing that a run does before it dies. The definitions below stand in for the C
// library's.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "runtime/io/io_test.h"
#include "support/child.h"

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

void write(const fs::path& path, std::string_view text) { std::ofstream(path) << text; }

class OutputExchange : public IoTest {
 protected:
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
