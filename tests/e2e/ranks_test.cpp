// SPDX-License-Identifier: Apache-2.0
// Each command as two processes that torchrun, mpirun, mpiexec or srun started: by their variables, no launcher is
// needed.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

class RanksOfEveryLauncher : public ::testing::TestWithParam<std::string> {
 protected:
  static Environment rank(int r) { return test::launchers(r, 2).at(GetParam()); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  Arguments measuring(const Arguments& more = {}) const {
    return args("measure --model $DEMO --data $CALIB --samples 2 --seq-len 32 --out {} {}", at("stats"), more);
  }
  /// The work is done by rank 0; rank 1 says so and writes nothing.
  void expect_first_alone(const Arguments& arguments, const Environment& more = {}) const {
    SCOPED_TRACE(arguments[0]);
    const auto run_as = [&](int r) {
      Environment environment = rank(r);
      environment.insert(more.begin(), more.end());
      return fp8(arguments, environment);
    };
    const auto second = run_as(1);
    EXPECT_EQ(second.code, 0) << second.err;
    EXPECT_EQ(second.out, "");
    EXPECT_THAT(second.err, AllOf(HasSubstr("warning: " + arguments[0]), HasSubstr(": this is rank 1 of 2"),
                                  HasSubstr("rank 0 does the work alone")));
    const auto first = run_as(0);
    EXPECT_EQ(first.code, 0) << first.err;
    EXPECT_NE(first.out, "");
  }
  test::TempDir folder_;
};

TEST_P(RanksOfEveryLauncher, MeasureDividesItsSamples) {
  const Arguments each = {"--batch", "1"};
  for (int r = 0; r < 2; ++r) {
    const auto run = fp8(measuring(each), rank(r));
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("this is rank " + std::to_string(r) + " of 2"),
                               HasSubstr("it writes its share, then --join puts all together")));
  }
  std::vector<std::string> expected;
  for (const char* r : {"_0_2", "_1_2"})
    for (const char* end : {".fingerprint", ".json", ".kv_cache", ".npz", "_mod_list.json"})
      expected.push_back(std::string("inc_output_hooks_maxabs") + r + end);
  EXPECT_EQ(names_in(folder_ / "stats"), expected);  // no rank moved another's files away
  for (const char* file : {"stats/inc_output_hooks_maxabs_0_2.json", "stats/inc_output_hooks_maxabs_1_2.json"})
    EXPECT_EQ(io::read_json(folder_ / file)["NumSamples"], 1);
  expect_success(fp8(measuring({"--batch", "1", "--join"})));
  auto alone = measuring();
  alone.back() = at("alone");
  expect_success(fp8(alone));
  for (const auto& [name, bytes] : contents(folder_ / "alone"))
    EXPECT_TRUE(contents(folder_ / "stats").at(name) == bytes) << name;
}

TEST_P(RanksOfEveryLauncher, Rank0GeneratesAndWritesLogitsAlone) {
  const Arguments evaluate =
      args("evaluate --model $DEMO --data $HELDOUT --samples 1 --seq-len 32 --json --dump-logits {}", at("logits"));
  expect_first_alone(evaluate);
  expect_first_alone(args("generate --model $DEMO --prompt In --tokens 2"));
  expect_first_alone({"inspect", demo_model()});
}

TEST_P(RanksOfEveryLauncher, QuantConfigMeasuresOnEachRankUnlessItsFilesAreOne) {
  const auto measure = [&](bool separate) {
    const auto config = folder_ / "measure.json";
    write_file(config, io::Json{{"mode", "MEASURE"},
                                {"dump_stats_path", at(separate ? "each/p" : "one/p")},
                                {"seperate_measure_files", separate}}
                           .dump());
    return config.string();
  };
  std::filesystem::create_directory(folder_ / "each");
  std::filesystem::create_directory(folder_ / "one");
  const Arguments evaluate = args("evaluate --model $DEMO --data $HELDOUT --samples 1 --seq-len 32");
  for (int r = 0; r < 2; ++r) {
    Environment environment = rank(r);
    environment["QUANT_CONFIG"] = measure(true);
    const auto run = fp8(evaluate, environment);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.err, HasSubstr("each rank measures all of the samples"));
  }
  EXPECT_THAT(names_in(folder_ / "each"),
              ::testing::IsSupersetOf({"p_hooks_maxabs_0_2.json", "p_hooks_maxabs_1_2.json"}));
  Environment environment = rank(1);
  environment["QUANT_CONFIG"] = measure(false);
  const auto idle = fp8(evaluate, environment);
  EXPECT_EQ(idle.code, 0) << idle.err;
  EXPECT_THAT(idle.err, HasSubstr("rank 0 does the work alone"));
  EXPECT_THAT(names_in(folder_ / "one"), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Launchers, RanksOfEveryLauncher, ::testing::Values("torchrun", "mpirun", "mpiexec", "srun"),
                         [](const auto& info) { return info.param; });

/// sbatch and salloc: one process, which sees how many tasks its job may start.
TEST(Ranks, TheShellOfABatchScriptWorksAlone) {
  const Environment shell = {
      {"SLURM_NTASKS", "4"}, {"SLURM_NPROCS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "11"}};
  const test::TempDir folder;
  expect_success(
      fp8(args("train --init $DEMO --data $CALIB --out {} --steps 1 --batch 1 --seq-len 16", folder / "run"), shell));
  expect_success(
      fp8(args("measure --model $DEMO --data $CALIB --samples 1 --seq-len 16 --out {}", folder / "stats"), shell));
  EXPECT_TRUE(std::filesystem::exists(folder / "stats/inc_output_hooks_maxabs.json"));
}

TEST(Ranks, VariablesThatMakeNoSenseAreNamed) {
  expect_evaluate_refused(demo_model(), {"environment variable 'RANK': found nothing, but WORLD_SIZE is 2"},
                          {{"WORLD_SIZE", "2"}});
  expect_evaluate_refused(demo_model(), {"environment variable 'PMI_RANK': found 'x'"},
                          {{"PMI_SIZE", "2"}, {"PMI_RANK", "x"}});
}

}  // namespace
}  // namespace fp8::e2e
