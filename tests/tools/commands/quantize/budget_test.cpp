// SPDX-License-Identifier: Apache-2.0
// The program itself with --budget: what it promises about KL is measured again with evaluate.
#include <sstream>

#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

class Budget : public ::testing::Test {
 protected:
  const test::TempDir dir;
};

TEST_F(Budget, IsMetWithTheFewestModulesKept) {
  const auto out = (dir / "q").string();
  const auto json = json_of(
      run_fp8("quantize --model $DEMO --out {} --dynamic --budget kl=0.001 --data $HELDOUT --samples 8 --json", out));
  const auto& budget = json["budget"];
  EXPECT_GT(budget["kl_of_all"].get<double>(), 0.001);
  EXPECT_LE(budget["kl"].get<double>(), 0.001);
  EXPECT_GT(budget["kept"].size(), 0u);
  EXPECT_LT(budget["kept"].size(), 28u);
  EXPECT_EQ(budget["ranked_by"], "kl per byte");
  double last = 1e300;
  std::size_t modules = 0, larger_kl_later = 0;
  const auto& units = budget["units"];
  for (std::size_t i = 0; i < units.size(); ++i) {
    const double kl = units[i]["kl_alone"], bytes = units[i]["bytes_saved"];
    EXPECT_GT(bytes, 0);
    EXPECT_LE(kl / bytes, last * (1 + 1e-12)) << i;
    last = kl / bytes;
    modules += units[i]["modules"].size();
    larger_kl_later += i > 0 && kl > units[i - 1]["kl_alone"].get<double>() ? 1 : 0;
  }
  EXPECT_EQ(modules, 28u);
  EXPECT_GT(larger_kl_later, 0u) << "the order of KL alone would be another";
  const auto score = json_of(run_fp8("evaluate --model {} --reference $DEMO --data $HELDOUT --samples 8 --json", out));
  EXPECT_NEAR(score["kl"].get<double>(), budget["kl"].get<double>(), 1e-3 * budget["kl"].get<double>());
  const auto sidecar = io::read_json(dir / "q" / "fp8.json");
  const auto name = budget["kept"][0]["name"].get<std::string>();
  EXPECT_THAT(sidecar["skipped"][name].get<std::string>(), HasSubstr("kept by --budget kl=0.001"));
}

TEST_F(Budget, ThatIsMetByAllKeepsNone) {
  const auto json = json_of(
      run_fp8("quantize --model $DEMO --out {} --dynamic --budget kl=1 --data $HELDOUT --samples 4 --json", dir / "q"));
  EXPECT_TRUE(json["budget"]["kept"].empty());
  EXPECT_EQ(json["budget"]["runs"].size(), 1u) << "all in fp8 is asked first, and nothing after it";
  EXPECT_TRUE(json["budget"]["units"].empty()) << "no unit was run alone";
  EXPECT_EQ(json["budget"]["ranked_by"], nullptr);
  EXPECT_EQ(json["modules_quantized"], 28);
}

TEST_F(Budget, OfAConfigIsThatOfTheCheckpointThatIsWritten) {
  const auto config = [&](const char* mode) {
    const auto path = (dir / (std::string(mode) + ".json")).string();
    std::ofstream(path)
        << R"({"mode": ")" << mode
        << R"(", "scale_method": "maxabs_hw", "blocklist": {"names": ["lm_head"]}, "dump_stats_path": ")"
        << (dir / "s/inc").string() << "\"}";
    return path;
  };
  const auto measured = run_fp8(args("evaluate --model $DEMO --data $HELDOUT --samples 4"),
                                {.environment = {{"QUANT_CONFIG", config("MEASURE")}}});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const auto json =
      json_of(run_fp8("quantize --model $DEMO --out {} --config {} --budget kl=1 --data $HELDOUT --samples 4 --json",
                      dir / "q", config("QUANTIZE")));
  const auto score =
      json_of(run_fp8("evaluate --model {} --reference $DEMO --data $HELDOUT --samples 4 --json", dir / "q"));
  EXPECT_EQ(score["kv_cache"], "fp8");
  EXPECT_NEAR(score["kl"].get<double>(), json["budget"]["kl"].get<double>(), 1e-3 * score["kl"].get<double>())
      << "without the attention products, which no checkpoint holds";
}

TEST_F(Budget, EachModuleIsPrintedOnce) {
  const auto run =
      run_fp8("quantize --model $DEMO --out {} --dynamic --budget kl=0.0015 --data $HELDOUT --samples 4", dir / "q");
  ASSERT_EQ(run.code, 0) << run.err;
  std::map<std::string, int> times;
  std::istringstream lines(run.out + run.err);
  for (std::string line; std::getline(lines, line);) {
    for (std::size_t at = line.find("model.layers."); at != std::string::npos; at = line.find("model.layers.", at + 1))
      ++times[line.substr(at, line.find_first_of(" :,", at) - at)];
  }
  EXPECT_FALSE(times.empty());
  for (const auto& [name, n] : times) EXPECT_EQ(n, 1) << name << "\n" << run.out;
}

TEST_F(Budget, WrongUsage) {
  const auto run = [&](std::vector<std::string> more) {
    return run_fp8("quantize --model $DEMO --out {} --dynamic {}", dir / "q", more);
  };
  EXPECT_EQ(run(args("--data $HELDOUT")).code, 2);
  expect_failed(run(args("--budget ppl=3 --data $HELDOUT")), {"--budget: found 'ppl=3', allowed: kl=X"}, 2);
  expect_failed(run(args("--budget kl=1e-12 --data $HELDOUT --samples 2")),
                {"no module can be quantized within --budget"});
}

}  // namespace
}  // namespace fp8
