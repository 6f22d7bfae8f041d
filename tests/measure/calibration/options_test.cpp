// SPDX-License-Identifier: Apache-2.0
// What a QUANT_CONFIG asks of a calibration.
#include "fp8/measure/calibration/recorder.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

using test::hpu;

ConfiguredCalibration configured(const std::string& json, const std::map<std::string, std::string>& variables = {},
                                 recipes::Dialect device = recipes::Dialect::gaudi3) {
  const auto get = [&](const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second.c_str() : nullptr;
  };
  return calibration_options(configs::parse_quant_config(io::parse_json(json, "c.json"), "c.json", parse_options()),
                             device, configs::environment(get));
}

TEST(CalibrationOptions, ATypeWithAModulePathIsRefused) {
  EXPECT_TRUE(test::throws_with({"key 'allowlist.types': found 'torch.nn.Linear'", "did you mean 'Linear'?"}, [] {
    configured(R"({"mode": "MEASURE", "allowlist": {"types": ["torch.nn.Linear"]}})");
  }));
}

TEST(CalibrationOptions, EveryKnownTypeIsMeasured) {
  const auto c = configured(R"({"mode": "MEASURE"})");
  for (const char* type : {"Linear", "Conv1d", "Conv3d", "LSTM", "Embedding", "Matmul", "Softmax", "ModuleFusedSDPA",
                           "KVCache", "VllmMixtureOfExpertsOp"}) {
    EXPECT_TRUE(c.options.select("m", type)) << type;
  }
  EXPECT_FALSE(c.options.select("m", "FusedMoE"));  // INC passes it through
  EXPECT_FALSE(c.options.select("m", "LayerNorm"));
  EXPECT_EQ(c.options.observer, "maxabs");
  EXPECT_FALSE(c.options.outputs);  // measure_exclude's default
  EXPECT_FALSE(c.options.rank.has_value());
  EXPECT_EQ(c.options.sample_interval, 0);
}

TEST(CalibrationOptions, ListsSelectAndSayWhatTheyMissed) {
  const auto c = configured(R"({"mode": "MEASURE", "blocklist": {"names": ["lm_head", "nowhere"]}, )"
                            R"("allowlist": {"types": ["Linear", "Matmul"]}})");
  EXPECT_TRUE(c.options.select("a", "Linear"));
  EXPECT_TRUE(c.options.select("b", "Matmul"));
  EXPECT_FALSE(c.options.select("model.lm_head", "Linear"));
  EXPECT_FALSE(c.options.select("c", "Softmax"));
  ASSERT_EQ(c.filter->unused_entries().size(), 1u);
  EXPECT_EQ(c.filter->unused_entries()[0].entry, "nowhere");
}

TEST(CalibrationOptions, OnlyOutputAndAllExcludeAnything) {
  for (const auto& [value, outputs] :
       {std::pair{"NONE", true}, {"INPUT", true}, {"OUTPUT", false}, {"PARAMS", true}, {"ALL", false}}) {
    const auto c = configured(std::string(R"({"mode": "MEASURE", "measure_exclude": ")") + value + "\"}");
    EXPECT_EQ(c.options.outputs, outputs) << value;
    EXPECT_TRUE(c.options.inputs && c.options.weights) << value;
  }
}

TEST(CalibrationOptions, ObserversAndTheirParameters) {
  const auto c =
      configured(R"({"mode": "MEASURE", "observer": "percentile", "scale_params": {"percentile": 99.5, "bins": 4096},
                                "calibration_sample_interval": 50, "dump_stats_path": "out/x"})");
  EXPECT_EQ(c.options.observer, "percentile");
  EXPECT_EQ(c.options.parameters.find("percentile")->second, 99.5);
  EXPECT_EQ(c.options.parameters.find("bins")->second, 4096);
  EXPECT_EQ(c.options.sample_interval, 50);
  EXPECT_EQ(c.options.prefix, "out/x");
  EXPECT_EQ(configured(R"({"mode": "SHAPE", "observer": "maxabs"})").options.observer, "shape");
}

TEST(CalibrationOptions, ThresholdsAimAtTheDeviceThatWillRun) {
  EXPECT_EQ(configured(R"({"mode": "MEASURE"})").options.fp8_max, 448.0f);
  EXPECT_EQ(configured(R"({"mode": "MEASURE"})", {}, recipes::Dialect::gaudi2).options.fp8_max, 240.0f);
  EXPECT_EQ(configured(R"({"mode": "MEASURE", "device_for_scales": "GAUDI2"})").options.fp8_max, 240.0f);
  EXPECT_EQ(configured(R"({"mode": "MEASURE", "fp8_config": "E5M2"})").options.fp8_max, 57344.0f);
}

TEST(CalibrationOptions, RanksComeFromTheEnvironment) {
  const auto c = configured(R"({"mode": "MEASURE"})", {{"RANK", "3"}, {"WORLD_SIZE", "8"}});
  ASSERT_TRUE(c.options.rank.has_value());
  EXPECT_EQ(c.options.rank->index, 3);
  EXPECT_EQ(c.options.rank->world, 8);
  EXPECT_FALSE(
      configured(R"({"mode": "MEASURE", "seperate_measure_files": false})", {{"RANK", "3"}, {"WORLD_SIZE", "8"}})
          .options.rank.has_value());
}

TEST(CalibrationOptions, WeightsAndOperationsAreSelectedByOneRule) {
  struct AttentionImpl : torch::nn::Module {
    torch::nn::Linear q{nullptr};
    runtime::Matmul matmul_qk{nullptr};
    AttentionImpl()
        : q(register_module("q", torch::nn::Linear(4, 4))),
          matmul_qk(register_module("matmul_qk", runtime::Matmul())) {}
  };
  const auto shared = std::make_shared<AttentionImpl>();
  AttentionImpl& model = *shared;
  model.to(test::kHpu);
  const auto session = CalibrationSession::attach(model, configured(R"({"mode": "MEASURE"})").options);
  model.matmul_qk(model.q(hpu(torch::ones({2, 4}))), hpu(torch::ones({4, 2})));
  const auto file = session->result();
  EXPECT_EQ(file.selected, (std::vector<std::string>{"q", "matmul_qk"}));
  EXPECT_EQ(file.modules.size(), 2u);
  session->discard();
}

}  // namespace
}  // namespace fp8::measure
