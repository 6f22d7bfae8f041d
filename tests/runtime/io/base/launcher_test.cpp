// SPDX-License-Identifier: Apache-2.0
// One reader for all launchers: who this process is, alone, inside of each of them, and inside of one that another has
// started.

#include <thread>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "support/golden.h"
#include "support/launchers.h"
#include "support/throws_with.h"

namespace fp8::io {
namespace {

using test::Variables;

std::optional<Launched> read(const Variables& variables) {
  return launched([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect(const Variables& variables, int rank, int size) {
  const auto found = read(variables);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, rank) << found->text();
  EXPECT_EQ(found->size, size) << found->text();
}

Variables both(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

std::string launch_error(const Variables& variables) {
  return test::error_of<Error>([&] { read(variables); });
}

TEST(Launcher, AllFourNameRankAndSize) {
  for (int rank = 0; rank < 3; ++rank)
    for (const auto& [name, variables] : test::launchers(rank, 3)) {
      SCOPED_TRACE(name);
      expect(variables, rank, 3);
    }
  EXPECT_EQ(read(test::launchers(1, 3).at("mpirun"))->text(),
            "this is rank 1 of 3, as OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE say");
}

/// srun --mpi=pmi2, or MpiDefault=pmi2 in slurm.conf.
TEST(Launcher, SlurmAndPmiThatAgreeAreOne) {
  auto slurm = both(test::launchers(1, 3).at("srun"), {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PMI_FD", "9"}});
  expect(slurm, 1, 3);
  slurm["PMI_RANK"] = "2";
  EXPECT_THAT(launch_error(slurm), HasSubstr("'PMI_RANK': found 2, allowed: 1, which SLURM_PROCID says"));
}

TEST(Launcher, AloneWithoutOne) {
  EXPECT_FALSE(read({}).has_value());
  EXPECT_FALSE(read(test::no_launcher()).has_value());
  EXPECT_FALSE(read({{"WORLD_SIZE", "1"}}).has_value());
  for (const char* name : {"mpirun", "mpiexec", "srun"})
    EXPECT_FALSE(read(test::launchers(0, 1).at(name)).has_value()) << name;
  expect(test::launchers(0, 1).at("torchrun"), 0, 1);  // names its files _0_1, as Intel Neural Compressor does
}

/// The one process of a batch script sees how many tasks its job may start.
TEST(Launcher, TheFirstProcessIsAloneOrRank0) {
  {
    const test::LauncherEnvironment environment({});
    EXPECT_TRUE(is_first_process());
  }
  for (const char* rank : {"0", "1"}) {
    const test::LauncherEnvironment environment({{"RANK", rank}, {"WORLD_SIZE", "2"}});
    EXPECT_EQ(is_first_process(), rank[0] == '0');
  }
}

TEST(Launcher, TheShellOfABatchScriptIsAlone) {
  EXPECT_FALSE(
      read({{"SLURM_NTASKS", "8"}, {"SLURM_NPROCS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}).has_value());
  EXPECT_FALSE(read({{"SLURM_NTASKS", "8"}}).has_value());
}

TEST(Launcher, HalfAFamilyIsAnError) {
  const auto error = [](const std::string& text) {
    std::istringstream words(text);
    Variables variables;
    for (std::string word; words >> word;) variables[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    return launch_error(variables);
  };
  EXPECT_GOLDEN(error(text));
  // Not halves: where ranks would meet, a batch script's shell, and a machine's number beside another family.
  EXPECT_FALSE(read({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}}).has_value());
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}}).has_value());
  auto srun = test::launchers(1, 2).at("srun");
  srun["NODE_RANK"] = "1";
  expect(srun, 1, 2);
}

TEST(Launcher, TheInnermostCounts) {
  const auto srun = test::launchers(1, 2).at("srun");  // one process on each of two machines
  expect(both(srun, test::launchers(5, 8).at("torchrun")), 5, 8);
  expect(both(srun, test::launchers(5, 8).at("mpirun")), 5, 8);
  expect(both(srun, test::launchers(5, 8).at("mpiexec")), 5, 8);
  expect(both({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, srun), 1, 2);
}

TEST(Launcher, ContradictionsAreErrors) {
  const auto srun = test::launchers(1, 4).at("srun");
  const Variables by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(launch_error(both(srun, by_hand)),
            "environment variable 'RANK': found 0, allowed: 1, which SLURM_PROCID says of as many processes");
  EXPECT_EQ(launch_error(both(srun, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})),
            "environment variable 'WORLD_SIZE': found 2, allowed: 4, which SLURM_STEP_NUM_TASKS says, or more");
  EXPECT_THAT(launch_error(both(test::launchers(2, 4).at("mpirun"), srun)),
              HasSubstr("'OMPI_COMM_WORLD_RANK': found 2, allowed: 1, which SLURM_PROCID says"));
  expect(both(srun, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}), 1, 4);
  expect(both(srun, both(by_hand, {{"TORCHELASTIC_RUN_ID", "x"}})), 0, 4);  // torchrun numbers machines as they come
}

/// The variables that manuals export on each machine are for a launcher.
TEST(Launcher, AMachineWithoutARankIsToldOfTorchrun) {
  EXPECT_THAT(
      launch_error({{"WORLD_SIZE", "16"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}}),
      HasSubstr("'RANK': found nothing, but WORLD_SIZE is 16, allowed: 0 to 15, or LOCAL_RANK; NODE_RANK is for a "
                "launcher: torchrun --nnodes MACHINES --nproc-per-node 16/MACHINES --node-rank 1 "));
}

TEST(Launcher, RankFromMachineAndLocalRank) {
  const auto with = [](const Variables& more) {
    return both(more, {{"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}});
  };
  expect(with({}), 1, 4);
  expect(with({{"NODE_RANK", "1"}}), 3, 4);
  expect(with({{"GROUP_RANK", "1"}}), 3, 4);
  expect(with({{"RANK", "2"}}), 2, 4);
  EXPECT_THAT(launch_error(with({{"NODE_RANK", "2"}})),
              HasSubstr("'NODE_RANK': found '2', allowed: an integer from 0 to 1"));
  EXPECT_THAT(launch_error({{"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
              HasSubstr("'LOCAL_RANK': found '2', allowed: an integer from 0 to 1"));
  EXPECT_THAT(launch_error({{"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"NODE_RANK", "1"}}),
              HasSubstr("'NODE_RANK': found '1', allowed: what makes ranks 0 to 2"));
}

TEST(Launcher, BadVariablesAreNamed) {
  EXPECT_EQ(launch_error({{"RANK", "1"}}),
            "environment variable 'WORLD_SIZE': found nothing, but RANK is 1, allowed: 1 to 65536");
  EXPECT_THAT(launch_error({{"LOCAL_RANK", "0"}}), HasSubstr("'WORLD_SIZE': found nothing, but LOCAL_RANK is 0"));
  EXPECT_EQ(launch_error({{"WORLD_SIZE", "2"}}),
            "environment variable 'RANK': found nothing, but WORLD_SIZE is 2, allowed: 0 to 1, or LOCAL_RANK");
  EXPECT_THAT(launch_error({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "2"}}),
              HasSubstr("'SLURM_PROCID': found '2', allowed: an integer from 0 to 1 (SLURM_STEP_NUM_TASKS is 2)"));
  for (const char* wrong : {"2", "-1", "x", "1 ", "0x1", "1.0", "99999999999"})
    EXPECT_EQ(launch_error({{"WORLD_SIZE", "2"}, {"RANK", wrong}}),
              "environment variable 'RANK': found '" + std::string(wrong) +
                  "', allowed: an integer from 0 to 1 (WORLD_SIZE is 2)");
  for (const char* wrong : {"0", "65537", "two"}) {
    EXPECT_THAT(launch_error({{"WORLD_SIZE", wrong}, {"RANK", "0"}}),
                HasSubstr("'WORLD_SIZE': found '" + std::string(wrong) + "', allowed: an integer from 1 to 65536"));
    EXPECT_THAT(launch_error({{"PMI_SIZE", wrong}, {"PMI_RANK", "0"}}),
                HasSubstr("'PMI_SIZE': found '" + std::string(wrong) + "'"));
  }
}

// The value of a flag in force and its source: default, environment, override, owner; in that order.

constexpr const char* kName = "PT_HPU_LAZY_MODE";  // no code overrides it

struct RuntimeFlagsTest : ::testing::Test {
  void SetUp() override { TearDown(); }
  void TearDown() override {
    override_flag(kName, std::nullopt);
    unsetenv(kName);
  }
};

TEST_F(RuntimeFlagsTest, EveryRowInItsOrder) {
  const RuntimeFlags flags = RuntimeFlags::from_env();
  ASSERT_EQ(flags.all().size(), variables().size());
  for (std::size_t i = 0; i < flags.all().size(); ++i) {
    EXPECT_EQ(flags.all()[i].row, &variables()[i]);
    EXPECT_EQ(&flags[variables()[i].name], &flags.all()[i]);
  }
  EXPECT_THROW(flags["FP8_HPU_DEVCE"], std::logic_error);
}

TEST_F(RuntimeFlagsTest, DefaultThenEnvironment) {
  const Flag unset = RuntimeFlags::from_env()[kName];
  EXPECT_EQ(unset.source, FlagSource::default_value);
  EXPECT_EQ(unset.value, unset.row->fallback);
  EXPECT_EQ(unset.source_text(), "default");
  setenv(kName, "", 1);
  EXPECT_EQ(RuntimeFlags::from_env()[kName].source, FlagSource::default_value);
  setenv(kName, "1", 1);
  const Flag set = RuntimeFlags::from_env()[kName];
  EXPECT_EQ(set.source, FlagSource::environment);
  EXPECT_EQ(set.value, "1");
  EXPECT_EQ(set.source_text(), "environment");
  EXPECT_EQ(unset.value, unset.row->fallback);  // it is what was, not what is
}

TEST_F(RuntimeFlagsTest, NobodyIsShownASecret) {
  setenv("FP8_JOB_SECRET", "0123456789abcdef", 1);
  EXPECT_EQ(RuntimeFlags::from_env()["FP8_JOB_SECRET"].value, "set");
  EXPECT_EQ(environment_problem("FP8_JOB_SECRET"), "");
  unsetenv("FP8_JOB_SECRET");
  EXPECT_EQ(RuntimeFlags::from_env()["FP8_JOB_SECRET"].value, "none");
}

TEST_F(RuntimeFlagsTest, WhatWasSaidStandsBeforeTheEnvironmentUntilItIsTakenBack) {
  setenv(kName, "1", 1);
  override_flag(kName, FlagSetting{"0", FlagSource::option, "--threads"});
  const Flag said = RuntimeFlags::from_env()[kName];
  EXPECT_EQ(said.value, "0");
  EXPECT_EQ(said.source_text(), "option: --threads");
  override_flag(kName, FlagSetting{"2", FlagSource::config_file, "quant.json"});
  EXPECT_EQ(RuntimeFlags::from_env()[kName].value, "2");
  EXPECT_EQ(RuntimeFlags::from_env()[kName].source_text(), "config file: quant.json");
  override_flag(kName, std::nullopt);
  EXPECT_EQ(RuntimeFlags::from_env()[kName].source, FlagSource::environment);
  EXPECT_THROW(override_flag("PATH", std::nullopt), std::logic_error);
  EXPECT_THROW(override_flag("PATH", FlagSetting{"x", FlagSource::call, ""}), std::logic_error);
}

thread_local bool g_mine = false;

TEST_F(RuntimeFlagsTest, AnOwnerAnswersForTheThreadThatAsks) {
  static const FlagOwner owner("PT_HPU_WEIGHT_SHARING", []() -> std::optional<FlagSetting> {
    if (!g_mine) return std::nullopt;
    return FlagSetting{"off", FlagSource::call, "Mine"};
  });
  override_flag("PT_HPU_WEIGHT_SHARING", FlagSetting{"on", FlagSource::option, "--shared"});
  EXPECT_EQ(RuntimeFlags::from_env()["PT_HPU_WEIGHT_SHARING"].source_text(), "option: --shared");
  g_mine = true;
  EXPECT_EQ(RuntimeFlags::from_env()["PT_HPU_WEIGHT_SHARING"].source_text(), "call: Mine");
  std::string elsewhere;
  std::thread([&] { elsewhere = RuntimeFlags::from_env()["PT_HPU_WEIGHT_SHARING"].value; }).join();
  EXPECT_EQ(elsewhere, "on");
  g_mine = false;
  override_flag("PT_HPU_WEIGHT_SHARING", std::nullopt);
  EXPECT_THROW(FlagOwner("PATH", nullptr), std::logic_error);
}

}  // namespace
}  // namespace fp8::io
