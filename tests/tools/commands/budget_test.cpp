// SPDX-License-Identifier: Apache-2.0
// The program itself with --budget: what it promises about KL is measured again with evaluate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fp8/runtime/io/json.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using ::testing::HasSubstr;
using test::run_fp8;

const auto kModel = [] { return (test::demo_data() / "kjv-byte-1.7M").string(); };
const auto kText = [] { return (test::demo_data() / "kjv_heldout_16k.txt").string(); };

io::Json json_of(const std::vector<std::string>& arguments) {
  const auto run = run_fp8(arguments);
  EXPECT_EQ(run.code, 0) << run.err;
  return run.code == 0 ? io::parse_json(run.out, "stdout") : io::Json();
}

TEST(Budget, IsMetWithTheFewestModulesKept) {
  const test::TempDir dir;
  const auto out = (dir / "q").string();
  const auto json = json_of({"quantize", "--model", kModel(), "--out", out, "--dynamic", "--budget", "kl=0.001", "--data", kText(), "--samples", "8", "--json"});
  const auto& budget = json["budget"];
  EXPECT_GT(budget["kl_of_all"].get<double>(), 0.001);
  EXPECT_LE(budget["kl"].get<double>(), 0.001);
  EXPECT_GT(budget["kept"].size(), 0u);
  EXPECT_LT(budget["kept"].size(), 28u);
  double last = 1;  // ranked by what each costs alone
  for (const auto& k : budget["kept"]) {
    EXPECT_LE(k["kl_alone"].get<double>(), last);
    last = k["kl_alone"];
  }
  const auto score = json_of({"evaluate", "--model", out, "--reference", kModel(), "--data", kText(), "--samples", "8", "--json"});
  EXPECT_NEAR(score["kl"].get<double>(), budget["kl"].get<double>(), 1e-3 * budget["kl"].get<double>());
  const auto sidecar = io::read_json(dir / "q" / "fp8.json");
  const auto name = budget["kept"][0]["name"].get<std::string>();
  EXPECT_THAT(sidecar["skipped"][name].get<std::string>(), HasSubstr("kept by --budget kl=0.001"));
}

TEST(Budget, ThatIsMetByAllKeepsNone) {
  const test::TempDir dir;
  const auto json = json_of({"quantize", "--model", kModel(), "--out", (dir / "q").string(), "--dynamic", "--budget", "kl=1", "--data", kText(), "--samples", "4", "--json"});
  EXPECT_TRUE(json["budget"]["kept"].empty());
  EXPECT_EQ(json["modules_quantized"], 28);
}

TEST(Budget, WrongUsage) {
  const test::TempDir dir;
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"quantize", "--model", kModel(), "--out", (dir / "q").string(), "--dynamic"};
    all.insert(all.end(), more.begin(), more.end());
    return run_fp8(all);
  };
  EXPECT_EQ(run({"--budget", "kl=0.1"}).code, 2);
  EXPECT_EQ(run({"--data", kText()}).code, 2);
  const auto bad = run({"--budget", "ppl=3", "--data", kText()});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--budget: found 'ppl=3', allowed: kl=X"));
  const auto tiny = run({"--budget", "kl=1e-12", "--data", kText(), "--samples", "2"});
  EXPECT_EQ(tiny.code, 1);
  EXPECT_THAT(tiny.err, HasSubstr("no module can be quantized within --budget"));
}

}  // namespace
}  // namespace fp8
