// SPDX-License-Identifier: Apache-2.0
// Which share of the work a process takes: options, launchers' variables, shares on disk.
#include "fp8/tools/commands/work/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "fp8/runtime/io/base/file.h"
#include "support/launchers.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

using test::Variables;
using ::testing::HasSubstr;

Share share(const ShareOptions& options, const Variables& variables = {}, const std::filesystem::path& out = "out") {
  return find_share(options, out, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect(const Share& found, std::int64_t rank, std::int64_t size, bool warned) {
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.world_size, size);
  EXPECT_EQ(!found.warning.empty(), warned);
}

ShareOptions given(std::int64_t rank, std::int64_t size) {
  ShareOptions o;
  o.rank = rank;
  o.world_size = size;
  return o;
}

TEST(Share, AloneUnlessTold) {
  expect(share({}), 0, 1, false);
  expect(
      share(
          {},
          {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMI_SIZE", ""}}),
      0, 1, false);
  expect(share({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), 0, 1,
         false);  // the shell of an sbatch script does all of the work
}

TEST(Share, EveryLauncher) {
  for (const auto& [name, variables] : test::launchers(2, 3)) {
    SCOPED_TRACE(name);
    expect(share({}, variables), 2, 3, true);
  }
  const auto pmi = share({}, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  expect(pmi, 0, 2, true);
  EXPECT_THAT(pmi.warning, AllOf(HasSubstr("rank 0 of 2"), HasSubstr("PMI_RANK")));
}

TEST(Share, OptionsWin) {
  const Variables launcher = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  expect(share(given(2, 3), launcher), 2, 3, false);
  expect(share(given(-1, 1), launcher), 0, 1, false);
  EXPECT_THAT(test::error_of<UsageError>([&] { share(given(1, 0), launcher); }),
              HasSubstr("--rank needs --world-size"));
  EXPECT_THAT(test::error_of<UsageError>([&] { share(given(-1, 2), launcher); }),
              HasSubstr("--world-size needs --rank"));
  EXPECT_THAT(test::error_of<UsageError>([&] { share(given(3, 3)); }), HasSubstr("--rank: found 3, allowed: 0 to 2"));
}

TEST(Share, BadVariablesAreNamed) {
  EXPECT_THAT(
      test::error_of<io::Error>([] { share({}, {{"WORLD_SIZE", "two"}}); }),
      AllOf(HasSubstr("'WORLD_SIZE': found 'two', allowed: an integer from 1"), HasSubstr("--world-size win over it")));
  EXPECT_THAT(test::error_of<io::Error>([] { share({}, {{"WORLD_SIZE", "2"}}); }),
              HasSubstr("'RANK': found nothing, but WORLD_SIZE is 2"));
  EXPECT_THAT(test::error_of<io::Error>([] { share({}, {{"RANK", "7"}}); }),
              HasSubstr("'WORLD_SIZE': found nothing, but RANK is 7"));
}

TEST(Share, JoinLooksForTheSharesOnDisk) {
  const test::TempDir dir;
  ShareOptions join;
  join.join = true;
  const auto out = dir / "out";
  EXPECT_THAT(test::error_of<io::Error>([&] { share(join, {}, out); }), HasSubstr("no shares to join"));
  for (const char* name :
       {"out.rank-0-of-3", "out.rank-2-of-3", "out.rank-x-of-9", "out.rank-0-of-9x", "other.rank-0-of-5"})
    std::filesystem::create_directory(dir / name);
  expect(share(join, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}, out), 0, 3, false);
  std::filesystem::create_directory(dir / "out.rank-0-of-4");
  EXPECT_THAT(test::error_of<UsageError>([&] { share(join, {}, out); }), HasSubstr("say which with --world-size"));
  join.world_size = 4;
  expect(share(join, {}, out), 0, 4, false);
  join.rank = 1;
  EXPECT_THAT(test::error_of<UsageError>([&] { share(join, {}, out); }), HasSubstr("exclude each other"));
}

ShareOptions in_shares(std::int64_t count, bool join, std::optional<double> wait = std::nullopt) {
  ShareOptions o;
  o.shares = count;
  o.join = join;
  o.wait = wait;
  o.lease_seconds = 7;
  return o;
}

TEST(Share, SharesThatAreTaken) {
  const Variables launcher = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  const auto alone = share(in_shares(16, false));
  ASSERT_TRUE(alone.shares.has_value());
  EXPECT_EQ(alone.shares->count, 16);
  EXPECT_EQ(alone.shares->first, 0);
  EXPECT_EQ(alone.shares->lease.expiry, 7);
  EXPECT_FALSE(alone.shares->wait.has_value());
  const auto second = share(in_shares(16, true, 30), launcher);
  EXPECT_EQ(second.warning, "");
  ASSERT_TRUE(second.shares.has_value());
  EXPECT_EQ(second.shares->first, 4);
  EXPECT_EQ(second.shares->wait, 30);
  // --join --wait alone: one for each process, whoever takes it.
  const auto each = share(in_shares(0, true, 0), launcher);
  ASSERT_TRUE(each.shares.has_value());
  EXPECT_EQ(each.shares->count, 4);
  EXPECT_EQ(each.shares->first, 1);
  EXPECT_THAT(test::error_of<UsageError>([] { share(in_shares(3, false, 0)); }), HasSubstr("--wait goes with --join"));
}

TEST(Share, JoinFindsTheSharesThatWereTaken) {
  const test::TempDir dir;
  const auto out = dir / "out";
  const auto join = share(in_shares(5, true), {}, out);
  EXPECT_EQ(join.shares.value().count, 5);
  io::SharesOptions three;
  three.count = 3;
  const io::Shares shares(dir / ".out.shares", {{"work", 1}}, three);
  EXPECT_EQ(share(in_shares(0, true), {}, out).shares.value().count, 3);
  EXPECT_EQ(share(in_shares(0, true), {}, out / "").shares.value().count, 3);
  std::filesystem::create_directory(dir / "out.rank-0-of-4");
  EXPECT_THAT(test::error_of<UsageError>([&] { share(in_shares(0, true), {}, out); }),
              HasSubstr("say which with --world-size or --shares"));
}

TEST(Share, InWords) {
  io::SharesOptions o;
  o.count = 4;
  EXPECT_EQ(shares_text(o, {0, 2}, {1}, false), "2 of 4 made here, 1 are held by others");
  EXPECT_EQ(shares_text(o, {0}, {}, true), "1 of 4 made here, all joined here");
  EXPECT_EQ(shares_text(o, {0}, {}, false), "1 of 4 made here, none is missing; --join puts all together");
  o.wait = 0;
  EXPECT_EQ(shares_text(o, {}, {}, false), "0 of 4 made here, all joined by another process");
  EXPECT_EQ(shares_json(o, {3}, {1, 2}, false).dump(), R"({"count":4,"made":[3],"missing":[1,2],"joined":false})");
}

}  // namespace

// Sizes as users write them, and what made-up machines have left.

namespace {

TEST(MemoryBudget, SizesAsUsersWriteThem) {
  EXPECT_EQ(parse_bytes("300000000"), 300000000);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5 gb"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("4k"), 4096);
  EXPECT_EQ(parse_bytes("12B"), 12);
  for (const char* bad : {"", "GB", "-1", "0", "0.2", "1e9", "5 apples", "5GBs", "nan", "inf", "99999999TB", "1 2"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
}

class Machine : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text;
  }
  test::TempDir folder;
};

TEST_F(Machine, HasWhatIsAvailable) {
  EXPECT_EQ(available_memory(folder.path()), std::int64_t{1} << 62);  // nothing is known
  write("proc/meminfo", "MemTotal:       100 kB\nMemFree:    10 kB\nMemAvailable:   64 kB\n");
  EXPECT_EQ(available_memory(folder.path()), 65536);
}

TEST_F(Machine, CgroupsV2OfAnyHeightLimitIt) {
  write("proc/meminfo", "MemAvailable:   1000000 kB\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "5000\n");
  write("sys/fs/cgroup/a/memory.max", "90000\n");
  write("sys/fs/cgroup/a/memory.current", "50000\n");
  write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 20000\nactive_file 3\n");
  EXPECT_EQ(available_memory(folder.path()), 90000 - (50000 - 20000));
  write("sys/fs/cgroup/a/memory.current", "200000\n");
  EXPECT_EQ(available_memory(folder.path()), 0);
}

TEST_F(Machine, CgroupsV1LimitIt) {
  write("proc/meminfo", "MemAvailable:   1000000 kB\n");
  write("proc/self/cgroup", "3:cpu,cpuacct:/x\n9:memory:/docker/3f\n");
  write("sys/fs/cgroup/memory/docker/3f/memory.limit_in_bytes", "70000\n");
  write("sys/fs/cgroup/memory/docker/3f/memory.usage_in_bytes", "30000\n");
  EXPECT_EQ(available_memory(folder.path()), 40000);
}

TEST(MemoryBudget, OfThisProcess) {
  EXPECT_GT(resident_bytes(), 1 << 20);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
  EXPECT_GT(available_memory(), 1 << 20);
}

/// Bytes that stay resident of blocks that were freed, between small ones that are kept.
std::int64_t left_behind() {
  constexpr std::size_t kLarge = 2 << 20, kKept = 100 << 10, kCount = 16;
  const auto touched = [](std::size_t bytes) { return std::memset(std::malloc(bytes), 1, bytes); };
  const std::int64_t before = resident_bytes();
  std::free(touched(2 * kLarge));  // from which on glibc by itself keeps blocks of that size
  std::array<void*, kCount> blocks = {};
  for (auto& block : blocks) {
    block = touched(kLarge);
    touched(kKept);
  }
  for (void* const block : blocks) std::free(block);
  return resident_bytes() - before - static_cast<std::int64_t>(kCount * kKept);
}

TEST(MemoryBudget, LargeBlocksGoBack) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer has an allocator of its own";
#endif
  // For a whole process, so in one of its own, which begins with an empty heap.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto kept = left_behind();
        return_large_blocks();
        std::exit(kept > (16 << 20) && left_behind() < (1 << 20) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace

// Shares of forwards: all samples, each once, in order, and never a part of a forward.

namespace {

using ::testing::ElementsAre;

TEST(Forwards, SharesAreOfWholeOnes) {
  const std::vector<std::int64_t> sizes = {2, 2, 1, 4, 2};  // samples 0-1, 2-3, 4, 5-8, 9-10
  const Forwards forwards(11, [&](std::int64_t first) {
    std::int64_t at = 0;
    for (const auto size : sizes) {
      if (at == first) return size;
      at += size;
    }
    ADD_FAILURE() << first;
    return std::int64_t{1};
  });
  EXPECT_EQ(forwards.count(), 5);
  EXPECT_EQ(forwards.samples(), 11);
  for (const std::int64_t shares : {1, 2, 3, 5, 8, 1000}) {
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < shares; ++i) {
      const auto share = forwards.share(i, shares);
      EXPECT_EQ(share.first, next);
      next += share.count;
      const auto starts = forwards.starts(share);
      EXPECT_EQ(starts.front(), share.first);
      EXPECT_EQ(starts.back(), next);
    }
    EXPECT_EQ(next, 11) << shares;
  }
  EXPECT_THAT(forwards.starts(forwards.share(1, 2)), ElementsAre(4, 5, 9, 11));
  EXPECT_THAT(forwards.starts(forwards.share(0, 1000)), ElementsAre(0));
}

TEST(Forwards, OfNothing) {
  const Forwards none(0, [](std::int64_t) { return 1; });
  EXPECT_EQ(none.count(), 0);
  EXPECT_EQ(none.share(0, 3).count, 0);
}

}  // namespace
}  // namespace fp8::commands
