// SPDX-License-Identifier: Apache-2.0
// The launchers' variables, each with what is wrong with it.
#include <map>

#include "fp8/runtime/distributed/process_group.h"
#include "support/hpu_test.h"
#include "support/launchers.h"

namespace fp8::runtime::distributed {
namespace {

using test::throws_with;
using test::Variables;

GroupOptions from(const std::map<std::string, std::string>& variables) {
  const test::LauncherEnvironment environment(variables);
  return group_options_from_environment();
}

TEST(GroupOptions, AloneWithoutVariables) {
  const GroupOptions options = from({});
  EXPECT_EQ(options.rank, 0);
  EXPECT_EQ(options.size, 1);
  EXPECT_EQ(from({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).size, 1);  // one process needs no address
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
  EXPECT_REFUSED(with("NODE_RANK", "2"), "'NODE_RANK': found '2'", "0 to 1");
  EXPECT_REFUSED(with("LOCAL_RANK", "2"), "'LOCAL_RANK': found '2'", "0 to 1");
}

/// mpirun and srun: no process takes itself for the only one.
TEST(GroupOptions, EveryLauncherGivesRankAndSize) {
  for (const auto& [name, variables] : test::launchers(2, 3)) {
    auto v = variables;
    v.erase("OMPI_COMM_WORLD_LOCAL_SIZE");  // several machines
    v.erase("MPI_LOCALNRANKS");
    if (name != "torchrun") {
      EXPECT_TRUE(throws_with({"MASTER_ADDR: found none", " is 3)", "mpirun -x MASTER_ADDR"}, [&] { from(v); }))
          << name;
      v["MASTER_ADDR"] = "node-a";
      EXPECT_REFUSED(from(v), "MASTER_PORT: found none") << name;
      v["MASTER_PORT"] = "29501";
    }
    const GroupOptions options = from(v);
    EXPECT_EQ(options.rank, 2) << name;
    EXPECT_EQ(options.size, 3) << name;
  }
  EXPECT_EQ(from({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 1);  // the shell of an sbatch script
}

TEST(GroupOptions, PlaceFromTheLauncher) {
  auto srun = test::launchers(1, 4).at("srun");
  srun["SLURM_JOB_ID"] = "1234567";
  srun["SLURM_JOB_NODELIST"] = "n[0-1]";
  GroupOptions options = from(srun);
  EXPECT_EQ(options.host, "n0");
  EXPECT_EQ(options.port, 15000 + 4567);
  EXPECT_EQ(options.said_by, "SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_NODELIST, SLURM_JOB_ID");
  srun["SLURM_STEP_NODELIST"] = "n1";
  EXPECT_EQ(from(srun).host, "n1");  // a step of some of the job's machines
  srun["MASTER_ADDR"] = "head";
  srun["MASTER_PORT"] = "29501";
  options = from(srun);
  EXPECT_EQ(options.host, "head");
  EXPECT_EQ(options.port, 29501);
  EXPECT_EQ(options.said_by, "SLURM_PROCID, SLURM_STEP_NUM_TASKS, MASTER_ADDR, MASTER_PORT");
  srun.erase("MASTER_ADDR");
  srun["SLURM_STEP_NODELIST"] = "n[0-";
  EXPECT_REFUSED(from(srun), "SLURM_STEP_NODELIST: found 'n[0-'", "n[1-3],m7");

  auto pmi2 = test::launchers(1, 4).at("srun");
  for (const auto& [name, value] : Variables{{"PMI_RANK", "1"},
                                             {"PMI_SIZE", "4"},
                                             {"PMI_FD", "9"},
                                             {"SLURM_JOB_ID", "1234567"},
                                             {"SLURM_STEP_NODELIST", "n[2-3]"}})
    pmi2[name] = value;
  options = from(pmi2);
  EXPECT_EQ(options.host, "n2");
  EXPECT_EQ(options.port, 15000 + 4567);
  EXPECT_EQ(options.said_by, "PMI_RANK, PMI_SIZE, SLURM_STEP_NODELIST, SLURM_JOB_ID");
  pmi2["PMI_SIZE"] = "8";  // mpiexec that srun has started once on each machine: who of the 8 is where, it does not say
  EXPECT_REFUSED(from(pmi2), "MASTER_ADDR: found none");

  auto mpirun = test::launchers(1, 2).at("mpirun");
  mpirun["PMIX_NAMESPACE"] = "2310733825";
  mpirun.erase("OMPI_COMM_WORLD_LOCAL_SIZE");
  EXPECT_REFUSED(from(mpirun), "MASTER_ADDR: found none");  // on which machine is rank 0?
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  options = from(mpirun);
  EXPECT_EQ(options.host, "127.0.0.1");
  EXPECT_EQ(options.port, 15000 + 3825);
  mpirun["PMIX_NAMESPACE"] = "prterun-host-77@1";
  EXPECT_NE(from(mpirun).port, options.port);
  EXPECT_GE(from(mpirun).port, 15000);
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_REFUSED(from(mpirun), "MASTER_ADDR: found none");
}

TEST(GroupOptions, TheAgentServesAndCountsRestarts) {
  auto torchrun = test::launchers(0, 2).at("torchrun");
  torchrun["TORCHELASTIC_RUN_ID"] = "none";
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  torchrun["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_TRUE(from(torchrun).launcher_serves);
  EXPECT_EQ(from(torchrun).attempt, 2);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(from(torchrun).launcher_serves);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "maybe";
  EXPECT_REFUSED(from(torchrun), "TORCHELASTIC_USE_AGENT_STORE", "maybe");
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "1";
  torchrun["TORCHELASTIC_RESTART_COUNT"] = "-1";
  EXPECT_REFUSED(from(torchrun), "TORCHELASTIC_RESTART_COUNT", "-1");
}

/// By scontrol show hostnames of Slurm 22.05.
TEST(GroupOptions, FirstHostOfASlurmList) {
  for (const auto& [list, host] : std::map<std::string, std::string>{{"n0", "n0"},
                                                                     {"n[0-1]", "n0"},
                                                                     {"n[001-004,7],m3", "n001"},
                                                                     {"m3,n[001-004]", "m3"},
                                                                     {"rack[2-3]-node[10-11,4]", "rack2-node10"},
                                                                     {"gpu-a.example.org", "gpu-a.example.org"}})
    EXPECT_EQ(first_host(list), host);
  for (const char* wrong : {"", ",", "n[", "n]", "n[]", "n[a-b]", "n[-1]", "n[1"})
    EXPECT_FALSE(first_host(wrong)) << wrong;
}

TEST(GroupOptions, NamesTheVariableThatIsWrong) {
  EXPECT_REFUSED(from({{"RANK", "1"}}), "[process group] environment variable 'WORLD_SIZE': found nothing",
                 "RANK is 1");
  EXPECT_REFUSED(from({{"WORLD_SIZE", "2"}, {"RANK", "2"}}), "'RANK': found '2'", "0 to 1");
  EXPECT_REFUSED(from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "1"}}), "MASTER_ADDR: found none");
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
  EXPECT_TRUE(refused({"secret: found one of 5 characters", "16 or more"}, {.size = 2, .secret = "short"}));
  EXPECT_TRUE(
      refused({"file: found '/no/such/folder/f'", "folder that exists"}, {.size = 2, .file = "/no/such/folder/f"}));
  check({.rank = 1, .size = 2});
}

}  // namespace
}  // namespace fp8::runtime::distributed
