// SPDX-License-Identifier: Apache-2.0
// Work in shares: what one process makes, what several make together, and what is left where some of them are killed.
#include "fp8/runtime/io/shares/shares.h"

#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "support/child.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::io {
namespace {

class SharesTest : public ::testing::Test {
 protected:
  fs::path place() const { return folder_ / "shares"; }
  fs::path out() const { return folder_ / "out"; }
  Shares shares(SharesOptions options) const { return {place(), {{"work", 1}}, std::move(options)}; }
  /// Share i writes its number into a file of its own.
  static void make(std::int64_t share, const fs::path& part) { std::ofstream(part, std::ios::binary) << share << "\n"; }
  bool stands() const { return fs::exists(out()); }
  void put_together(const std::vector<fs::path>& parts) const {
    std::string all;
    for (const auto& part : parts) {
      std::ifstream in(part, std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    std::ofstream(folder_ / "out.new", std::ios::binary) << all;
    fs::rename(folder_ / "out.new", out());
  }
  std::string result() const {
    std::ifstream in(out(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
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
  EXPECT_THAT(test::error_of<Error>([&] { shares({.count = 4}); }), HasSubstr("'shares' was 3, is 4"));
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
    EXPECT_THAT(test::error_of<Error>([&] { waiting.work(make); }), HasSubstr("no news for 0 s of shares 0 ("));
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

}  // namespace
}  // namespace fp8::io
