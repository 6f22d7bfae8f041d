// SPDX-License-Identifier: Apache-2.0
// fp8 train as several processes: the run of one process with the whole batch, for every strategy and launcher; killed
// and restarted, on as many ranks or on others; and what is refused.

#include "support/golden.h"
#include "support/launchers.h"
#include "support/ports.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

using namespace test;

/// Ranks of one run, started together. arguments(rank), environment(rank): more than the launcher's.
class RankProcesses {
 public:
  using ByRank = std::function<std::vector<std::string>(int)>;

  RankProcesses(const ByRank& arguments, int size, const std::vector<Variables>& more = {},
                const std::string& launcher = "torchrun") {
    const auto port = free_port();
    for (int rank = 0; rank < size; ++rank) {
      RunOptions options{.environment = no_launcher()};
      const Variables set_by_launcher = launchers(rank, size).at(launcher);
      for (const auto& [name, value] : set_by_launcher) options.environment[name] = value;
      options.environment["MASTER_ADDR"] = "127.0.0.1";
      options.environment["MASTER_PORT"] = port;
      options.environment["OMP_NUM_THREADS"] = "1";
      if (static_cast<std::size_t>(rank) < more.size())
        for (const auto& [name, value] : more[static_cast<std::size_t>(rank)]) options.environment[name] = value;
      children_.push_back(std::make_unique<Fp8Process>(arguments(rank), options));
    }
  }
  RankProcesses(const std::vector<std::string>& arguments, int size, const std::vector<Variables>& more = {},
                const std::string& launcher = "torchrun")
      : RankProcesses([&](int) { return arguments; }, size, more, launcher) {}

  /// Waits until `out` has logged `lines` steps, then sends the signal to `rank`.
  void signal_after(const std::filesystem::path& out, std::size_t lines, int rank, int number) const {
    wait_for([&] { return steps_logged(out) >= lines; });
    send(rank, number);
  }
  void send(int rank, int number) const { children_[static_cast<std::size_t>(rank)]->send(number); }

  /// The result of one, which is killed after `limit`.
  Run wait(int rank, std::chrono::seconds limit = std::chrono::hours(1)) {
    Fp8Process& process = *children_[static_cast<std::size_t>(rank)];
    if (!wait_for([&] { return process.ended(); }, limit)) process.send(SIGKILL);
    return process.wait();
  }
  /// The results, by rank.
  std::vector<Run> wait() {
    std::vector<Run> runs;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) runs.push_back(wait(static_cast<int>(rank)));
    return runs;
  }

 private:
  std::vector<std::unique_ptr<Fp8Process>> children_;
};

/// All of them end well, and rank 0 alone says something. Returns what it said.
io::Json expect_trained(RankProcesses processes) {
  const auto runs = processes.wait();
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    EXPECT_EQ(runs[rank].code, 0) << rank << ": " << runs[rank].err;
    if (rank > 0) {
      EXPECT_EQ(runs[rank].out + runs[rank].err, "") << rank;
    }
  }
  return runs[0].code == 0 ? io::parse_json(runs[0].out, "stdout") : io::Json::object();
}

class TrainRanks : public test::TrainingFolder {};

TEST_F(TrainRanks, HalfTheBatchEachIsTheWholeBatch) {
  const std::vector<std::string> more = args("--steps 15 --save-dtype f32 --eval $HELDOUT --eval-batch 16");
  const auto with = [&](const std::string& out, const std::vector<std::string>& and_more) {
    auto all = more;
    all.insert(all.end(), and_more.begin(), and_more.end());
    return arguments(folder, out, all);
  };
  const auto one = succeeded(run_fp8(with("one", {"--batch", "8"})));
  const auto expected = log_of(folder / "one");
  const std::vector<std::pair<std::string, std::vector<std::string>>> strategies = {
      {"hpu_parallel", {}},
      {"hpu_ddp", {"--gradient-as-bucket-view", "--strategy", "hpu_ddp"}},
      {"fast_ddp", {"--strategy", "fast_ddp", "--fusion-buffer-dtype", "f32"}}};
  for (const auto& [name, options] : strategies) {
    SCOPED_TRACE(name);
    const auto json = expect_trained(RankProcesses(with(name, options), 2));
    EXPECT_EQ(json.value("ranks", 0), 2);
    EXPECT_EQ(json.value("ranks_said_by", ""), "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT");
    EXPECT_EQ(json.value("strategy", ""), name);
    EXPECT_EQ(json.value("tokens", 0), 15 * 8 * 64);  // of all ranks
    const auto log = log_of(folder / name);
    ASSERT_EQ(log.size(), expected.size());
    for (std::size_t i = 0; i < log.size(); ++i) {
      EXPECT_NEAR(log[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 1e-6) << i;
      EXPECT_EQ(log[i]["tokens"], 8 * 64);
      EXPECT_NEAR(log[i]["tokens_per_second"].get<double>() * log[i]["seconds"].get<double>(), 8 * 64, 1e-6);
    }
    EXPECT_NEAR(log[14]["eval_loss"].get<double>(), expected[14]["eval_loss"].get<double>(), 1e-6);
    EXPECT_TRUE(read_file(folder / name / "model.safetensors") == read_file(folder / "hpu_parallel/model.safetensors"));
    EXPECT_EQ(timeless(log), timeless(log_of(folder / "hpu_parallel")));
  }
}

TEST_F(TrainRanks, EveryLauncherTrainsTheSame) {
  for (const std::string launcher : {"torchrun", "mpirun", "mpiexec", "srun"}) {
    expect_trained(RankProcesses(arguments(folder, launcher, "--steps 3 --warmup 1"), 2, {}, launcher));
    EXPECT_TRUE(read_file(folder / launcher / "model.safetensors") == read_file(folder / "torchrun/model.safetensors"));
  }
}

/// fp8 in the buckets' backward, and a backward inside of backward.
TEST_F(TrainRanks, Fp8TrainsTheSameInEveryForm) {
  const std::map<std::string, std::vector<std::string>> forms = {
      {"parallel", {}},
      {"ddp", {"--strategy", "hpu_ddp"}},
      {"again", {"--activation-checkpointing", "--strategy", "hpu_ddp"}},
      {"pairs", {"--strategy", "hpu_ddp", "--reduce-amax", "2"}}};
  for (const auto& [name, options] : forms) {
    auto more = options;
    more = args("{} --precision fp8 --steps 6 --warmup 1 --grad-accum 2", more);
    expect_trained(RankProcesses(arguments(folder, name, more), 2));
    EXPECT_TRUE(read_file(folder / name / "model.safetensors") == read_file(folder / "again/model.safetensors"))
        << name;
  }
}

/// One rank stands still, the other is told to end: it waits in a call, or within backward. Where rank 0 stands still
/// the store does, too.
TEST_F(TrainRanks, ToldToEndItWaitsForNobody) {
  struct Case {
    std::string strategy;
    int told;
    std::unique_ptr<RankProcesses> processes = {};
  };
  std::vector<Case> cases;
  cases.push_back({"hpu_parallel", 0});
  cases.push_back({"hpu_ddp", 0});
  cases.push_back({"hpu_ddp", 1});
  for (auto& c : cases)
    c.processes = std::make_unique<RankProcesses>(
        arguments(folder, c.strategy + std::to_string(c.told), "--strategy {} --steps 100000", c.strategy), 2);
  for (auto& c : cases)
    c.processes->signal_after(folder / (c.strategy + std::to_string(c.told)), 3, 1 - c.told, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  for (auto& c : cases) c.processes->send(c.told, SIGTERM);
  for (auto& c : cases) {
    SCOPED_TRACE(c.strategy + std::to_string(c.told));
    const auto run = c.processes->wait(c.told, std::chrono::seconds(10));
    c.processes->send(1 - c.told, SIGKILL);
    c.processes->wait(1 - c.told);
    EXPECT_EQ(run.code, 143);
    EXPECT_EQ(std::ranges::count(run.error(), '\n'), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr("fp8: error: interrupted: rank " + std::to_string(c.told) + " waits in "));
    EXPECT_THAT(run.err, HasSubstr(c.told == 0 ? ", and rank 1 does not answer"
                                               : ", and the store does not answer: rank 0 serves it"));
  }
}

/// Scales that all ranks share, and scales of each rank's own.
TEST_F(TrainRanks, KilledAndRestartedIsTheSameRun) {
  for (const std::string reduce_amax : {"all", "off"}) {
    SCOPED_TRACE(reduce_amax);
    const auto with = [&](const std::string& out) {
      return arguments(folder, out + reduce_amax,
                       "--resume --quiet --precision fp8 --reduce-amax {} --save-every 7 --batch 2 --rank-timeout 60",
                       reduce_amax);
    };
    expect_trained(RankProcesses(with("whole"), 2));
    const int victim = reduce_amax == "all" ? 1 : 0;
    RankProcesses cut(with("cut"), 2);
    cut.signal_after(folder / ("cut" + reduce_amax), 17, victim, SIGKILL);
    const auto runs = cut.wait();
    EXPECT_EQ(runs[static_cast<std::size_t>(victim)].code, -SIGKILL);
    const auto& survivor = runs[static_cast<std::size_t>(1 - victim)];
    expect_failed(survivor);
    EXPECT_THAT(survivor.err,
                AnyOf(HasSubstr("rank " + std::to_string(victim) + " does not answer"), HasSubstr("rank 0 serves it")));
    EXPECT_GE(expect_trained(RankProcesses(with("cut"), 2)).value("resumed_from", 0), 14);
    expect_same_run(folder / ("whole" + reduce_amax), folder / ("cut" + reduce_amax));
  }
}

/// Nothing is learnt with a rate of 0, so that a loss tells which chunks it is of.
TEST_F(TrainRanks, AnotherNumberOfRanksGoesOnWithTheNextSample) {
  const auto with = [&](const std::string& out, const std::string& steps) {
    return arguments(folder, out, "--resume --lr 0 --warmup 0 --steps {}", steps);
  };
  ASSERT_EQ(run_fp8(with("one", "12")).code, 0);
  const auto chunks = log_of(folder / "one");
  const auto mean = [&](std::size_t first, std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += chunks[first + i]["loss"].get<double>();
    return sum / static_cast<double>(count);
  };
  expect_trained(RankProcesses(with("run", "3"), 2));
  const auto alone = succeeded(run_fp8(with("run", "4")));
  expect_trained(RankProcesses(with("run", "5"), 3));
  const auto log = log_of(folder / "run");
  ASSERT_EQ(log.size(), 5u);
  const std::vector<double> expected = {mean(0, 2), mean(2, 2), mean(4, 2), mean(6, 1), mean(7, 3)};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(log[i]["loss"].get<double>(), expected[i], 1e-6) << i;
}

TEST_F(TrainRanks, RanksThatDifferAreRefusedByName) {
  const auto plain = arguments(folder, "run", "--steps 2 --warmup 1 --rank-timeout 20");
  const auto expect_refused = [&](RankProcesses processes, const std::string& message) {
    for (const auto& run : processes.wait()) {
      expect_failed(run);
      EXPECT_THAT(run.err, HasSubstr(message));
    }
    EXPECT_FALSE(fs::exists(folder / "run")) << message;
  };
  const auto but_rank_1 = [&](const std::vector<std::string>& more) {
    auto other = plain;
    for (std::size_t i = 0; i < more.size(); i += 2)
      *(std::find(other.begin(), other.end(), more[i]) + 1) = more[i + 1];
    return [=](int rank) { return rank == 1 ? other : plain; };
  };
  expect_refused({but_rank_1({"--lr", "0.02"}), 2}, "rank 1 differs from rank 0: lr: found 0.02, rank 0 has");
  expect_refused({but_rank_1({"--data", demo("kjv_heldout_16k.txt")}), 2}, "rank 1 differs from rank 0: chunks: found");
  expect_refused({plain, 2, {{}, {{"FP8_SIMD", "scalar"}}}}, "rank 1 differs from rank 0: instruction set: found");
}

/// The stages of a run file that train nothing: texts and weights that lie elsewhere are compared by what is in them.
TEST_F(TrainRanks, StagesThatDifferAreRefusedByName) {
  fs::copy(init, folder / "other");
  auto config = io::read_json(init / "config.json");
  config["initializer_range"] = 0.03;
  io::write_json(folder / "other/config.json", config);
  auto text = read_file(demo("kjv_heldout_16k.txt"));
  std::ofstream(folder / "same.txt") << text;
  std::ofstream(folder / "text.txt") << text.replace(9000, 1, "#");
  const auto command = [&](const std::string& stage, const fs::path& model, const std::string& data) {
    const auto file = folder / (model.filename().string() + fs::path(data).filename().string() + ".yaml");
    std::ofstream(file) << "trainer: {default_root_dir: " << (folder / "run").string()
                        << "}\nmodel:\n  class_path: fp8.LanguageModel\n  init_args: {init: "
                        << (model / "config.json").string() << ", tokenizer: " << demo("kjv-byte-1.7M")
                        << "}\ndata:\n  class_path: fp8.TextData\n  init_args: {val: " << data << ", test: " << data
                        << ", predict: " << data << ", batch_size: 4, seq_len: 64}\nfp8: {rank_timeout: 20}\n";
    return args("train {} --config {} --json", stage, file);
  };
  const auto plain = demo("kjv_heldout_16k.txt");
  const std::map<std::string, std::string> stages = {
      {"validate", "validation data"}, {"test", "test data"}, {"predict", "prediction data"}};
  for (const auto& [stage, name] : stages) {
    SCOPED_TRACE(stage);
    const auto first = command(stage, init, plain);
    const auto expect_refused = [&](const std::vector<std::string>& other, const std::string& message) {
      for (const auto& run : RankProcesses([&](int rank) { return rank == 1 ? other : first; }, 2).wait()) {
        expect_failed(run);
        EXPECT_THAT(run.err, HasSubstr("rank 1 differs from rank 0: " + message));
      }
      EXPECT_FALSE(fs::exists(folder / "run")) << message;
    };
    expect_refused(command(stage, init, (folder / "text.txt").string()), name + ": text: found");
    if (stage != "validate") continue;
    expect_refused(command(stage, folder / "other", plain), "weights: found");
    expect_trained(
        {[&](int rank) { return rank == 1 ? command(stage, init, (folder / "same.txt").string()) : first; }, 2});
  }
}

TEST_F(TrainRanks, RefusesByName) {
  /// "second NAME=VALUE ... OPTIONS": as rank 1 of 2 but for these variables; "alone OPTIONS".
  const auto refused = [&](const test::Words& words) {
    auto environment = test::no_launcher();
    auto all = words[0] == "second" ? args("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1") : test::Words();
    all.insert(all.end(), words.begin() + 1, words.end());
    test::Words options;
    for (const auto& word : all) {
      if (const auto equals = word.find('='); equals != word.npos)
        environment[word.substr(0, equals)] = word.substr(equals + 1);
      else
        options.push_back(word);
    }
    const auto run = run_fp8(arguments(folder, "run", options), {.environment = environment});
    EXPECT_EQ(run.error_lines(), 1) << run.err;
    EXPECT_FALSE(fs::exists(folder / "run"));
    return std::to_string(run.code) + ": " + run.err;
  };
  EXPECT_GOLDEN(refused(args(text)));
  const test::Listener taken;
  const auto port = std::to_string(taken.port);
  EXPECT_THAT(refused(args("second RANK=0 MASTER_PORT=" + port)),
              AllOf(StartsWith("1: "), HasSubstr("rank 0 of 2 at 127.0.0.1:" + port), HasSubstr("in use")));
  EXPECT_THAT(refused(args("second RANK=0 --rank-timeout 1 MASTER_PORT=" + test::free_port())),
              AllOf(StartsWith("1: "), HasSubstr("rank 1 did not come")));
}

// Traces and activations that are computed again, on two ranks: the weights of a run without either, bit for bit, and a
// trace for each rank that names its collectives.

/// By rank, as the names say: fit-<rank>.<nanoseconds>.pt.trace.json.
std::map<std::string, fs::path> traces_of(const fs::path& folder) {
  std::map<std::string, fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(found.emplace(name.substr(0, name.find('.')), entry.path()).second) << name;
  }
  return found;
}

/// The names of the events that took time, and how many of each.
std::map<std::string, int> events_of(const fs::path& trace) {
  std::map<std::string, int> found;
  const auto json = io::read_json(trace);
  for (const auto& event : json["traceEvents"])
    if (event.value("ph", "") == "X") ++found[event.value("name", "")];
  return found;
}

/// Steps 3 to 5 of 6 are recorded.
class TrainRanksTrace : public test::TrainingFolder {};

TEST_F(TrainRanksTrace, OneForEachRankWithItsCollectivesAndTheSameWeights) {
  const std::map<std::string, std::string> sends = {{"hpu_ddp", "c10d::allreduce_"}, {"fast_ddp", "gloo:all_reduce"}};
  for (const auto& [strategy, call] : sends) {
    const auto train = [&](const std::string& name, std::vector<std::string> more) {
      more = args("{} --strategy {} --precision fp8 --steps 6 --warmup 0", more, strategy);
      expect_trained(RankProcesses(arguments(folder, strategy + name, more), 2));
      return read_file(folder / (strategy + name) / "model.safetensors");
    };
    const std::string plain = train("", {});
    ASSERT_FALSE(plain.empty());
    EXPECT_TRUE(plain == train("-again", {"--activation-checkpointing"})) << strategy;
    const auto traces = folder / (strategy + "-traces");
    EXPECT_TRUE(plain == train("-traced", {"--activation-checkpointing", "--profile", traces.string()})) << strategy;
    const auto by_rank = traces_of(traces);
    ASSERT_EQ(by_rank.size(), 2U);
    for (const int rank : {0, 1}) {
      const auto trace = by_rank.at("fit-" + std::to_string(rank));
      const auto events = events_of(trace);
      EXPECT_GE(events.contains(call) ? events.at(call) : 0, 3) << strategy << ": " << call << " in " << trace;
      EXPECT_EQ(events.contains("ProfilerStep#2"), true) << trace;
      EXPECT_EQ(json_of(run_fp8("inspect {} --json", trace))["steps"]["count"], 3);
    }
  }
}

// fp8 evaluate as several processes: all of them refuse, by name, a rank that would score something else. That the
// numbers are those of one process: e2e/shares_test.cpp.

struct EvaluateRanks : ::testing::Test {
  static std::vector<std::string> command(const std::string& model = demo("kjv-byte-1.7M"),
                                          const std::string& data = demo("kjv_heldout_16k.txt"),
                                          const std::vector<std::string>& more = {}) {
    std::vector<std::string> all =
        args("evaluate --json --device cpu --seq-len 32 --rank-timeout 20 --model {} --data {}", model, data);
    const bool samples = std::find(more.begin(), more.end(), "--samples") != more.end();
    if (!samples) all.insert(all.end(), {"--samples", "4"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static void expect_refused(RankProcesses processes, const std::string& message) {
    for (const auto& run : processes.wait()) {
      expect_failed(run);
      EXPECT_EQ(run.out, "");
      EXPECT_THAT(run.err, HasSubstr("rank 1 differs from rank 0: " + message));
    }
  }
  static void expect_refused(const std::vector<std::string>& second, const std::string& message, int ranks = 2) {
    expect_refused({[&](int rank) { return rank == 1 ? second : command(); }, ranks}, message);
  }
  /// A copy of the model in another place.
  fs::path copy(const std::string& name) const {
    fs::copy(demo("kjv-byte-1.7M"), folder_ / name);
    return folder_ / name;
  }
  const test::TempDir folder_;
};

TEST_F(EvaluateRanks, WhoDiffersIsRefusedByAll) {
  const auto model = demo("kjv-byte-1.7M"), data = demo("kjv_heldout_16k.txt");
  expect_refused(command(model, data, {"--samples", "5"}), "data: samples: found 5, rank 0 has 4", 3);
  expect_refused(command(model, data, {"--attention", "eager"}), "attention: found \"eager\"");
  expect_refused({command(), 2, {{}, {{"FP8_SIMD", "scalar"}}}}, "instruction set: found \"scalar\"");

  const auto other = copy("other");
  auto config = io::read_json(other / "config.json");
  config["rms_norm_eps"] = 1e-3;
  io::write_json(other / "config.json", config);
  expect_refused(command(other.string()), "model: config.json: found");
  expect_refused(command(model, data, {"--reference", other.string()}), "reference: found");

  std::ofstream(folder_ / "text.txt") << read_file(data).replace(100, 1, "#");
  expect_refused(command(model, (folder_ / "text.txt").string()), "samples: found [4,");
}

/// Far from the ends of its file, which are compared before the model is read.
TEST_F(EvaluateRanks, OneWeightIsAnotherModel) {
  const auto other = copy("other");
  const auto file = other / "model.safetensors";
  auto bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  expect_refused(command(other.string()), "weights: found");
}

TEST_F(EvaluateRanks, WhereFilesLieMakesNoDifference) {
  const auto other = copy("other");
  fs::copy_file(demo("kjv_heldout_16k.txt"), folder_ / "text.txt");
  const auto elsewhere = command(other.string(), (folder_ / "text.txt").string());
  const auto json = expect_trained({[&](int rank) { return rank == 1 ? elsewhere : command(); }, 2});
  EXPECT_EQ(json.value("ranks", 0), 2);
  EXPECT_EQ(json.value("tokens", 0), 4 * 32);
}

TEST_F(EvaluateRanks, ARankThatDoesNotComeIsNamed) {
  auto environment = test::no_launcher();
  const auto torchrun = test::launchers(0, 2).at("torchrun");
  for (const auto& [name, value] : torchrun) environment[name] = value;
  environment["MASTER_PORT"] = test::free_port();
  auto alone = command();
  *(std::find(alone.begin(), alone.end(), "--rank-timeout") + 1) = "1";
  expect_failed(run_fp8(alone, {.environment = environment}),
                {"rank 1 did not come within 1000 ms", "(by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"});
}

}  // namespace
}  // namespace fp8
