// SPDX-License-Identifier: Apache-2.0
// silero_vad.jit, a real stateful TorchScript model, from the command line: its f32 run against the reference made by
// the original code, and its fp8 run (convolutions and LSTM products; STFT and the last 1x1 in f32) within the bounds
// that simulated fp8 leaves.
#include <cmath>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

std::filesystem::path silero() { return test::test_data() / "models" / "silero-vad-16k"; }
std::string model() { return (silero() / "silero_vad.jit").string(); }
std::string sound() { return (silero() / "test.wav").string(); }

constexpr std::size_t kChunks = 1875, kCalibrated = 300;

std::vector<float> values(const std::filesystem::path& file, const std::string& tensor) {
  const std::string bytes = Tensors::read(file).bytes_of(tensor);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class Silero : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::test_data().empty()) GTEST_SKIP() << "FP8_TEST_DATA is not set";
    reference = values(silero() / "reference.safetensors", "prob_jit_fp32");
    ASSERT_EQ(reference.size(), kChunks);
  }
  std::vector<float> run(const Arguments& more, io::Json* json = nullptr) {
    Arguments arguments =
        args("run {} --inputs {} --out {} --json {}", model(), sound(), folder / "out.safetensors", more);
    const auto result = json_of(fp8(arguments));
    if (json != nullptr) *json = result;
    return values(folder / "out.safetensors", "output");
  }
  void measure() {
    expect_success(fp8("measure --model {} --data {} --samples {} --exclude decoder\\.decoder --out {}", model(),
                       sound(), kCalibrated, folder / "stats"));
  }
  std::vector<float> reference;
  test::TempDir folder;
};

TEST_F(Silero, InF32ItGivesTheReference) {
  io::Json json;
  const auto p = run({}, &json);
  ASSERT_EQ(p.size(), kChunks);
  for (std::size_t i = 0; i < kChunks; ++i) ASSERT_NEAR(p[i], reference[i], 1e-4) << "chunk " << i;
  EXPECT_EQ(json.at("chunks"), kChunks);
  EXPECT_EQ(json.at("modules_quantized").size(), 0u);
}

TEST_F(Silero, InFp8ItStaysWithinTheBounds) {
  measure();
  io::Json json;
  const auto p = run(args("--measurements {} --exclude decoder\\.decoder", folder / "stats"), &json);
  ASSERT_EQ(p.size(), kChunks);
  double sum = 0;
  int flips = 0;
  for (std::size_t i = kCalibrated; i < kChunks; ++i) {
    sum += std::abs(static_cast<double>(p[i]) - reference[i]);
    flips += (p[i] > 0.5f) != (reference[i] > 0.5f) ? 1 : 0;
  }
  EXPECT_LE(sum / static_cast<double>(kChunks - kCalibrated), 0.007);
  EXPECT_GT(sum, 0.1);  // it did run in fp8
  EXPECT_LE(flips, 12);
  std::vector<std::string> quantized, never;
  for (const auto& m : json.at("modules_quantized")) quantized.push_back(m.at("name"));
  for (const auto& m : json.at("modules_kept")) {
    if (m.at("reason").get<std::string>().find("never called") != std::string::npos) never.push_back(m.at("name"));
  }
  EXPECT_THAT(quantized, ElementsAre("_model.encoder.0.reparam_conv", "_model.encoder.1.reparam_conv",
                                     "_model.encoder.2.reparam_conv", "_model.encoder.3.reparam_conv",
                                     "_model.decoder.rnn.weight_ih", "_model.decoder.rnn.weight_hh"));
  EXPECT_THAT(never, Each(StartsWith("_model_8k.")));
  EXPECT_EQ(never.size(), 6u);
}

TEST_F(Silero, AQuantConfigSaysTheSame) {
  const auto config = [&](const std::string& mode) {
    const auto keys = R"("observer": "maxabs", "scale_method": "maxabs_arbitrary", "hp_dtype": "fp32",
      "blocklist": {"names": ["decoder\\.decoder"], "types": []}, "ignore_modules_wo_measures": true, "mode": ")" +
                      mode + "\"";
    return write_config(folder / (mode + ".json"), keys, folder / "stats/s");
  };
  expect_success(fp8("measure --model {} --data {} --samples {} --out {} --config {}", model(), sound(), kCalibrated,
                     folder / "stats", config("MEASURE")));
  const auto p = run({"--config", config("QUANTIZE")});
  ASSERT_EQ(p.size(), kChunks);
  double sum = 0;
  for (std::size_t i = kCalibrated; i < kChunks; ++i) sum += std::abs(static_cast<double>(p[i]) - reference[i]);
  EXPECT_LE(sum / static_cast<double>(kChunks - kCalibrated), 0.007);
  EXPECT_GT(sum, 0.1);
}

TEST_F(Silero, AnEarlierRunIsTheReferenceOfALaterOne) {
  run({"--samples", "40"});
  std::filesystem::rename(folder / "out.safetensors", folder / "first.safetensors");
  io::Json json;
  run(args("--samples 40 --reference {}", folder / "first.safetensors"), &json);
  EXPECT_EQ(json.at("outputs").at("output").at("max_difference"), 0.0);
  expect_refused(fp8("run {} --inputs {} --samples 41 --reference {} --out {} --json", model(), sound(),
                     folder / "first.safetensors", folder / "x"),
                 {"expected a tensor 'output' of shape [41,1], found [40,1]"});
}

}  // namespace
}  // namespace fp8::e2e
