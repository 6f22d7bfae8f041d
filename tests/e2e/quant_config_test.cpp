// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG in the environment against the explicit way: measuring changes no bit of the logits and writes what fp8
// measure writes; a model quantized on load gives the logits of measure + quantize --config + evaluate, bit for bit.

#include "configs/quant_config_text.h"
#include "e2e/e2e.h"
#include "fp8/configs/configs.h"
#include "support/values.h"

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

/// The types that a checkpoint holds besides caches: attention is left out.
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
    for (const auto& name :
         names_in(folder / "stats")) {  // scales of another device: they would be made again, with a warning
      if (name.find("_hooks_maxabs_") != std::string::npos && name.find("mod_list") == std::string::npos)
        std::filesystem::remove(folder / "stats" / name);
    }
    quantize(model, folder / "fp8", args("--config {} --quiet", path),
             environment);  // some methods lose much, and say so
    const std::string stored =
        logits((folder / "fp8").string(), text, "2", {"--quiet"});  // its sidecar knows the device
    Environment with_config = environment;
    with_config["QUANT_CONFIG"] = path;
    const std::string on_load = logits(model, text, "2", {"--quiet"}, with_config);
    EXPECT_FALSE(stored.empty());
    EXPECT_TRUE(stored == on_load);
  }
};

void expect_measuring_changes_nothing(const Subject& s) {
  s.measure_it();
  auto explicitly = results(s.folder / "stats");
  EXPECT_EQ(explicitly.erase("inc_output_hooks_maxabs.kv_cache"), 1u);  // with a config its lists decide
  std::filesystem::remove_all(s.folder / "stats");
  const std::string config =
      s.config({{"mode", "MEASURE"}, {"measure_exclude", "NONE"}, {"allowlist", {{"types", {"Linear"}}}}});
  const std::string plain = logits(s.model, s.text, "6"),
                    measuring = logits(s.model, s.text, "6", {}, {{"QUANT_CONFIG", config}});
  EXPECT_FALSE(plain.empty());
  EXPECT_TRUE(plain == measuring);
  EXPECT_EQ(results(s.folder / "stats"), explicitly);
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
  s.expect_same({{"mode", "QUANTIZE"},
                 {"scale_method", "maxabs_hw"},
                 {"allowlist", kLinear},
                 {"blocklist", lm_head},
                 {"device_for_scales", "GAUDI2"}});
  s.expect_same(
      {{"mode", "QUANTIZE"}, {"allowlist", kLinear}, {"blocklist", {{"names", {"layers.0"}}}}, {"hp_dtype", "FP32"}});
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

TEST(QuantConfig, KeyValueCachesThatItSelectsAreInTheCheckpointToo) {
  const Subject s = {demo_model(), calibration_text(), {}};
  s.measure_it();
  const io::Json cached = {{"types", {"Linear", "KVCache"}}}, lm_head = {{"names", {"lm_head"}}};
  for (const char* method : {"maxabs_hw", "maxabs_arbitrary", "unit_scale"}) {
    s.expect_same({{"mode", "QUANTIZE"}, {"scale_method", method}, {"allowlist", cached}, {"blocklist", lm_head}},
                  {{"FP8_HPU_DEVICE", method[0] == 'u' ? "gaudi2" : "gaudi3"}});
    const Tensors file = Tensors::read(s.folder / "fp8/model.safetensors");
    EXPECT_TRUE(file.header.contains("model.layers.3.self_attn.k_proj.k_scale") ||
                file.header.contains("model.layers.3.self_attn.k_scale"))
        << method;
  }
  // Measured by the config itself, in INC's files.
  std::filesystem::remove_all(s.folder / "stats");
  const std::string measuring = s.config({{"mode", "MEASURE"}, {"blocklist", lm_head}});
  logits(s.model, s.text, "6", {}, {{"QUANT_CONFIG", measuring}});
  s.expect_same({{"mode", "QUANTIZE"}, {"allowlist", cached}, {"blocklist", lm_head}});
}

TEST(QuantConfig, WhatNoCheckpointHoldsIsNamed) {
  const Subject s = {demo_model(), calibration_text(), {}};
  const std::string measuring = s.config({{"mode", "MEASURE"}, {"blocklist", {{"names", {"lm_head"}}}}});
  logits(s.model, s.text, "4", {}, {{"QUANT_CONFIG", measuring}});
  const auto run = [&](const io::Json& config, const Arguments& more = {}) {
    std::filesystem::remove_all(s.folder / "fp8");
    return fp8("quantize --json --model {} --config {} --out {} {}", s.model, s.config(config), s.folder / "fp8", more);
  };
  const auto skipped = [&](const io::Json& json) {
    std::map<std::string, std::string> reasons;
    for (const auto& m : json["modules_skipped"])
      reasons[m["name"].get<std::string>()] = m["reason"].get<std::string>();
    return reasons;
  };
  // Attention was measured as it ran, fused; patterns for the other way to write it are not idle.
  const io::Json blocked = {{"names", {"lm_head", "matmul_av", "softmax"}}};
  auto done = run({{"mode", "QUANTIZE"}, {"blocklist", blocked}});
  auto reasons = skipped(json_of(done));
  EXPECT_THAT(done.err,
              HasSubstr("no form of checkpoint holds scales of attention: 4 selected nodes stay in high precision"));
  EXPECT_THAT(done.err, Not(HasSubstr("matches no module")));
  EXPECT_THAT(reasons["model.layers.2.self_attn.fused_scaled_dot_product_attention"],
              HasSubstr("compressed-tensors has no place for its scales"));
  EXPECT_EQ(reasons.count("model.layers.2.self_attn.matmul_qk"), 0u);
  const auto sidecar = io::read_json(s.folder / "fp8/fp8.json");
  EXPECT_EQ(sidecar["skipped"]["model.layers.2.self_attn.fused_scaled_dot_product_attention"],
            reasons["model.layers.2.self_attn.fused_scaled_dot_product_attention"]);
  // Some of the caches: engines would take 1.0 for the others.
  done = run({{"mode", "QUANTIZE"},
              {"allowlist", {{"types", {"Linear", "KVCache"}}}},
              {"blocklist", {{"names", {"lm_head", "layers.0.*_cache"}}}}});
  reasons = skipped(json_of(done));
  EXPECT_THAT(done.err, HasSubstr("selects 6 of 8 key-value caches, a checkpoint holds scales of all or none"));
  EXPECT_THAT(reasons["model.layers.1.self_attn.v_cache"], HasSubstr("only a part of the key-value caches"));
  EXPECT_FALSE(io::read_json(s.folder / "fp8/config.json")["quantization_config"].dump().find("kv_cache_scheme\":{") !=
               std::string::npos);
  // Asked not to.
  done = run({{"mode", "QUANTIZE"},
              {"allowlist", {{"types", {"Linear", "KVCache"}}}},
              {"blocklist", {{"names", {"lm_head"}}}}},
             {"--kv-cache", "off"});
  EXPECT_THAT(skipped(json_of(done))["model.layers.1.self_attn.v_cache"], HasSubstr("--kv-cache off"));
}

TEST(QuantConfig, AMethodThatLosesMostWeightsOrInputsIsWarnedOf) {
  FP8_NEED_TEST_DATA(data);
  const Subject s = {(data / "models/stories260K").string(), (data / "text/ts_calib.txt").string(), {}};
  const std::string path = s.config({{"mode", "QUANTIZE"},
                                     {"scale_method", "hw_aligned_single_scale"},
                                     {"allowlist", kLinear},
                                     {"blocklist", {{"names", {"lm_head"}}}}});
  const auto stored = succeeded(fp8("quantize --model {} --config {} --out {}", s.model, path, s.folder / "fp8"));
  EXPECT_THAT(stored.err, HasSubstr("modules most weights become zero in fp8"));
  const auto on_load =
      fp8(args("evaluate --model {} --data {} --samples 1", s.model, s.text), {{"QUANT_CONFIG", path}});
  EXPECT_THAT(on_load.err, HasSubstr("modules most weights become zero in fp8"));
  const auto of_the_checkpoint = fp8("evaluate --model {} --data {} --samples 1", s.folder / "fp8", s.text);
  for (const auto& run : {on_load, of_the_checkpoint}) {
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.err,
                HasSubstr("of the values of its first input that are not zero become zero under its static scale"));
  }
}

TEST(QuantConfig, TheReferenceIsLeftAlone) {
  const Subject s = {demo_model(), calibration_text(), {}};
  s.measure_it();
  const std::string config = s.config({{"mode", "QUANTIZE"}, {"allowlist", kLinear}});
  const Arguments arguments =
      args("evaluate --json --model {} --reference {} --data $HELDOUT --samples 4 --seq-len 256", s.model, s.model);
  const auto plain = json_of(fp8(arguments)), quantized = json_of(fp8(arguments, {{"QUANT_CONFIG", config}}));
  expect_values(plain, {{"kl", 0.0}, {"perplexity", plain["reference_perplexity"]}});
  EXPECT_EQ(quantized["reference_perplexity"], plain["perplexity"]);
  EXPECT_GT(quantized["kl"].get<double>(), 1e-5);
  EXPECT_LT(quantized["kl"].get<double>(), 0.05);
  EXPECT_LT(quantized["weights_bytes"].get<double>(), 0.6 * plain["weights_bytes"].get<double>());
}

// The configurations that INC, Optimum Habana and vllm-gaudi publish, each used as its project uses it: the model is
// measured, or quantized on load, from the working directory that its relative paths need.

/// A folder of its own as working directory, for as long as this lives.
class WorkingDirectory {
 public:
  WorkingDirectory() : before_(std::filesystem::current_path()) { std::filesystem::current_path(folder_.path()); }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  test::TempDir folder_;
  std::filesystem::path before_;
};

test::Run evaluate(const io::Json& config, bool reference) {
  write_file("q.json", config.dump());
  Arguments arguments = args("evaluate --json --model $DEMO --data $HELDOUT --samples 1 --seq-len 32");
  if (reference) arguments.insert(arguments.end(), {"--reference", demo_model()});
  return fp8(arguments, {{"QUANT_CONFIG", "q.json"}});
}

/// Measures everything, unless that is what stands there already.
void measure_once(const std::string& prefix, std::set<std::string>& measured) {
  if (measured.insert(prefix).second) json_of(evaluate({{"mode", "MEASURE"}, {"dump_stats_path", prefix}}, false));
}

/// Quantized means: other numbers than the model's, and not far from them.
void expect_quantized(const io::Json& result) {
  EXPECT_GT(result.value("kl", -1.0), 1e-7);
  EXPECT_LT(result.value("kl", 1e9), 1.0);  // a single scale for every tensor is rough
}

void expect_measures(const io::Json& config) {
  json_of(evaluate(config, false));
  const std::string prefix = config.value("dump_stats_path", "stats");
  const io::Json file = io::read_json(prefix + "_hooks_maxabs.json");
  EXPECT_TRUE(file["Nodes"].contains("model.layers.0.self_attn.q_proj"));
  EXPECT_EQ(file["Nodes"]["model.layers.0.self_attn.q_proj"].contains("outputs"),
            config.value("measure_exclude", "OUTPUT") == "NONE");
}

/// A config that leaves the choice to the command.
void expect_measured_and_quantized(const io::Json& config) {
  write_file("q.json", config.dump());
  const auto folder = std::filesystem::path(config["dump_stats_path"].get<std::string>()).parent_path().string();
  std::filesystem::remove_all(folder);
  json_of(fp8("measure --json --model $DEMO --data $CALIB --samples 1 --config q.json --out {}", folder));
  json_of(fp8("quantize --json --model $DEMO --config q.json --out fp8"));
  expect_quantized(
      json_of(fp8("evaluate --json --model fp8 --reference $DEMO --data $HELDOUT --samples 1 --seq-len 256")));
}

TEST(PublishedConfigs, EachRunsOrIsRefusedWithTheReason) {
  const WorkingDirectory directory;
  const auto configs = test::published_configs();
  ASSERT_EQ(configs.size(), 71u);
  std::set<std::string> measured;  // prefixes
  std::set<io::Json> seen;         // many projects publish the same
  for (const auto& published : configs) {
    SCOPED_TRACE(published.name());
    const auto& keys = published.keys;
    if (!seen.insert(keys).second) continue;
    if (const auto refused = test::refused_configs().find(published.name()); refused != test::refused_configs().end()) {
      expect_refused(evaluate(keys, false), {refused->second});
      continue;
    }
    const configs::QuantConfig config = configs::parse_quant_config(keys, "q.json");
    if (config.mode == configs::QuantMode::MEASURE) {
      expect_measures(keys);
      measured.erase(keys.value("dump_stats_path", "stats"));
    } else if (config.mode == configs::QuantMode::AUTO) {
      expect_measured_and_quantized(keys);
      measured.clear();
    } else {
      if (config.needs_measurements()) measure_once(keys["dump_stats_path"].get<std::string>(), measured);
      expect_quantized(json_of(evaluate(keys, true)));
    }
  }
}

TEST(PublishedConfigs, AnEmptyPathIsRefusedWhereAFileIsNeeded) {
  const WorkingDirectory directory;
  expect_refused(evaluate({{"mode", "MEASURE"}, {"dump_stats_path", ""}}, false),
                 {"key 'dump_stats_path': found \"\", but mode MEASURE writes measurements there"});
  expect_refused(evaluate({{"mode", "LOAD"}, {"dump_stats_path", ""}}, false),
                 {"key 'dump_stats_path': found \"\", but mode LOAD reads scales there"});
  write_file("q.json", R"({"dump_stats_path": ""})");
  expect_quantize_refused(demo_model(), {"--config", std::filesystem::absolute("q.json").string()},
                          {"key 'dump_stats_path': found \"\""});
  // fp8 measure takes the folder from --out, fp8 quantize from --measurements, where it reads any.
  json_of(fp8("measure --json --model $DEMO --data $CALIB --samples 1 --config q.json --out stats"));
  EXPECT_TRUE(std::filesystem::exists("stats/inc_output_hooks_maxabs.json"));
  json_of(fp8("quantize --json --model $DEMO --config q.json --measurements stats --out fp8"));
  write_file("q.json", R"({"dump_stats_path": "", "scale_method": "maxabs_pcs_pow2", )"
                       R"("dynamic_quantization": "True", "calibration_sample_interval": "50"})");
  json_of(fp8("quantize --json --model $DEMO --config q.json --out fp8 --overwrite"));
}

}  // namespace
}  // namespace fp8::e2e
