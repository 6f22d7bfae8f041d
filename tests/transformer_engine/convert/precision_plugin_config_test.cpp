// SPDX-License-Identifier: Apache-2.0
// Where a conversion takes its QUANT_CONFIG from: the environment, a path, JSON; which one wins, and which mode.
#include <cstdlib>
#include <fstream>

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::te {
namespace {

using test::throws_with;

/// QUANT_CONFIG=value while it lives.
struct Environment {
  explicit Environment(const std::string& value) { setenv("QUANT_CONFIG", value.c_str(), 1); }
  ~Environment() { unsetenv("QUANT_CONFIG"); }
};

/// Collects TORCH_WARN texts while it lives.
struct Warnings final : c10::WarningHandler {
  std::vector<std::string> texts;
  c10::WarningHandler* previous = c10::WarningUtils::get_warning_handler();
  Warnings() { c10::WarningUtils::set_warning_handler(this); }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(previous); }
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
};

io::Json config(const test::TempDir& dir, const char* mode, const char* method = "maxabs_hw") {
  return {{"mode", mode},
          {"scale_method", method},
          {"blocklist", {{"names", {"lm_head"}}}},
          {"dump_stats_path", (dir / "stats/inc_output").string()}};
}

std::string write(const test::TempDir& dir, const io::Json& json) {
  io::write_json(dir / "quant.json", json);
  return (dir / "quant.json").string();
}

ConvertOptions inference(QuantSource source) {
  ConvertOptions o;
  o.inference = true;
  o.quant = std::move(source);
  o.dump_stats_path = "/nowhere/inc_output";  // must not be used: every config here names its own
  return o;
}

const quant::Scheme& scheme_of(const at::Tensor& weight) {
  return dynamic_cast<const quant::Fp8Handler&>(*runtime::find_tag(weight)->handler).scheme();
}

TEST(PrecisionPluginConfig, TheEnvironmentAppliesWithItsModeOverruled) {
  const test::TempDir dir;
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto model = test::tiny_lm();
  {
    const Environment environment(write(dir, config(dir, "QUANTIZE")));  // measured nevertheless: quant = false
    const auto report = plugin.convert_modules(*model, inference(false));
    EXPECT_EQ(report.converted.size(), 15u);  // the embedding too
    EXPECT_EQ(report.skipped.back().name, "lm_head");
    EXPECT_EQ(report.skipped.back().reason, "not selected by allowlist and blocklist");
    model(test::token_ids());
    measure::finalize_calibration(*model);
  }
  const auto measured = measure::read_measurements((dir / "stats/inc_output").string());
  EXPECT_FALSE(measured.modules.at(0).outputs.has_value());           // measure_exclude is OUTPUT by default
  const Environment environment(write(dir, config(dir, "MEASURE")));  // quantized nevertheless
  const auto report = plugin.convert_modules(*model, inference(true));
  EXPECT_EQ(report.converted.size(), 14u);
  EXPECT_EQ(scheme_of(model->layers[0]->q_proj->weight).convention, quant::Convention::inc);
}

TEST(PrecisionPluginConfig, APathOrJsonBringsItsMode) {
  const test::TempDir dir;
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto a = test::tiny_lm(), b = test::tiny_lm();
  EXPECT_TRUE(plugin.convert_modules(*a, inference(config(dir, "NONE"))).converted.empty());
  EXPECT_EQ(measure::CalibrationSession::of(*a), nullptr);
  plugin.convert_modules(*a, inference(write(dir, config(dir, "MEASURE"))));
  a(test::token_ids());
  measure::finalize_calibration(*a);
  plugin.convert_modules(*a, inference(config(dir, "QUANTIZE", "maxabs_pow2")));
  plugin.convert_modules(*b, inference(std::filesystem::path(write(dir, config(dir, "QUANTIZE", "maxabs_pow2")))));
  for (const auto& m : measure::weight_modules(*a)) {
    if (m.type == "Linear" && m.name != "lm_head") {
      EXPECT_EQ(m.weight.scalar_type(), at::kFloat8_e4m3fn);
    }
  }
  EXPECT_TRUE(test::same_bits(a(test::token_ids()), b(test::token_ids())));
}

TEST(PrecisionPluginConfig, AnExplicitConfigWinsWithAWarning) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  const Environment environment("/nowhere/else.json");
  Warnings warnings;
  HPUPrecisionPlugin("fp8").convert_modules(*model, inference(config(dir, "QUANTIZE", "unit_scale")));
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_NE(warnings.texts[0].find("wins over QUANT_CONFIG=/nowhere/else.json"), std::string::npos)
      << warnings.texts[0];
  EXPECT_EQ(scheme_of(model->layers[0]->q_proj->weight).input_scale_inv, 1.0f);
}

/// "/logs, environment"
std::string flag(const char* name) {
  const io::Flag flag = io::RuntimeFlags::from_env()[name];
  return flag.value + ", " + flag.source_text();
}

TEST(PrecisionPluginConfig, FlagsSayWhichConfigTheLastConversionTook) {
  const test::TempDir dir;
  const std::string prefix = (dir / "stats/inc_output").string(), path = write(dir, config(dir, "NONE"));
  setenv("HABANA_LOGS", "/logs", 1);
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  {
    const Environment environment(path);
    plugin.convert_modules(*model, inference(false));
    measure::CalibrationSession::of(*model)->discard();
    EXPECT_EQ(flag("QUANT_CONFIG"), path + ", environment");
    EXPECT_EQ(flag("HABANA_LOGS"), prefix + ", config file: " + path);
    plugin.convert_modules(*model, inference(config(dir, "NONE")));
    EXPECT_EQ(flag("QUANT_CONFIG"), "quant, call: convert_modules()");
    EXPECT_EQ(flag("HABANA_LOGS"), prefix + ", call: quant");
  }
  plugin.convert_modules(*model, inference(false));  // to dump_stats_path
  measure::CalibrationSession::of(*model)->discard();
  EXPECT_EQ(flag("QUANT_CONFIG"), "none, default");
  EXPECT_EQ(flag("HABANA_LOGS"), "/nowhere/inc_output, call: convert_modules()");
  unsetenv("HABANA_LOGS");
}

TEST(PrecisionPluginConfig, FixedScalesNeedNoFiles) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  const auto report =
      HPUPrecisionPlugin("fp8").convert_modules(*model, inference(config(dir, "QUANTIZE", "hw_aligned_single_scale")));
  EXPECT_EQ(report.converted.size(), 14u);
  EXPECT_FALSE(std::filesystem::exists(dir / "stats"));
  EXPECT_EQ(scheme_of(model->layers[0]->q_proj->weight).input_scale_inv, 128.0f);  // gaudi3's first
}

TEST(PrecisionPluginConfig, EntriesThatMatchNothingAreReported) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  auto json = config(dir, "MEASURE");
  json["blocklist"]["names"].push_back("no_such_module");
  const auto report = HPUPrecisionPlugin("fp8").convert_modules(*model, inference(json));
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_NE(report.warnings[0].find("no_such_module"), std::string::npos);
}

TEST(PrecisionPluginConfig, BadConfigsAreNamed) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  HPUPrecisionPlugin plugin("fp8");
  EXPECT_TRUE(throws_with({"missing.json"},
                          [&] { plugin.convert_modules(*model, inference((dir / "missing.json").string())); }));
  EXPECT_TRUE(throws_with({"'mode'", "MEASUR", "QUANTIZE"},
                          [&] { plugin.convert_modules(*model, inference(config(dir, "MEASUR"))); }));
  const Environment environment((dir / "missing.json").string());
  EXPECT_TRUE(throws_with({"missing.json"}, [&] { plugin.convert_modules(*model, inference(true)); }));
  for (const auto& m : measure::weight_modules(*model)) EXPECT_EQ(m.weight.scalar_type(), at::kFloat);
}

// What is no bool, path or dictionary, in the vendor's words.
TEST(PrecisionPluginConfig, QuantIsABoolAPathOrADictionary) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  HPUPrecisionPlugin plugin("fp8");
  const char* nothing = nullptr;
  const std::pair<QuantSource, const char*> wrong[] = {
      {nothing, "Got null"},       {io::Json(nullptr), "Got null"}, {io::Json::array({1}), "Got array"},
      {io::Json(3), "Got number"}, {"", "Got an empty path"},       {io::Json(""), "Got an empty path"}};
  for (const auto& [source, got] : wrong) {
    EXPECT_TRUE(throws_with({"`quant` must be either a bool, file path or a dictionary.", got},
                            [&] { plugin.convert_modules(*model, inference(source)); }));
  }
  EXPECT_TRUE(std::holds_alternative<bool>(QuantSource(io::Json(true)).value()));
  EXPECT_TRUE(std::holds_alternative<std::filesystem::path>(QuantSource(io::Json("a.json")).value()));
  EXPECT_TRUE(throws_with({"Failed to load file " + (dir / "stats/inc_output_hooks_maxabs.json").string()},
                          [&] { plugin.convert_modules(*model, inference(config(dir, "QUANTIZE"))); }));
}

TEST(PrecisionPluginConfig, ListsAndPlansWithAConfig) {
  const test::TempDir dir;
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  ConvertOptions o = inference(config(dir, "QUANTIZE", "unit_scale"));
  o.block = {"^layer_1"};
  o.plan_only = true;
  const auto plan = plugin.convert_modules(*model, o);
  EXPECT_EQ(plan.converted.size(), 7u);
  EXPECT_EQ(runtime::find_tag(model->layers[0]->q_proj->weight), nullptr);
  EXPECT_FALSE(std::filesystem::exists(dir / "stats"));
  o.plan_only = false;
  EXPECT_EQ(plugin.convert_modules(*model, o).converted.size(), 7u);
  EXPECT_EQ(model->layers[0]->q_proj->weight.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(model->layers[1]->q_proj->weight.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace fp8::te
