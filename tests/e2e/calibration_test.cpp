// SPDX-License-Identifier: Apache-2.0
// Calibration as programs: ranks side by side and one after the other, observers, shapes, files in between.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

class Calibration : public ::testing::Test {
 protected:
  /// Of ranks: what they say about themselves is no matter here.
  Arguments quiet_arguments() const {
    auto all = arguments(io::Json::object());
    all.push_back("--quiet");
    return all;
  }
  /// The arguments of a run over `samples`, with the keys of `json` as its config.
  Arguments arguments(io::Json json, const std::string& samples = "4") const {
    json["mode"] = json.value("mode", "MEASURE");
    json["dump_stats_path"] = "x/p";
    const auto config = folder_ / "config.json";
    write_file(config, json.dump());
    return args("measure --model $DEMO --data $CALIB --samples {} --seq-len 64 --batch 2 --config {} --out {}", samples,
                config, out());
  }
  std::filesystem::path out() const { return folder_ / "out"; }
  io::Json json(const std::string& name) const { return io::read_json(out() / name); }
  std::vector<std::filesystem::path> backups() const {
    std::vector<std::filesystem::path> found;
    for (const auto& name : names_in(out())) {
      if (name.rfind("backup_p_", 0) == 0) found.push_back(out() / name);
    }
    return found;
  }
  test::TempDir folder_;
};

TEST_F(Calibration, RanksSideBySideLoseNothing) {
  const auto all = quiet_arguments();
  for (std::size_t run = 0; run < 2; ++run) {
    std::vector<std::thread> ranks;
    for (const char* rank : {"0", "1"}) {
      ranks.emplace_back([&, rank] { expect_success(fp8(all, {{"RANK", rank}, {"WORLD_SIZE", "2"}})); });
    }
    for (auto& rank : ranks) rank.join();
    for (const char* name : {"p_hooks_maxabs_0_2.json", "p_hooks_maxabs_1_2.json"})
      EXPECT_EQ(json(name)["NumSamples"], 2);
    EXPECT_EQ(json("p_hooks_maxabs_1_2.json")["LocalRank"], 1);
    EXPECT_EQ(names_in(out()).size(), 8u + run);
    ASSERT_EQ(backups().size(), run);
  }
  EXPECT_EQ(names_in(backups()[0]).size(), 8u);
}

TEST_F(Calibration, RanksOneAfterTheOtherLoseNothing) {
  const auto all = quiet_arguments();
  for (std::size_t run = 0; run < 2; ++run) {
    for (const char* rank : {"1", "0"}) expect_success(fp8(all, {{"RANK", rank}, {"WORLD_SIZE", "2"}}));
    EXPECT_EQ(names_in(out()).size(), 8u + run);
  }
  ASSERT_EQ(backups().size(), 1u);
  EXPECT_EQ(names_in(backups()[0]).size(), 8u);
}

TEST_F(Calibration, ModeShapeWritesShapes) {
  expect_success(fp8(arguments({{"mode", "SHAPE"}, {"measure_exclude", "NONE"}})));
  EXPECT_THAT(names_in(out()), Contains("p_hooks_shape.npz"));
  const auto shapes = json("p_hooks_shape.json");
  EXPECT_EQ(shapes["Mode"], "Shape");
  const auto& node = shapes["Nodes"]["model.layers.0.self_attn.q_proj"];
  EXPECT_EQ(node["inputs"][0][0].size(), 3u);
  EXPECT_EQ(node["inputs"][0][0][0], 2);  // the last batch
  EXPECT_EQ(node["inputs"][0][0][1], 64);
  EXPECT_EQ(node["inputs"][0][0][2], node["params"]["weight"][0][1]);
}

TEST_F(Calibration, ThresholdsLieWithinTheMaxima) {
  expect_success(fp8(arguments({{"observer", "maxabs"}})));
  const auto maxima = json("p_hooks_maxabs.json")["Nodes"];
  for (const char* observer : {"percentile", "mse", "kl"}) {
    expect_success(fp8(arguments({{"observer", observer}})));
    const auto nodes = json(std::string("p_hooks_") + observer + ".json")["Nodes"];
    ASSERT_EQ(nodes.size(), maxima.size());
    int clipped = 0;
    for (const auto& [module, node] : nodes.items()) {
      for (std::size_t i = 0; i < node["inputs"].size(); ++i) {
        const double t = node["inputs"][i][0][0].get<double>(), amax = maxima[module]["inputs"][i][0][0].get<double>();
        EXPECT_LE(t, amax) << observer << module;
        clipped += t < amax;
      }
    }
    EXPECT_GT(clipped, 5) << observer;
  }
}

TEST_F(Calibration, WhatWasWrittenInBetweenSurvivesTheHardestEnd) {
  const auto all = arguments({{"calibration_sample_interval", 4}}, "4000");
  const pid_t child = fork();
  if (child == 0) {
    test::RunOptions options;
    options.environment = clean({});
    test::become_fp8(all, options, (folder_ / "stdout").string(), (folder_ / "stderr").string());
  }
  const auto list = out() / "p_hooks_maxabs_mod_list.json";
  for (int i = 0; i < 60000 && !std::filesystem::exists(list); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  const auto samples = json("p_hooks_maxabs.json")["NumSamples"].get<std::int64_t>();
  EXPECT_GE(samples, 4);
  EXPECT_LT(samples, 4000);
  EXPECT_THAT(backups(), IsEmpty());
}

TEST_F(Calibration, UnknownObserversAreNamed) {
  expect_refused(fp8(arguments({{"observer", "maxab"}})), {"observer", "maxab", "percentile"});
}

}  // namespace
}  // namespace fp8::e2e
