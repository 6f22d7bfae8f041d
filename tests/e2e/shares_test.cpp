// SPDX-License-Identifier: Apache-2.0
// One work on several processes: by ranks, and in shares that are taken one after the other, by processes that are
// killed at random moments too. What comes of it has the bytes that one process writes.

#include "e2e/processes.h"

namespace fp8::e2e {
namespace {

/// Three processes that are killed at random and started again, `kills` times or until one of them has got to the end.
/// most: ms between two kills. Returns the number of kills that met a process at work.
int run_with_kills(const Arguments& arguments, int kills, unsigned seed, unsigned most, const fs::path& done) {
  constexpr int kBeside = 3;
  std::mt19937 random(seed);
  Processes processes;
  std::vector<std::size_t> running;
  for (int i = 0; i < kBeside; ++i) running.push_back(processes.start(arguments));
  int met = 0;
  for (int i = 0; i < kills && !fs::exists(done); ++i) {
    ::usleep(random() % (1000 * most));
    auto& one = running[random() % kBeside];
    met += processes.kill(one) ? 1 : 0;
    one = processes.start(arguments);
  }
  for (const auto i : running) {
    const auto run = succeeded(processes.wait(i));
  }
  return met;
}

struct Shares : ::testing::Test {
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  Arguments measuring(const std::string& out, const Arguments& more = {}) const {
    return args("measure --quiet --model $DEMO --data $CALIB --samples 7 --seq-len 32 --batch 2 --out {} {}", at(out),
                more);
  }
  Arguments observer(const std::string& name) const {
    const auto config = folder_ / (name + ".json");
    write_file(config, io::Json{{"mode", "MEASURE"}, {"observer", name}, {"dump_stats_path", "x/p"}}.dump());
    return {"--config", config.string()};
  }
  Arguments quantizing(const std::string& out, const Arguments& more = {}) const {
    return args("quantize --quiet --dynamic --model $DEMO --out {} {}", at(out), more);
  }
  test::TempDir folder_;
};

TEST_F(Shares, AnyNumberOfRanksMeasuresWhatOneProcessDoes) {
  expect_success(fp8(measuring("whole")));
  const auto whole = contents(at("whole"));
  ASSERT_EQ(whole.size(), 5u);
  for (const int world : {2, 3, 9}) {  // of 4 forwards: some have none of 9
    SCOPED_TRACE(world);
    const std::string out = "ranks" + std::to_string(world), n = std::to_string(world);
    std::int64_t samples = 0;
    Processes processes;
    std::vector<std::size_t> ranks;
    for (int r = 0; r < world; ++r) {
      if (r % 3 == 0) {
        for (const auto i : ranks) EXPECT_EQ(processes.wait(i).code, 0);
      }
      const std::string text = std::to_string(r);
      ranks.push_back(r % 2 == 0 ? processes.start(measuring(out, args("--rank {} --world-size {}", text, n)))
                                 : processes.start(measuring(out), {{"PMI_RANK", text}, {"PMI_SIZE", n}}));
    }
    for (const auto i : ranks) EXPECT_EQ(processes.wait(i).code, 0);
    for (int r = 0; r < world; ++r)
      samples += io::read_json(folder_ / (out + "/inc_output_hooks_maxabs_" + std::to_string(r) + "_" + n + ".json"))
                     .value("NumSamples", std::int64_t{-1});
    EXPECT_EQ(samples, 7);
    const auto before = contents(at(out));
    for (int again = 0; again < 2; ++again) {
      expect_success(fp8(measuring(out, {"--join"})));
      const auto after = contents(at(out));
      for (const auto& [name, bytes] : whole) EXPECT_TRUE(after.contains(name) && after.at(name) == bytes) << name;
      for (const auto& [name, bytes] : before) EXPECT_TRUE(after.contains(name) && after.at(name) == bytes) << name;
      EXPECT_EQ(after.size(), before.size() + whole.size());
    }
  }
  // Quantizing takes the one that was joined.
  expect_success(fp8("quantize --model $DEMO --measurements {} --out {}", at("ranks2"), at("fp8")));
}

TEST_F(Shares, WhatObserversKnowIsJoined) {
  for (const char* name : {"percentile", "histogram", "maxabs_per_channel", "shape"}) {
    SCOPED_TRACE(name);
    const auto more = observer(name);
    expect_success(fp8(measuring(std::string("whole-") + name, more)));
    const std::string out = std::string("ranks-") + name;
    Processes processes;
    for (int r = 0; r < 2; ++r) processes.start(measuring(out, args("{} --rank {} --world-size 2", more, r)));
    for (int r = 0; r < 2; ++r) EXPECT_EQ(processes.wait(static_cast<std::size_t>(r)).code, 0);
    expect_success(fp8(measuring(out, args("{} --join", more))));
    const auto whole = contents(at(std::string("whole-") + name)), after = contents(at(out));
    for (const auto& [file, bytes] : whole) EXPECT_TRUE(after.contains(file) && after.at(file) == bytes) << file;
  }
  expect_refused(fp8(measuring("save", args("{} --join 2", observer("save")))),
                 {"observer 'save'", "can't be joined", "allowed: maxabs"});
}

TEST_F(Shares, PartsOfSomethingElseAreNotJoined) {
  expect_refused(fp8(measuring("out", {"--join"})), {"no shares to join"});
  expect_success(fp8(measuring("out", args("--rank 0/2"))));
  expect_refused(fp8(measuring("out", {"--join"})), {"can't join the measurements of 2 ranks, missing: 1"});
  expect_success(fp8(measuring("out", args("--rank 1/2 --skip 1"))));
  expect_refused(fp8(measuring("out", {"--join"})), {"_1_2.json: is of other files, samples or options"});
  expect_success(fp8(measuring("out", args("--rank 1/2"))));
  expect_refused(fp8(measuring("out", args("--join --exclude q_proj"))), {"_0_2.json: is of other files, samples"});
  expect_success(fp8(measuring("out", {"--join"})));
  // Other forwards are other shares of the samples.
  auto other = measuring("out", args("--rank 1/2"));
  *(std::find(other.begin(), other.end(), "--batch") + 1) = "1";
  expect_success(start_fp8(other).wait());  // joins older than its process go
  expect_refused(fp8(measuring("out", {"--join"})), {"_1_2.json: is of other files, samples or options"});
  expect_refused(fp8(measuring("out", {"--shares", "0"})), {"--shares: found '0', allowed: K or K:SECONDS, K from 1"},
                 2);
  expect_refused(fp8(measuring("out", args("--join x"))), {"--join: found 'x', allowed: nothing, a number"}, 2);
  expect_refused(fp8(measuring("out", args("--join --shares 3"))), {"no shares to join"});
}

TEST_F(Shares, MeasuringSurvivesKills) {
  expect_success(fp8(measuring("whole")));
  const auto whole = contents(at("whole"));
  const auto arguments = measuring("out", args("--shares 4 --join wait"));
  EXPECT_GE(run_with_kills(arguments, 6, 3, 300, folder_ / "out/inc_output_hooks_maxabs.json"), 1);
  EXPECT_TRUE(contents(at("out")) == whole);
  EXPECT_EQ(json_of(fp8("{} --json", arguments)).value("finished_before", false), true);
}

TEST_F(Shares, BlockWiseToo) {
  expect_success(fp8(measuring("whole")));
  expect_success(fp8(measuring("out", args("--block-wise --shares 3"))));
  EXPECT_THAT(names_in(folder_ / "out"), ElementsAre(".inc_output_hooks_maxabs.shares"));
  expect_success(fp8(measuring("out", {"--join"})));  // finds what there is to join
  EXPECT_TRUE(contents(at("out")) == contents(at("whole")));
}

TEST_F(Shares, QuantizingSurvivesKills) {
  int met = 0;
  for (const Arguments& shards : {Arguments{}, Arguments{"--shard-size", "700000"}}) {
    const std::string end = std::to_string(shards.size());
    expect_success(fp8(quantizing("whole" + end, shards)));
    const auto arguments = quantizing("out" + end, args("{} --shares 7 --join wait:100", shards));
    met += run_with_kills(arguments, 12, 5, 8, folder_ / ("out" + end));
    EXPECT_TRUE(contents(at("out" + end)) == contents(at("whole" + end)));
    EXPECT_EQ(json_of(fp8("{} --json", arguments)).value("finished_before", false), true);
  }
  EXPECT_GE(met, 1);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("out0", "out2", "whole0", "whole2"));
  const Arguments convert = args("convert --quiet --model {} --format bf16 --out", at("whole0"));
  expect_success(fp8("{} {}", convert, at("bf16")));
  const auto arguments = args("{} {} --shares 3", convert, at("joined"));
  expect_success(fp8(arguments));
  EXPECT_FALSE(fs::exists(at("joined")));
  expect_success(fp8("{} --join --verify", arguments));
  EXPECT_TRUE(contents(at("joined")) == contents(at("bf16")));
}

/// Processes with different options, and a folder that another program has written into.
TEST_F(Shares, AFolderThatIsNotOurs) {
  const fs::path folder = folder_ / ".out.shares";
  expect_success(fp8(quantizing("out", {"--shares", "3"})));
  expect_refused(fp8(quantizing("out", {"--shares", "4"})), {"is of other work: 'world size' was 3, is 4"});
  expect_refused(fp8(quantizing("out", args("--shares 3 --scheme tensor"))), {"is of other work: 'option"});
  expect_refused(fp8(quantizing("out", args("--shares 3 --overwrite --check"))), {"--check reads a whole output"}, 2);
  fs::remove_all(folder / "1.part-0");
  fs::remove(folder / "1.done");
  write_file(folder / "1.lease-0", std::string("\0\1\2\3", 4));
  auto run = succeeded(fp8("quantize --dynamic --model $DEMO --out {} --shares 3:0.3 --join wait", at("out")));
  EXPECT_THAT(run.err, AllOf(HasSubstr("1.lease-0: can't be read"), HasSubstr("expires")));
  expect_success(fp8(quantizing("whole")));
  EXPECT_TRUE(contents(at("out")) == contents(at("whole")));
}

TEST_F(Shares, EvaluatingIsTheSameOnAnyNumberOfRanks) {
  expect_success(fp8(quantizing("fp8")));
  const Arguments arguments =
      args("evaluate --json --quiet --model {} --reference $DEMO --data $HELDOUT --samples 7 --seq-len 32 --batch 2",
           at("fp8"));
  const auto numbers = [](io::Json json) {
    for (const char* key : {"seconds", "forward_seconds", "tokens_per_second", "ranks", "ranks_said_by"})
      json.erase(key);
    return json;
  };
  const auto whole = numbers(json_of(fp8(arguments)));
  EXPECT_GT(whole.value("kl", 0.0), 0.0);
  for (const int world : {2, 3}) {
    const auto runs = on_ranks(world, arguments);
    for (int r = world - 1; r >= 0; --r) {
      const auto& run = runs[static_cast<std::size_t>(r)];
      EXPECT_EQ(run.code, 0) << run.err;
      if (r > 0) {
        EXPECT_EQ(run.out, "");
      } else {
        EXPECT_EQ(numbers(json_of(run)), whole);
        EXPECT_EQ(json_of(run)["ranks"], world);
        EXPECT_EQ(json_of(run)["ranks_said_by"], "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT");
      }
    }
  }
}

// Each command as two processes that torchrun, mpirun, mpiexec or srun started: by their variables, no launcher is
// needed.

struct RanksOfEveryLauncher : ::testing::TestWithParam<std::string> {
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
    const auto second = succeeded(run_as(1));
    EXPECT_EQ(second.out, "");
    EXPECT_THAT(second.err, AllOf(HasSubstr("warning: " + arguments[0]), HasSubstr(": this is rank 1 of 2"),
                                  HasSubstr("rank 0 does the work alone")));
    EXPECT_NE(succeeded(run_as(0)).out, "");
  }
  test::TempDir folder_;
};

TEST_P(RanksOfEveryLauncher, MeasureDividesItsSamples) {
  const Arguments each = {"--batch", "1"};
  for (int r = 0; r < 2; ++r) {
    const auto run = succeeded(fp8(measuring(each), rank(r)));
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

/// These find the rank as that one does: one launcher is enough.
class RanksOfALauncher : public RanksOfEveryLauncher {};

TEST_P(RanksOfALauncher, Rank0GeneratesAndWritesLogitsAlone) {
  const Arguments evaluate =
      args("evaluate --model $DEMO --data $HELDOUT --samples 1 --seq-len 32 --json --dump-logits {}", at("logits"));
  expect_first_alone(evaluate);
  expect_first_alone(args("generate --model $DEMO --prompt In --tokens 2"));
  expect_first_alone({"inspect", demo_model()});
}

TEST_P(RanksOfALauncher, QuantConfigMeasuresOnEachRankUnlessItsFilesAreOne) {
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
    EXPECT_THAT(succeeded(fp8(evaluate, environment)).err, HasSubstr("each rank measures all of the samples"));
  }
  EXPECT_THAT(names_in(folder_ / "each"),
              ::testing::IsSupersetOf({"p_hooks_maxabs_0_2.json", "p_hooks_maxabs_1_2.json"}));
  Environment environment = rank(1);
  environment["QUANT_CONFIG"] = measure(false);
  EXPECT_THAT(succeeded(fp8(evaluate, environment)).err, HasSubstr("rank 0 does the work alone"));
  EXPECT_THAT(names_in(folder_ / "one"), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Launchers, RanksOfEveryLauncher, ::testing::Values("torchrun", "mpirun", "mpiexec", "srun"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Launchers, RanksOfALauncher, ::testing::Values("srun"));

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
