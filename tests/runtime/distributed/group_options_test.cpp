// SPDX-License-Identifier: Apache-2.0
// The launchers' variables, each with what is wrong with it.
#include "fp8/runtime/distributed/group_options.h"

#include <map>

#include "support/hpu_test.h"
#include "support/launchers.h"

namespace fp8::runtime::distributed {
namespace {

using test::throws_with;

GroupOptions from(const std::map<std::string, std::string>& variables) {
  const test::LauncherEnvironment environment(variables);
  return group_options_from_environment();
}

TEST(GroupOptions, AloneWithoutVariables) {
  const GroupOptions options = from({});
  EXPECT_EQ(options.rank, 0);
  EXPECT_EQ(options.size, 1);
  EXPECT_EQ(from({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).size, 1);  // nobody to meet: no address needed
}

TEST(GroupOptions, ReadsRankSizeAndAddress) {
  const GroupOptions options = from(
      {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node-a"}, {"MASTER_PORT", "2345"}, {"LOCAL_RANK", "1"}});
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.host, "node-a");
  EXPECT_EQ(options.port, 2345);
}

TEST(GroupOptions, RankFromNodeAndLocalRank) {
  const std::map<std::string, std::string> two_nodes = {
      {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}, {"LOCAL_RANK", "1"}};
  auto with = [&](const char* name, const char* value) {
    auto v = two_nodes;
    v[name] = value;
    return from(v).rank;
  };
  EXPECT_EQ(from(two_nodes).rank, 1);
  EXPECT_EQ(with("NODE_RANK", "1"), 3);
  EXPECT_EQ(with("GROUP_RANK", "1"), 3);
  EXPECT_TRUE(throws_with({"'NODE_RANK': found '2'", "0 to 1"}, [&] { with("NODE_RANK", "2"); }));
  EXPECT_TRUE(throws_with({"'LOCAL_RANK': found '2'", "0 to 1"}, [&] { with("LOCAL_RANK", "2"); }));
}

/// mpirun and srun: no process takes itself for the only one.
TEST(GroupOptions, EveryLauncherGivesRankAndSize) {
  for (const auto& [name, variables] : test::launchers(2, 3)) {
    auto v = variables;
    if (name != "torchrun") {
      EXPECT_TRUE(throws_with({"MASTER_ADDR: found none", " is 3)", "mpirun -x MASTER_ADDR"}, [&] { from(v); }))
          << name;
      v["MASTER_ADDR"] = "node-a";
      EXPECT_TRUE(throws_with({"MASTER_PORT: found none"}, [&] { from(v); })) << name;
      v["MASTER_PORT"] = "29501";
    }
    const GroupOptions options = from(v);
    EXPECT_EQ(options.rank, 2) << name;
    EXPECT_EQ(options.size, 3) << name;
  }
  EXPECT_EQ(from({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 1);  // the shell of an sbatch script
}

TEST(GroupOptions, NamesTheVariableThatIsWrong) {
  EXPECT_TRUE(throws_with({"[process group] environment variable 'WORLD_SIZE': found nothing", "RANK is 1"},
                          [] { from({{"RANK", "1"}}); }));
  EXPECT_TRUE(throws_with({"'RANK': found '2'", "0 to 1"}, [] { from({{"WORLD_SIZE", "2"}, {"RANK", "2"}}); }));
  EXPECT_TRUE(throws_with({"MASTER_ADDR: found none"},
                          [] { from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "1"}}); }));
  EXPECT_TRUE(throws_with({"MASTER_PORT: found none", "65535"},
                          [] { from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}}); }));
  EXPECT_TRUE(throws_with({"MASTER_PORT: found '65536'", "65535"}, [] {
    from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65536"}});
  }));
}

TEST(GroupOptions, RefusesOptionsOutOfRange) {
  const auto refused = [](const std::vector<std::string>& words, GroupOptions options) {
    return throws_with(words, [&] { check(options); });
  };
  EXPECT_TRUE(refused({"rank: found 2", "0 to 1"}, {.rank = 2, .size = 2}));
  EXPECT_TRUE(refused({"size: found 0"}, {.size = 0}));
  EXPECT_TRUE(refused({"timeout: found 0 ms"}, {.size = 2, .timeout = std::chrono::milliseconds(0)}));
  EXPECT_TRUE(refused({"port: found 0"}, {.size = 2, .port = 0}));
  EXPECT_TRUE(refused({"host"}, {.size = 2, .host = ""}));
  EXPECT_TRUE(
      refused({"file: found '/no/such/folder/f'", "folder that exists"}, {.size = 2, .file = "/no/such/folder/f"}));
  check({.rank = 1, .size = 2});
}

}  // namespace
}  // namespace fp8::runtime::distributed
