// SPDX-License-Identifier: Apache-2.0
// What fp8 does to each family: `inspect --data` sees the inputs that `measure` sees, and `quantize --budget` writes
// checkpoints whose divergence is the one that it tells.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fp8/tools/models/registry.h"
#include "tools/models/families/answers.h"

namespace fp8::models {
namespace {

using testing::Answers;

constexpr std::int64_t kTexts = 4, kTokens = 24;

class DamageOfFamilies : public Answers {
 protected:
  void SetUp() override {
    fixture.write(folder / "model");
    const auto ids = tokens(kTexts, kTokens, 1);
    if (parse_config(fixture.config, "config.json").values->shape.task == Task::answer)
      return testing::write_pairs(folder / "ids.safetensors", ids, tokens(kTexts, 9, 2));
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, ids.sizes().vec()}});
    writer.write("input_ids", ids.contiguous().const_data_ptr());
    writer.commit();
  }
  /// Weights that stay as they are stored: [in, out], or MXFP4.
  bool is_stored_otherwise() const { return GetParam() == "gpt2" || GetParam() == "gpt_oss-mxfp4"; }
};

TEST_P(DamageOfFamilies, InspectSeesTheInputsThatMeasureSees) {
  if (is_stored_otherwise()) return;
  ASSERT_TRUE(json_of({"measure", "--model", path("model"), "--data", path("ids.safetensors"), "--out", path("stats")})
                  .is_object());
  const auto nodes = io::read_json(folder / "stats" / "inc_output_hooks_maxabs.json")["Nodes"];
  const auto json = json_of({"inspect", path("model"), "--data", path("ids.safetensors")});
  ASSERT_TRUE(json.is_object());
  std::size_t compared = 0;
  for (const auto& module : json["modules"]) {
    const auto name = module["name"].get<std::string>();
    if (!nodes.contains(name) || module["input"].is_null()) continue;
    ++compared;
    EXPECT_FLOAT_EQ(module["input"]["amax"].get<float>(), nodes[name]["inputs"][0][0][0].get<float>()) << name;
  }
  EXPECT_GE(compared, static_cast<std::size_t>(2 * parse_config(fixture.config, "config.json").values->shape.layers));
}

TEST_P(DamageOfFamilies, BudgetsAreKept) {
  if (is_stored_otherwise()) return;
  const auto json = json_of({"quantize", "--model", path("model"), "--out", path("out"), "--dynamic", "--budget",
                             "kl=0.01", "--data", path("ids.safetensors")});
  ASSERT_TRUE(json.is_object());
  const auto score =
      json_of({"evaluate", "--model", path("out"), "--reference", path("model"), "--data", path("ids.safetensors")});
  ASSERT_TRUE(score.is_object());
  const double kl = score["kl"];
  EXPECT_LE(kl, 0.01 * (1 + 1e-3));
  EXPECT_NEAR(json["budget"]["kl"].get<double>(), kl, 1e-3 * kl + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(All, DamageOfFamilies, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

}  // namespace
}  // namespace fp8::models
