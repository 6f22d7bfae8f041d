// SPDX-License-Identifier: Apache-2.0
// Checkpoints that we wrote and somebody edited: fp8.json, quantization_config, scales and codes that can't be meant.
#include <cmath>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

using ::testing::HasSubstr;

constexpr char kModule[] = "model.layers.0.mlp.up_proj";

class BadFp8Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    measure(demo_model(), calibration_text(), folder_ / "stats", "2");
    quantize(demo_model(), folder_ / "fp8", {"--measurements", (folder_ / "stats").string()});
  }
  std::filesystem::path good() const { return folder_ / "fp8"; }

  /// evaluate refuses the checkpoint with one JSON file changed.
  void expect_edit_refused(const std::string& file, const std::function<void(io::Json&)>& change,
                           const std::vector<std::string>& words) const {
    const Model model(good());
    model.edit(file, change);
    expect_evaluate_refused(model.name(), words);
  }
  test::TempDir folder_;
};

TEST_F(BadFp8Checkpoint, SidecarErrorsNameTheKey) {
  const std::vector<std::pair<std::function<void(io::Json&)>, std::string>> edits = {
      {[](io::Json& j) { j["dialect"] = 3; }, "dialect"},
      {[](io::Json& j) { j["dialect"] = "gaudi9"; }, "allowed: gaudi2, gaudi3, ocp"},
      {[](io::Json& j) { j.erase("dialect"); }, "dialect"},
      {[](io::Json& j) { j["convention"] = "inc"; }, "hp_dtype"},
      {[](io::Json& j) { j["convention"] = "mine"; }, "convention"},
      {[](io::Json& j) { j = io::Json::array(); }, "expected an object"},
      {[](io::Json& j) { j = nullptr; }, "expected an object"}};
  for (const auto& [change, word] : edits) expect_edit_refused("fp8.json", change, {"fp8.json", word});
  const Model model(good());
  model.write("fp8.json", "{\"dialect\": \"ocp\", \"dialect\": \"gaudi2\"}");
  expect_evaluate_refused(model.name(), {"fp8.json", "duplicate key 'dialect'"});
  // Codes of 240 and more are NaN or infinity to gaudi2.
  expect_edit_refused("fp8.json", [](io::Json& j) { j["dialect"] = "gaudi2"; }, {"gaudi2", "NaN codes"});
}

TEST_F(BadFp8Checkpoint, QuantizationConfigErrorsNameTheKey) {
  const auto quantization = [](auto change) { return [change](io::Json& j) { change(j["quantization_config"]); }; };
  const auto group = [](auto change) {
    return [change](io::Json& j) { change(j["quantization_config"]["config_groups"]["group_0"]); };
  };
  const std::vector<std::pair<std::function<void(io::Json&)>, std::string>> edits = {
      {quantization([](io::Json& q) { q["quant_method"] = "awq"; }), "quant_method"},
      {quantization([](io::Json& q) { q["quant_method"] = 3; }), "quant_method"},
      {quantization([](io::Json& q) { q.erase("config_groups"); }), "config_groups"},
      {quantization([](io::Json& q) { q["config_groups"] = {1}; }), "config_groups"},
      {quantization([](io::Json& q) { q["config_groups"]["group_0"] = 3; }), "config_groups"},
      {quantization([](io::Json& q) {
         q["config_groups"]["group_1"] = q["config_groups"]["group_0"];
         q["config_groups"]["group_1"]["weights"] = 3;
       }),
       "group_1"},
      {quantization([](io::Json& q) { q["format"] = "pack-quantized"; }), "format"},
      {quantization([](io::Json& q) { q["ignore"] = 3; }), "ignore"},
      {quantization([](io::Json& q) { q = io::Json::array(); }), "quant"},
      {group([](io::Json& g) { g["weights"] = "x"; }), "weights"},
      {group([](io::Json& g) { g["weights"]["type"] = "int"; }), "weights.type"},
      {group([](io::Json& g) { g["weights"]["num_bits"] = 4; }), "weights.num_bits"},
      {group([](io::Json& g) { g["weights"]["symmetric"] = false; }), "weights.symmetric"},
      {group([](io::Json& g) { g["weights"]["strategy"] = "block"; }), "weights.block_structure"},
      {group([](io::Json& g) { g["input_activations"] = "x"; }), "input_activations"},
      {group([](io::Json& g) { g["input_activations"]["dynamic"] = 1; }), "input_activations.dynamic"},
      {group([](io::Json& g) { g["input_activations"]["strategy"] = "channel"; }), "input_activations"}};
  for (const auto& [change, word] : edits) {
    SCOPED_TRACE(word);
    expect_edit_refused("config.json", change, {"config.json", word});
  }
}

TEST_F(BadFp8Checkpoint, DroppedQuantizationConfigIsNoHighPrecisionModel) {
  expect_edit_refused("config.json", [](io::Json& j) { j.erase("quantization_config"); }, {"F8_E4M3"});
}

TEST_F(BadFp8Checkpoint, UnusableScalesAndCodesAreNamed) {
  const Tensors good_file = Tensors::read(good() / "model.safetensors");
  const auto expect_poked = [&](const std::string& tensor, auto value) {
    const Model model(good());
    Tensors bad = good_file;
    bad.poke(tensor, value);
    model.write("model.safetensors", bad.bytes());
    expect_evaluate_refused(model.name(), {model.name(), tensor});
  };
  const std::string weight = std::string(kModule) + ".weight", scale = weight + "_scale",
                    input = std::string(kModule) + ".input_scale";
  for (const float value : {NAN, INFINITY, 0.0f, -1.0f}) expect_poked(scale, value);
  expect_poked(input, NAN);
  expect_poked(input, 1e-45f);  // its reciprocal is infinite
  expect_poked(weight, std::string("\x7F"));
}

TEST_F(BadFp8Checkpoint, AnFp8ModelIsNeitherMeasuredNorQuantizedAgain) {
  expect_quantize_refused(good().string(), {"--dynamic"}, {"quantization_config"});
  expect_refused(
      fp8({"measure", "--model", good().string(), "--data", calibration_text(), "--out", (folder_ / "more").string()}),
      {"high precision"});
  write_file(folder_ / "config.json",
             R"({"mode": "MEASURE", "dump_stats_path": ")" + (folder_ / "more/s").string() + "\"}");
  expect_evaluate_refused(good().string(), {"fp8 already"}, {{"QUANT_CONFIG", (folder_ / "config.json").string()}});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "more"));
}

}  // namespace
}  // namespace fp8::e2e
