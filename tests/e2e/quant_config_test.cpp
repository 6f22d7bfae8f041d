// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG in the environment against the explicit way: measuring changes no bit of the logits and writes what fp8
// measure writes; a model quantized on load gives the logits of measure + quantize --config + evaluate, bit for bit.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

constexpr const char* kMethods[] = {"maxabs_hw",
                                    "maxabs_pow2",
                                    "maxabs_arbitrary",
                                    "unit_scale",
                                    "hw_aligned_single_scale",
                                    "act_maxabs_hw_weights_pcs_maxabs_pow2",
                                    "act_maxabs_pow2_weights_pcs_maxabs_pow2",
                                    "maxabs_hw_opt_weight",
                                    "act_maxabs_pow2_weights_pcs_opt_pow2"};

/// A checkpoint holds weights only: attention and caches are left out.
const io::Json kLinear = {{"types", {"Linear"}}};

/// A model, its text, and the folder of its measurement.
struct Subject {
  std::string model, text;
  test::TempDir folder;

  void measure_it() const { measure(model, text, folder / "stats", "6"); }
  /// Writes a config with these keys besides dump_stats_path; returns its path.
  std::string config(io::Json json) const {
    json["dump_stats_path"] = (folder / "stats/inc_output").string();
    write_file(folder / "config.json", json.dump());
    return (folder / "config.json").string();
  }
  /// On load and by way of a checkpoint. Environment: the device both run on.
  void expect_same(const io::Json& json, const Environment& environment = {}) const {
    SCOPED_TRACE(json.dump());
    const std::string path = config(json);
    std::filesystem::remove_all(folder / "fp8");
    for (const auto& name : names_in(folder / "stats")) {  // scales of another device: they would be made again, with a warning
      if (name.find("_hooks_maxabs_") != std::string::npos && name.find("mod_list") == std::string::npos) std::filesystem::remove(folder / "stats" / name);
    }
    quantize(model, folder / "fp8", {"--config", path}, environment);
    const std::string stored = logits((folder / "fp8").string(), text, "2");  // its sidecar knows the device
    Environment with_config = environment;
    with_config["QUANT_CONFIG"] = path;
    const std::string on_load = logits(model, text, "2", {}, with_config);
    EXPECT_FALSE(stored.empty());
    EXPECT_TRUE(stored == on_load);
  }
};

void expect_measuring_changes_nothing(const Subject& s) {
  s.measure_it();
  auto explicitly = contents(s.folder / "stats");
  EXPECT_EQ(explicitly.erase("inc_output_hooks_maxabs.kv_cache"), 1u);  // with a config its lists decide
  std::filesystem::remove_all(s.folder / "stats");
  const std::string config = s.config({{"mode", "MEASURE"}, {"measure_exclude", "NONE"}, {"allowlist", {{"types", {"Linear"}}}}});
  const std::string plain = logits(s.model, s.text, "6"),
                    measuring = logits(s.model, s.text, "6", {}, {{"QUANT_CONFIG", config}});
  EXPECT_FALSE(plain.empty());
  EXPECT_TRUE(plain == measuring);
  EXPECT_EQ(contents(s.folder / "stats"), explicitly);
}

/// All methods, on gaudi2 and gaudi3 in turn; which of them starts, `gaudi2_first` says.
void expect_all_methods_agree(const Subject& s, bool gaudi2_first) {
  s.measure_it();
  const io::Json lm_head = {{"names", {"lm_head"}}, {"types", io::Json::array()}};
  bool gaudi2 = gaudi2_first;
  for (const char* method : kMethods) {
    s.expect_same({{"mode", "QUANTIZE"}, {"scale_method", method}, {"allowlist", kLinear}, {"blocklist", lm_head}},
                  gaudi2 ? Environment{{"FP8_HPU_DEVICE", "gaudi2"}} : Environment{});
    gaudi2 = !gaudi2;
  }
  // Scales for Gaudi2 on a Gaudi3.
  s.expect_same({{"mode", "QUANTIZE"}, {"scale_method", "maxabs_hw"}, {"allowlist", kLinear}, {"blocklist", lm_head}, {"device_for_scales", "GAUDI2"}});
  s.expect_same({{"mode", "QUANTIZE"}, {"allowlist", kLinear}, {"blocklist", {{"names", {"layers.0"}}}}, {"hp_dtype", "FP32"}});
}

TEST(QuantConfig, MeasuringChangesNoBitOfABf16Model) {
  expect_measuring_changes_nothing({demo_model(), calibration_text(), {}});
}

TEST(QuantConfig, QuantizedOnLoadEqualsTheCheckpointOfABf16Model) {
  expect_all_methods_agree({demo_model(), calibration_text(), {}}, true);
}

TEST(QuantConfig, MeasuringChangesNoBitOfAnF32Model) {
  FP8_NEED_TEST_DATA(data);
  expect_measuring_changes_nothing({(data / "models/stories260K").string(), (data / "text/ts_calib.txt").string(), {}});
}

TEST(QuantConfig, QuantizedOnLoadEqualsTheCheckpointOfAnF32Model) {
  FP8_NEED_TEST_DATA(data);
  expect_all_methods_agree({(data / "models/stories260K").string(), (data / "text/ts_calib.txt").string(), {}}, false);
}

TEST(QuantConfig, ATiedHeadIsQuantizedAloneAsInTheCheckpoint) {
  FP8_NEED_TEST_DATA(data);
  const Subject s = {(data / "models/stories260K").string(), (data / "text/ts_calib.txt").string(), {}};
  s.measure_it();
  for (const char* method : {"maxabs_hw", "unit_scale", "act_maxabs_hw_weights_pcs_maxabs_pow2"})
    s.expect_same({{"mode", "QUANTIZE"}, {"scale_method", method}, {"allowlist", kLinear}});
  // lm_head's own codes, and the embedding in high precision.
  const Tensors file = Tensors::read(s.folder / "fp8/model.safetensors");
  EXPECT_EQ(file.header["lm_head.weight"]["dtype"], "F8_E4M3");
  EXPECT_EQ(file.header["model.embed_tokens.weight"]["dtype"], "F32");
  EXPECT_EQ(io::read_json(s.folder / "fp8/config.json")["tie_word_embeddings"], false);
}

TEST(QuantConfig, TheReferenceIsLeftAlone) {
  const Subject s = {demo_model(), calibration_text(), {}};
  s.measure_it();
  const std::string config = s.config({{"mode", "QUANTIZE"}, {"allowlist", kLinear}});
  const Arguments arguments = {"evaluate", "--json", "--model",      s.model,     "--reference",
                               s.model,    "--data", heldout_text(), "--samples", "4"};
  const auto plain = json_of(fp8(arguments)), quantized = json_of(fp8(arguments, {{"QUANT_CONFIG", config}}));
  EXPECT_EQ(plain["kl"], 0.0);
  EXPECT_EQ(plain["perplexity"], plain["reference_perplexity"]);
  EXPECT_EQ(quantized["reference_perplexity"], plain["perplexity"]);
  EXPECT_GT(quantized["kl"].get<double>(), 1e-5);
  EXPECT_LT(quantized["kl"].get<double>(), 0.05);
  EXPECT_LT(quantized["weights_bytes"].get<double>(), 0.6 * plain["weights_bytes"].get<double>());
}

}  // namespace
}  // namespace fp8::e2e
