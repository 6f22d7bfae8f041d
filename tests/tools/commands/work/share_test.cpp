// SPDX-License-Identifier: Apache-2.0
// Which share of the work a process takes: options, launchers' variables, shares on disk.
#include <numeric>
#include <random>

#include "fp8/tools/commands/options/input_options.h"
#include "support/launchers.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

using test::Variables;

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
  EXPECT_ERROR(UsageError, share(given(1, 0), launcher), "--rank: found 1, allowed: with the number of ranks, 1/2");
  EXPECT_ERROR(UsageError, share(given(-1, 2), launcher), "--world-size needs --rank");
  EXPECT_ERROR(UsageError, share(given(3, 3)), "--rank: found 3 of 3, allowed: 0 to 2");
}

TEST(Share, BadVariablesAreNamed) {
  EXPECT_ERROR(io::Error, share({}, {{"WORLD_SIZE", "two"}}), "'WORLD_SIZE': found 'two', allowed: an integer from 1",
               "--rank wins over it");
  EXPECT_ERROR(io::Error, share({}, {{"WORLD_SIZE", "2"}}), "'RANK': found nothing, but WORLD_SIZE is 2");
  EXPECT_ERROR(io::Error, share({}, {{"RANK", "7"}}), "'WORLD_SIZE': found nothing, but RANK is 7");
}

TEST(Share, JoinLooksForTheSharesOnDisk) {
  const test::TempDir dir;
  ShareOptions join;
  join.join = true;
  const auto out = dir / "out";
  EXPECT_ERROR(io::Error, share(join, {}, out), "no shares to join");
  for (const char* name :
       {"out.rank-0-of-3", "out.rank-2-of-3", "out.rank-x-of-9", "out.rank-0-of-9x", "other.rank-0-of-5"})
    std::filesystem::create_directory(dir / name);
  expect(share(join, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}, out), 0, 3, false);
  std::filesystem::create_directory(dir / "out.rank-0-of-4");
  EXPECT_ERROR(UsageError, share(join, {}, out), "say which with --join N");
  join.world_size = 4;
  expect(share(join, {}, out), 0, 4, false);
  join.rank = 1;
  EXPECT_ERROR(UsageError, share(join, {}, out), "exclude each other");
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
  // --join --wait alone: one for each process, whichever takes it.
  const auto each = share(in_shares(0, true, 0), launcher);
  ASSERT_TRUE(each.shares.has_value());
  EXPECT_EQ(each.shares->count, 4);
  EXPECT_EQ(each.shares->first, 1);
  EXPECT_ERROR(UsageError, share(in_shares(3, false, 0)), "--wait is --join wait");
}

TEST(Share, JoinFindsTheSharesThatWereTaken) {
  const test::TempDir dir;
  const auto out = dir / "out";
  EXPECT_EQ(share(in_shares(5, true), {}, out).shares.value().count, 5);
  io::SharesOptions three;
  three.count = 3;
  const io::Shares shares(dir / ".out.shares", {{"work", 1}}, three);
  EXPECT_EQ(share(in_shares(0, true), {}, out).shares.value().count, 3);
  EXPECT_EQ(share(in_shares(0, true), {}, out / "").shares.value().count, 3);
  std::filesystem::create_directory(dir / "out.rank-0-of-4");
  EXPECT_ERROR(UsageError, share(in_shares(0, true), {}, out), "say which with --join N or --shares K");
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

// Layers of ranks against all ways to cut them.

using Numbers = std::vector<std::int64_t>;

/// The bytes of the largest rank.
std::int64_t most_of(const Numbers& bytes, std::int64_t after, const Numbers& starts) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r + 1 < starts.size(); ++r)
    most = std::max(most, std::accumulate(bytes.begin() + starts[r], bytes.begin() + starts[r + 1],
                                          r + 2 == starts.size() ? after : std::int64_t{0}));
  return most;
}

/// The least that there is among all ways to cut.
std::int64_t least(const Numbers& bytes, std::int64_t after, std::int64_t ranks) {
  const auto layers = static_cast<std::int64_t>(bytes.size());
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  Numbers starts = {0};
  const std::function<void()> cut = [&] {
    if (static_cast<std::int64_t>(starts.size()) == ranks) {
      starts.push_back(layers);
      best = std::min(best, most_of(bytes, after, starts));
      starts.pop_back();
      return;
    }
    for (std::int64_t next = starts.back() + 1; next < layers; ++next) {
      starts.push_back(next);
      cut();
      starts.pop_back();
    }
  };
  cut();
  return best;
}

TEST(LayerRanges, OfEqualLayers) {
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 0, 2), (Numbers{0, 2, 4}));
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 5, 2), (Numbers{0, 3, 4}));  // the head is as large as a layer
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 100, 3), (Numbers{0, 2, 3, 4}));
  EXPECT_EQ(layer_ranges({5}, 3, 1), (Numbers{0, 1}));
  EXPECT_EQ(layer_ranges({0, 0, 0}, 0, 3), (Numbers{0, 1, 2, 3}));
}

TEST(LayerRanges, NoOtherWayHasASmallerLargestRank) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    Numbers bytes(1 + random() % 8);
    for (auto& b : bytes) b = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 1000);
    const auto after = static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 2000);
    const auto ranks = static_cast<std::int64_t>(1 + random() % bytes.size());
    const auto starts = layer_ranges(bytes, after, ranks);
    ASSERT_EQ(static_cast<std::int64_t>(starts.size()), ranks + 1);
    EXPECT_EQ(starts.front(), 0);
    EXPECT_EQ(starts.back(), static_cast<std::int64_t>(bytes.size()));
    for (std::size_t r = 0; r + 1 < starts.size(); ++r) EXPECT_LT(starts[r], starts[r + 1]);
    EXPECT_EQ(most_of(bytes, after, starts), least(bytes, after, ranks));
  }
}

}  // namespace
}  // namespace fp8::commands
