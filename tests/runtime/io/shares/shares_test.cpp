// SPDX-License-Identifier: Apache-2.0
// Work in shares: what one process makes, what several make together, and what is left where some of them are killed.
#include "fp8/runtime/io/shares/shares.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <random>

#include "runtime/io/io_test.h"
#include "support/child.h"

namespace fp8::io {
namespace {

struct SharesTest : ::testing::Test {
  fs::path place() const { return folder_ / "shares"; }
  fs::path out() const { return folder_ / "out"; }
  Shares shares(SharesOptions options) const { return {place(), {{"work", 1}}, std::move(options)}; }
  /// Share i writes its number into a file of its own.
  static void make(std::int64_t share, const fs::path& part) { std::ofstream(part, std::ios::binary) << share << "\n"; }
  bool stands() const { return fs::exists(out()); }
  void put_together(const std::vector<fs::path>& parts) const {
    std::string all;
    for (const auto& part : parts) all += test::read_file(part);
    std::ofstream(folder_ / "out.new", std::ios::binary) << all;
    fs::rename(folder_ / "out.new", out());
  }
  std::string result() const { return test::read_file(out()); }
  test::TempDir folder_;
};

TEST_F(SharesTest, OneProcessMakesThemAll) {
  auto all = shares({.count = 3, .first = 2});
  EXPECT_THAT(all.missing(), ElementsAre(0, 1, 2));
  EXPECT_THAT(test::error_of<Error>([&] { all.join([&] { return stands(); }, [](const auto&) {}); }),
              HasSubstr("can't join 3 shares, missing: 0, 1, 2"));
  all.work(make);
  EXPECT_THAT(all.made(), ElementsAre(2, 0, 1));
  EXPECT_THAT(all.missing(), IsEmpty());
  EXPECT_TRUE(all.join([&] { return stands(); }, [&](const auto& parts) { put_together(parts); }));
  EXPECT_EQ(result(), "0\n1\n2\n");
  EXPECT_FALSE(all.join([&] { return stands(); }, [&](const auto&) { FAIL(); }));
  auto later = shares({.count = 3});
  later.work([](std::int64_t, const fs::path&) { FAIL(); });
  EXPECT_THAT(later.made(), IsEmpty());
  EXPECT_EQ(count_of_shares(place()), 3);
  EXPECT_ERROR(Error, shares({.count = 4}), "'shares' was 3, is 4");
  later.remove();
  EXPECT_FALSE(fs::exists(place()));
  EXPECT_TRUE(all.removed());
  EXPECT_EQ(count_of_shares(place()), std::nullopt);
}

/// Another process has joined them and is about to remove them: its marks are gone, the folder is still there.
TEST_F(SharesTest, WhatIsBeingRemovedIsNotMadeAgain) {
  for (const auto& wait : {std::optional<double>(), std::optional<double>(0)}) {
    auto late = shares({.count = 3, .wait = wait});
    fs::remove(place() / "work");
    late.work([](std::int64_t, const fs::path&) { FAIL(); });
    EXPECT_THAT(late.made(), IsEmpty());
    EXPECT_FALSE(fs::exists(place()));
  }
}

TEST_F(SharesTest, AShareThatFailsIsGivenBack) {
  auto first = shares({.count = 2}), second = shares({.count = 2});
  EXPECT_EQ(test::error_of<Error>([&] { first.work([](std::int64_t, const fs::path&) { throw Error("no space"); }); }),
            "no space");
  second.work(make);
  EXPECT_THAT(second.made(), ElementsAre(1, 0));  // shares that no process has had come first
}

TEST_F(SharesTest, WhatOthersHoldIsLeftOrWaitedFor) {
  auto first = shares({.count = 2});
  first.work([&](std::int64_t share, const fs::path& part) {
    make(share, part);
    if (share != 0) return;
    auto second = shares({.count = 2});
    second.work(make);
    EXPECT_THAT(second.made(), ElementsAre(1));
    EXPECT_THAT(second.missing(), ElementsAre(0));
    EXPECT_THAT(test::error_of<Error>([&] { second.join([] { return false; }, [](const auto&) {}); }),
                AllOf(HasSubstr("missing: 0 ("), HasSubstr(", process ")));
    auto waiting = shares({.count = 2, .wait = 0.2});
    EXPECT_ERROR(Error, waiting.work(make), "no news for 0 s of shares 0 (");
    bool stop = false;
    auto stopped = shares({.count = 2, .wait = 0, .stop = [&] { return std::exchange(stop, true); }});
    EXPECT_EQ(test::error_of<Error>([&] { stopped.work(make); }), "interrupted");
  });
  EXPECT_THAT(first.missing(), IsEmpty());
}

TEST_F(SharesTest, TwoThatJoinAtOnce) {
  auto first = shares({.count = 1}), second = shares({.count = 1}), waiting = shares({.count = 1, .wait = 0});
  first.work(make);
  std::thread other;
  first.join([&] { return stands(); },
             [&](const auto& parts) {
               EXPECT_THAT(test::error_of<Error>([&] { second.join([&] { return stands(); }, [](const auto&) {}); }),
                           HasSubstr("joins the shares now"));
               other = std::thread([&] { EXPECT_FALSE(waiting.join([&] { return stands(); }, [](const auto&) {})); });
               put_together(parts);
             });
  other.join();
  EXPECT_EQ(result(), "0\n");
}

/// Processes that are killed at random moments, and started again: in the end all is there, once, whole.
TEST_F(SharesTest, KilledProcesses) {
  constexpr std::int64_t kCount = 12;
  constexpr int kProcesses = 3;
  std::mt19937 random(11);
  std::vector<pid_t> children(kProcesses, 0);
  // The first shares take until three processes were killed, however slow the machine is.
  void* const page =
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& kills = *new (page) std::atomic<int>(0);
  const auto run = [&] {
    auto all = shares({.count = kCount, .wait = 0});
    all.work([&](std::int64_t share, const fs::path& part) {
      std::ofstream file(part, std::ios::binary);
      file << share << std::flush;  // half of it
      do ::usleep(4000);
      while (kills < 3);
      file << "\n";
      file.close();
    });
    all.join([&] { return stands(); }, [&](const auto& parts) { put_together(parts); });
    ::_exit(0);
  };
  for (auto& child : children) child = test::start_child(run);
  while (kills < 10 && !stands()) {
    ::usleep(1000 * (2 + random() % 12));
    auto& child = children[random() % kProcesses];
    ::kill(child, SIGKILL);
    if (test::status_of(child) == -1) ++kills;
    child = test::start_child(run);
  }
  for (const pid_t child : children) EXPECT_EQ(test::status_of(child), 0);
  EXPECT_GT(kills.load(), 2);
  ::munmap(page, sizeof(std::atomic<int>));
  EXPECT_EQ(result(), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n");
}

// Pieces that are taken, given back, taken over and finished, by a clock and a knowledge of other processes that the
// cases make up; and files in the folder that other programs have written.

const Json kWork = {{"command", "quantize"}, {"files", {{"a", {1, 2}}}}};

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

struct LeasesTest : ::testing::Test {
  /// Of a process that nothing is known of, unless `gone_`, and that shows a sign of life only where it is told to.
  LeaseOptions options() {
    return LeaseOptions{.expiry = 60,
                        .beats = false,
                        .warn = [this](const std::string& text) { warnings_.push_back(text); },
                        .clock = [this] { return time_; },
                        .gone = [this](const Holder&) { return gone_; }};
  }
  fs::path place() const { return folder_ / "work of all"; }
  LeaseFolder leases() { return {place(), kWork, options()}; }
  /// As another machine's clock would have it.
  void touch(const std::string& name, std::int64_t seconds) const {
    const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (place() / name).c_str(), times, 0), 0);
  }

  test::TempDir folder_;
  double time_ = 1000;
  bool gone_ = false;
  std::vector<std::string> warnings_;
};

TEST_F(LeasesTest, EachPieceIsTakenOnce) {
  LeaseFolder mine(place(), kWork, options()), other(place(), kWork, options());
  const auto a = mine.take({"0", "1"}), b = other.take({"0", "1"});
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->piece(), "0");
  EXPECT_EQ(b->piece(), "1");
  EXPECT_EQ(mine.take({"0", "1"}), nullptr);
  EXPECT_TRUE(a->finish());
  EXPECT_EQ(other.finished("0"), 0);
  EXPECT_EQ(other.finished("1"), std::nullopt);
  EXPECT_EQ(other.take({"0"}), nullptr);
}

TEST_F(LeasesTest, WhatIsGivenBackIsFreeAtOnce) {
  LeaseFolder mine(place(), kWork, options()), other(place(), kWork, options());
  { const auto a = mine.take({"0"}); }
  const auto b = other.take({"0"});
  ASSERT_TRUE(b);
  EXPECT_EQ(b->taking(), 1);
}

TEST_F(LeasesTest, AHolderThatIsGoneLosesItAtOnce) {
  LeaseFolder mine(place(), kWork, options()), other(place(), kWork, options());
  const auto a = mine.take({"0"});
  EXPECT_EQ(other.take({"0"}), nullptr);
  gone_ = true;
  const auto b = other.take({"0"});
  ASSERT_TRUE(b);
  EXPECT_EQ(b->taking(), 1);
}

TEST_F(LeasesTest, ALeaseExpiresWithoutASignOfLife) {
  LeaseFolder mine(place(), kWork, options()), other(place(), kWork, options());
  const auto a = mine.take({"0"});
  EXPECT_EQ(other.take({"0"}), nullptr);  // seen for the first time
  time_ += 59;
  EXPECT_EQ(other.take({"0"}), nullptr);
  touch("0.lease-0", 77);  // whatever clock its machine has
  time_ += 59;
  EXPECT_EQ(other.take({"0"}), nullptr);
  EXPECT_EQ(other.holder_of("0"), this_process().text());
  time_ += 59;
  EXPECT_EQ(other.take({"0"}), nullptr);
  time_ += 2;
  const auto b = other.take({"0"});
  ASSERT_TRUE(b);
  EXPECT_EQ(b->taking(), 1);

  // The old holder was only slow: who finishes first counts.
  EXPECT_TRUE(a->finish());
  EXPECT_FALSE(b->finish());
  EXPECT_EQ(mine.finished("0"), 0);
}

TEST_F(LeasesTest, ATouchKeepsIt) {
  LeaseFolder mine(place(), kWork, options()), other(place(), kWork, options());
  const auto a = mine.take({"0"});
  for (int i = 0; i < 4; ++i) {
    touch("0.lease-0", 1000 + i);
    EXPECT_EQ(other.take({"0"}), nullptr);
    time_ += 50;
  }
  struct stat before, after;
  ASSERT_EQ(::stat((place() / "0.lease-0").c_str(), &before), 0);
  a->touch();
  ASSERT_EQ(::stat((place() / "0.lease-0").c_str(), &after), 0);
  EXPECT_NE(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
}

TEST_F(LeasesTest, AThreadTouches) {
  auto o = options();
  o.beats = true;
  o.expiry = 0.08;
  LeaseFolder mine(place(), kWork, o);
  const auto a = mine.take({"0"});
  touch("0.lease-0", 77);
  struct stat status = {};
  for (int i = 0; i < 500; ++i) {
    ::usleep(10'000);
    ASSERT_EQ(::stat((place() / "0.lease-0").c_str(), &status), 0);
    if (status.st_mtim.tv_sec != 77) break;
  }
  EXPECT_NE(status.st_mtim.tv_sec, 77);
}

TEST_F(LeasesTest, OtherWorkIsNamed) {
  const auto mine = leases();
  Json other = kWork;
  other["files"]["a"] = {1, 3};
  EXPECT_IO_ERROR(LeaseFolder(place(), other, options()),
                  AllOf(HasSubstr("is of other work: 'files: a' was [1,2], is [1,3]"), HasSubstr(place().string())));
  EXPECT_EQ(test::error_of<Error>([&] { leases(); }), "");
  write(place() / "work",
        "\x7f"
        "ELF\0garbage");
  EXPECT_IO_ERROR(leases(), HasSubstr("nothing can go on from it"));
  write(place() / "work", "");
  EXPECT_IO_ERROR(leases(), HasSubstr("nothing can go on from it"));
}

TEST_F(LeasesTest, AFolderThatCannotBe) {
  write(folder_ / "file", "");
  EXPECT_IO_ERROR(LeaseFolder(folder_ / "file" / "x", kWork, options()), HasSubstr("can't be made"));
}

/// Files that a power failure or another program may leave: never taken for a lease in force, nor for free.
TEST_F(LeasesTest, LeasesThatAreNoneExpire) {
  std::mt19937 random(5);
  std::string garbage(4000, '\0');
  for (char& c : garbage) c = static_cast<char>(random());
  Json foreign = to_json(this_process());
  foreign["work"] = "0123456789abcdef";
  Json absurd = to_json(this_process());
  absurd["pid"] = -1;
  const std::vector<std::string> texts = {
      "", "{", "[]", "{}", garbage, std::string(5000, 'x'), foreign.dump(), absurd.dump(), std::string(3000, '[')};
  for (const auto& text : texts) {
    SCOPED_TRACE(text.substr(0, 20));
    const auto before = warnings_.size();
    auto folder = leases();
    write(place() / "0.lease-0", text);
    EXPECT_EQ(folder.take({"0"}), nullptr);
    EXPECT_EQ(folder.holder_of("0"), "");
    EXPECT_EQ(folder.take({"0"}), nullptr);
    ASSERT_EQ(warnings_.size(), before + 1);
    EXPECT_THAT(warnings_.back(), HasSubstr("0.lease-0: "));
    time_ += 61;
    const auto taken = folder.take({"0"});
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->taking(), 1);
    fs::remove_all(place());
  }
}

TEST_F(LeasesTest, NamesThatAreNone) {
  auto folder = leases();
  for (const char* name : {"0.lease-", "0.lease-x", "0.lease-99999999999999999999", "0.lease--1", ".lease-0",
                           "..lease-0", "0.lease-0.new", "A.lease-0", "readme"})
    write(place() / name, "");
  fs::create_directory(place() / "1.lease-0");
  ASSERT_EQ(::mkfifo((place() / "2.lease-0").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", place() / "3.lease-0");
  fs::create_symlink("nowhere", place() / "4.lease-0");
  const auto taken = folder.take({"0"});
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->taking(), 0);
  for (const char* piece : {"1", "2", "3", "4"}) {
    EXPECT_EQ(folder.take({piece}), nullptr) << piece;
    time_ += 61;
    EXPECT_NE(folder.take({piece}), nullptr) << piece;
  }
}

TEST_F(LeasesTest, TheLastTaking) {
  auto folder = leases();
  write(place() / "0.lease-99999", "");
  EXPECT_EQ(folder.take({"0"}), nullptr);
  time_ += 61;
  EXPECT_IO_ERROR(folder.take({"0"}), HasSubstr("0.lease-99999: the last"));
}

TEST_F(LeasesTest, MarksThatAreNone) {
  auto folder = leases();
  for (const std::string& text : {std::string(), std::string("{}"), std::string("\0\1\2", 3), std::string(5000, 'x'),
                                  std::string(R"({"work":"0123456789abcdef","piece":"0","taking":0})")}) {
    write(place() / "0.done", text);
    EXPECT_IO_ERROR(folder.take({"0"}), AllOf(HasSubstr("0.done"), HasSubstr("expected the mark of a finished piece")));
  }
  fs::remove(place() / "0.done");
  const auto taken = folder.take({"0"});
  ASSERT_TRUE(taken);
  EXPECT_TRUE(taken->finish());
  fs::rename(place() / "0.done", place() / "1.done");  // another piece's
  EXPECT_IO_ERROR(folder.finished("1"), HasSubstr("is something else"));
}

TEST_F(LeasesTest, ARemovedFolderIsNoError) {
  auto folder = leases();
  const auto taken = folder.take({"0"});
  ASSERT_TRUE(taken);
  EXPECT_FALSE(folder.removed());
  fs::remove_all(place());
  EXPECT_TRUE(folder.removed());
  EXPECT_EQ(folder.take({"0", "1"}), nullptr);
  taken->touch();
}

TEST_F(LeasesTest, NothingIsLeftBesideTheFiles) {
  auto folder = leases();
  const auto taken = folder.take({"0"});
  taken->finish();
  std::vector<std::string> hidden;
  for (const auto& entry : fs::directory_iterator(place()))
    if (entry.path().filename().string()[0] == '.') hidden.push_back(entry.path().filename().string());
  EXPECT_THAT(hidden, IsEmpty());
  EXPECT_FALSE(write_new_file(place() / "0.done", "x"));
}

/// Many processes at once: no piece has two holders.
TEST_F(LeasesTest, ProcessesThatRace) {
  constexpr int kProcesses = 6, kPieces = 40;
  std::vector<std::string> pieces;
  for (int i = 0; i < kPieces; ++i) pieces.push_back(std::to_string(i));
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(test::start_child([&] {
      LeaseFolder folder(place(), kWork, {.beats = false, .gone = [](const Holder&) { return false; }});
      std::ofstream out(folder_ / ("taken-" + std::to_string(process)));
      while (const auto lease = folder.take(pieces)) {
        out << lease->piece() << "\n";
        lease->finish();
      }
      out.close();
      ::_exit(0);
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::status_of(child), 0);
  std::multiset<std::string> taken;
  for (int process = 0; process < kProcesses; ++process) {
    std::ifstream in(folder_ / ("taken-" + std::to_string(process)));
    for (std::string piece; std::getline(in, piece);) taken.insert(piece);
  }
  EXPECT_THAT(taken, SizeIs(kPieces));
  EXPECT_EQ(std::set<std::string>(taken.begin(), taken.end()).size(), static_cast<std::size_t>(kPieces));
}

TEST_F(LeasesTest, AProcessThatASignalEndedGivesItsPieceBack) {
  LeaseOptions o{.gone = [](const Holder&) { return false; }};
  const int status = test::status_of_child([&] {
    LeaseFolder folder(place(), kWork, o);
    const auto lease = folder.take({"0"});
    remove_temporaries();
    ::_exit(lease == nullptr ? 1 : 0);
  });
  EXPECT_EQ(status, 0);
  LeaseFolder folder(place(), kWork, o);
  EXPECT_NE(folder.take({"0"}), nullptr);
}

TEST(Holder, KnowsItself) {
  const Holder self = this_process();
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_FALSE(is_gone(self));
  EXPECT_EQ(holder_from_json(parse_json(to_json(self).dump(), "holder")), self);
}

TEST(Holder, AProcessThatEnded) {
  int ready[2], quit[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(quit), 0);
  const pid_t child = test::start_child([&] {
    char c = 0;
    return ::write(ready[1], &c, 1) != 1 || ::read(quit[0], &c, 1) != 1 ? 1 : 0;
  });
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  Holder other = this_process();
  if (other.boot.empty() || other.began == 0) GTEST_SKIP() << "no /proc";
  other.pid = child;
  other.began = 0;
  EXPECT_FALSE(is_gone(other));
  Holder before = other;
  before.began = 1;  // another process had this pid
  EXPECT_TRUE(is_gone(before));
  ASSERT_EQ(::write(quit[1], &c, 1), 1);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_gone(other));  // a zombie
  test::status_of(child);
  EXPECT_TRUE(is_gone(other));
  for (const int fd : {ready[0], ready[1], quit[0], quit[1]}) ::close(fd);
  other.boot = "another machine";
  EXPECT_FALSE(is_gone(other));
}

}  // namespace
}  // namespace fp8::io
