// SPDX-License-Identifier: Apache-2.0
// What stops the work: bad tensors, bad folders, a caller that says stop. Nothing stands under the output's name then.
#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/runtime/io/base/file.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::throws_with;

struct Refusal {
  test::TempDir dir;
  test::NamedTensors tensors = test::small_llama(at::kBFloat16);
  CheckpointOptions options;

  void expect(const std::vector<std::string>& words) {
    test::write_llama(dir / "in", tensors);
    expect_as_it_is(words);
  }
  void expect_as_it_is(const std::vector<std::string>& words) {
    EXPECT_TRUE(throws_with(words, [&] { quantize_checkpoint(dir / "in", dir / "out", options); }));
    for (const auto& entry : fs::directory_iterator(dir.path()))
      EXPECT_EQ(entry.path().filename(), "in");  // no temporary folder, no lock
  }
  at::Tensor tensor(const std::string& name) const { return test::find(tensors, name); }
};

TEST(CheckpointRefusals, NaNInAQuantizedTensor) {
  for (const bool channel : {true, false}) {
    for (const float bad : {NAN, INFINITY}) {
      Refusal r;
      r.tensor("model.layers.0.mlp.down_proj.weight")[35][52].fill_(bad);
      r.options.plan.weights = channel ? WeightGranularity::channel : WeightGranularity::tensor;
      r.expect({"model.layers.0.mlp.down_proj.weight"});
    }
  }
}

TEST(CheckpointRefusals, NaNInAKeptTensor) {
  Refusal r;
  r.tensor("lm_head.weight")[49][35].fill_(NAN);
  r.expect({(r.dir / "in").string(), "lm_head.weight", "found NaN"});
}

TEST(CheckpointRefusals, QuantizedAlready) {
  const char* const said = R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})";
  Refusal r;
  r.tensors.emplace_back("lm_head.weight_scale", torch::ones({1}));
  test::write_llama(r.dir / "in", r.tensors);
  test::write_text(r.dir / "in/config.json", said);
  r.expect_as_it_is({"config.json", "quantization_config", "quantized already"});
  r.tensors.pop_back();
  test::write_tensors(r.dir / "in", r.tensors);
  r.options.overwrite = true;
  for (const char* config : {R"({"quantization_config": null})", R"({"quantization_config": {}})", said}) {
    test::write_text(r.dir / "in/config.json", config);  // as some tools write it; what a merge leaves over
    const auto warnings = quantize_checkpoint(r.dir / "in", r.dir / "out", r.options).warnings;
    const bool named = std::any_of(warnings.begin(), warnings.end(), [](const std::string& warning) {
      return warning.find("text_config.quantization_config (fp8) is a leftover") != std::string::npos;
    });
    EXPECT_EQ(named, config == said) << config;
    const auto written = io::read_json(r.dir / "out/config.json");
    EXPECT_EQ(written["quantization_config"]["quant_method"], "compressed-tensors");
    EXPECT_FALSE(written.contains("text_config") && written["text_config"].contains("quantization_config"));
  }
}

TEST(CheckpointRefusals, Fp8CodesWithoutAConfigThatSaysSo) {
  Refusal r;
  for (auto& [name, t] : r.tensors) {
    if (name == "model.layers.0.mlp.up_proj.weight") t = t.to(at::kFloat8_e4m3fn);
  }
  r.expect({"model.layers.0.mlp.up_proj.weight", "1 weights in codes", "F8_E4M3", "without scales"});
}

TEST(CheckpointRefusals, NothingLeftToQuantize) {
  Refusal r;
  r.options.plan.exclude = {"."};
  r.expect({(r.dir / "in").string(), "no module is left", "'exclude'"});
}

TEST(CheckpointRefusals, OnlyConvolutionsLeft) {
  Refusal r;
  r.tensors = {{"conv.weight", torch::ones({4, 3, 2, 2})}};
  r.expect({"no Linear module is left"});
}

TEST(CheckpointRefusals, E5M2HasNoPlaceInTheFormat) {
  Refusal r;
  r.options.plan.config =
      configs::parse_quant_config(io::Json{{"scale_method", "unit_scale"}, {"fp8_config", "E5M2"}}, "q");
  r.expect({"compressed-tensors holds E4M3, found E5M2"});
}

TEST(CheckpointRefusals, MeasurementsThatDoNotFit) {
  Refusal r;
  r.options.plan.activations = ActivationScaling::static_tensor;
  r.options.plan.measurements = measure::MeasurementFile{};
  r.expect({"no measurement of module 'model.layers.0."});
  auto& modules = r.options.plan.measurements->modules;
  for (const auto& [name, t] : r.tensors) {
    if (t.dim() == 2)
      modules.push_back({name.substr(0, name.size() - 7), {{1.0f}}, std::nullopt, measure::Amax{100.0f}});
  }
  for (const bool channel : {false, true}) {
    r.options.plan.weights = channel ? WeightGranularity::channel : WeightGranularity::tensor;
    r.expect({"was 100 when measured", "another model"});
  }
}

TEST(CheckpointRefusals, Folders) {
  Refusal r;
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "nowhere", r.dir / "out", r.options), "nowhere",
                 "expected a model folder, found nothing");
  test::write_text(r.dir / "file", "");
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "file", r.dir / "out", r.options), "file",
                 "expected a model folder, found a file");
  fs::remove(r.dir / "file");
  fs::create_directories(r.dir / "in");
  r.expect_as_it_is({"config.json"});
  test::write_text(r.dir / "in/config.json", "[]");
  r.expect_as_it_is({"config.json", "expected an object, found array"});
  test::write_text(r.dir / "in/config.json", "{}");
  r.expect_as_it_is({"model.safetensors"});
}

TEST(CheckpointRefusals, OutputsThatExistOrAreTheInput) {
  Refusal r;
  test::write_llama(r.dir / "in", r.tensors);
  r.options.overwrite = true;
  const auto before = test::folder_bytes(r.dir / "in");
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "in", r.dir / "in", r.options), "is the input itself");
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "in", r.dir / "in/out", r.options), "inside the input");
  EXPECT_EQ(test::folder_bytes(r.dir / "in"), before);
  r.options.overwrite = false;
  quantize_checkpoint(r.dir / "in", r.dir / "out", r.options);
  const auto first = test::folder_bytes(r.dir / "out");
  EXPECT_THROW(quantize_checkpoint(r.dir / "in", r.dir / "out", r.options), io::Error);
  r.options.overwrite = true;
  quantize_checkpoint(r.dir / "in", r.dir / "out", r.options);
  EXPECT_EQ(test::folder_bytes(r.dir / "out"), first);
  // A run that fails leaves the older output as it was.
  r.tensor("lm_head.weight")[0][0].fill_(NAN);
  test::write_llama(r.dir / "in", r.tensors);
  EXPECT_THROW(quantize_checkpoint(r.dir / "in", r.dir / "out", r.options), io::Error);
  EXPECT_EQ(test::folder_bytes(r.dir / "out"), first);
}

TEST(CheckpointRefusals, AStopLeavesNothing) {
  for (int at = 0; at < 12; ++at) {
    Refusal r;
    int asked = 0;
    r.options.stop = [&] { return asked++ == at; };
    r.expect({"interrupted"});
    EXPECT_EQ(asked, at + 1);
  }
}

}  // namespace
}  // namespace fp8::quant
