// SPDX-License-Identifier: Apache-2.0
// The plugin from precision names to a converted model, without a QUANT_CONFIG.
#include "fp8/transformer_engine/convert/precision_plugin.h"

#include <torch/script.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "support/fp8_reference.h"
#include "support/launchers.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::te {
namespace {

ConvertOptions options(const test::TempDir& dir, bool quantize) {
  return {.inference = true, .quant = quantize, .dump_stats_path = (dir / "stats/inc_output").string()};
}

void calibrate(test::TinyLm& model, HPUPrecisionPlugin plugin, const ConvertOptions& o) {
  plugin.convert_modules(*model, o);
  for (int i = 0; i < 2; ++i) model(test::token_ids(1 + i, 6));
}

using PrecisionPlugin = InFolder;

TEST_F(PrecisionPlugin, TakesTheKnownNames) {
  for (const auto& [spelling, precision] :
       {std::pair("32-true", "32-true"), std::pair("32", "32-true"), std::pair("bf16-mixed", "bf16-mixed"),
        std::pair("bf16", "bf16-mixed"), std::pair("16-mixed", "16-mixed"), std::pair("fp8", "fp8")})
    EXPECT_EQ(HPUPrecisionPlugin(spelling).precision(), precision);
  for (const char* wrong : {"", "FP8", "fp16", "fp8 "})
    EXPECT_REFUSED(HPUPrecisionPlugin p(wrong), std::string("found precision \"") + wrong + "\"",
                   "allowed: 32-true, 32, bf16-mixed, bf16, 16-mixed, fp8");
}

TEST_F(PrecisionPlugin, TheFirstGenerationHasNeitherFp8NorF16) {
  const runtime::DeviceKindScope kind(runtime::DeviceKind::gaudi);
  EXPECT_FALSE(is_fp8_available().available);
  for (const auto& [precision, what] : {std::pair("fp8", "fp8"), std::pair("16-mixed", "fp16")}) {
    std::string large = what;
    for (char& c : large) c = static_cast<char>(std::toupper(c));
    EXPECT_REFUSED(HPUPrecisionPlugin p(precision), std::string(what) + " not supported: " + large +
                                                        " not supported on Gaudi, Gaudi2 or higher required.");
  }
  EXPECT_EQ(HPUPrecisionPlugin("bf16-mixed").precision(), "bf16-mixed");
  for (const char* wrong : {"cuda", "", "hpu:1", "hpu,", "pu", "hpu, hpu:0", "hpu:"})
    EXPECT_REFUSED(HPUPrecisionPlugin p("32-true", wrong),
                   std::string("found device \"") + wrong + "\", allowed: hpu, hpu:0")
        << wrong;
  EXPECT_EQ(HPUPrecisionPlugin("32-true", "hpu:0").device(), "hpu:0");
}

TEST_F(PrecisionPlugin, ForwardContextsDecideTheDtype) {
  torch::nn::Linear model = hpu(torch::nn::Linear(16, 8));
  const at::Tensor x = torch::randn({4, 16}, on_hpu());
  for (const auto& [precision, dtype] : {std::pair("32-true", at::kFloat), std::pair("bf16-mixed", at::kBFloat16),
                                         std::pair("16-mixed", at::kHalf), std::pair("fp8", at::kBFloat16)}) {
    const HPUPrecisionPlugin plugin(precision);
    const bool fp8 = plugin.precision() == "fp8";
    {
      const auto region = plugin.forward_context();
      EXPECT_EQ(model->forward(x).scalar_type(), dtype) << precision;
      EXPECT_EQ(is_fp8_enabled(), fp8);
    }
    const auto decorated = plugin.in_forward_context(
        [&](const at::Tensor& t) { return std::pair(model->forward(t).scalar_type(), is_fp8_enabled()); });
    EXPECT_EQ(decorated(x), std::pair(dtype, fp8)) << precision;
    int calls = 0;
    const auto counting = plugin.in_forward_context([calls](int step) mutable { return calls += step; });
    EXPECT_EQ(counting(2), 2);
    EXPECT_EQ(counting(3), 5);
    EXPECT_EQ(plugin.in_forward_context(&torch::nn::LinearImpl::forward)(*model, x).scalar_type(), dtype);
    const auto throwing = plugin.in_forward_context([] { throw std::runtime_error("in the middle"); });
    EXPECT_TRUE(throws_with({"in the middle"}, throwing));
    EXPECT_FALSE(is_fp8_enabled());
    EXPECT_EQ(model->forward(x).scalar_type(), at::kFloat);
  }
  HPUPrecisionPlugin plain("fp8");
  plain.nested_bf16 = false;
  const auto region = plain.forward_context();
  EXPECT_EQ(model->forward(x).scalar_type(), at::kFloat);
}

// fp8_data_path, else dump_stats_path, else HABANA_LOGS, as the vendor's packages name the files.
TEST_F(PrecisionPlugin, MeasurementsLieWhereTheyAreToldTo) {
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto measured = [](const ConvertOptions& o) {
    auto model = test::tiny_lm();
    calibrate(model, HPUPrecisionPlugin("fp8"), o);
    measure::finalize_calibration(*model);
  };
  ConvertOptions o{.inference = true, .quant = false};
  setenv("HABANA_LOGS", path("logs").c_str(), 1);
  measured(o);
  o.dump_stats_path = path("own/stats");
  measured(o);
  o.fp8_data_path = path("data");
  measured(o);
  unsetenv("HABANA_LOGS");
  for (const char* prefix : {"logs/inc_output/measure", "own/stats", "data/inc_output/measure"})
    EXPECT_EQ(measure::read_measurements(path(prefix)).modules.size(), 15u) << prefix;
}

TEST_F(PrecisionPlugin, ConvertsForInferenceInFp8Only) {
  auto model = test::tiny_lm();
  EXPECT_REFUSED(HPUPrecisionPlugin("bf16").convert_modules(*model, options(folder, true)),
                 "should only be used with precision=`fp8`", "bf16-mixed");
}

TEST_F(PrecisionPlugin, MeasuresAndQuantizesInOneProcess) {
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids(), plain = model(ids);
  const auto measuring = plugin.convert_modules(*model, options(folder, false));
  EXPECT_EQ(measuring.converted.size(), 15u);
  EXPECT_EQ(measuring.converted[0].scheme, "measured (maxabs)");
  ASSERT_EQ(measuring.skipped.size(), 1u);
  EXPECT_EQ(measuring.skipped[0].reason, "type Embedding is not measured");
  EXPECT_TRUE(same_bits(model(ids), plain));
  const auto report = plugin.convert_modules(*model, options(folder, true));  // ends the calibration itself
  EXPECT_EQ(report.converted.size(), 14u);
  EXPECT_EQ(report.converted[0].scheme, "E4M3 tensor weights, static tensor activations, gaudi3");
  EXPECT_EQ(measure::CalibrationSession::of(*model), nullptr);
  const at::Tensor h = model->embed_tokens(ids);
  const auto& handler =
      dynamic_cast<const quant::Fp8Handler&>(*runtime::find_tag(model->layers[0]->q_proj->weight)->handler);
  EXPECT_EQ(handler.scheme().input_scale_inv, test::amax_reference(h, 1)[0] / 448.0f);
  EXPECT_LT(((model(ids) - plain).norm() / plain.norm()).item<double>(), 0.1);
}

TEST_F(PrecisionPlugin, OneProcessOrTwoGiveTheSameBytes) {
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = test::token_ids();
  auto one = test::tiny_lm(5, at::kBFloat16), first = test::tiny_lm(5, at::kBFloat16);
  calibrate(one, plugin, options(folder, false));
  plugin.convert_modules(*one, options(folder, true));
  const auto codes_before = measure::read_measurements((folder / "stats/inc_output").string()).fingerprint();
  calibrate(first, plugin, options(folder, false));
  measure::finalize_calibration(*first);
  EXPECT_EQ(measure::read_measurements((folder / "stats/inc_output").string()).fingerprint(), codes_before);
  auto second = test::tiny_lm(5, at::kBFloat16);  // another model object, files only in between
  plugin.convert_modules(*second, options(folder, true));
  const auto a = measure::weight_modules(*one), b = measure::weight_modules(*second);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i].weight, b[i].weight)) << a[i].name;
  EXPECT_TRUE(same_bits(one(ids), second(ids)));
}

TEST_F(PrecisionPlugin, MeasurementsAreWrittenWhenTheModelGoes) {
  {
    auto model = test::tiny_lm();
    calibrate(model, HPUPrecisionPlugin("fp8"), options(folder, false));
  }
  EXPECT_EQ(measure::read_measurements((folder / "stats/inc_output").string()).modules.size(), 15u);
}

// Ranks of one launcher share a folder; each reads what it wrote itself.
TEST_F(PrecisionPlugin, RanksMeasureIntoFilesOfTheirOwn) {
  for (const char* launcher : {"mpirun", "srun"}) {
    for (int rank = 0; rank < 2; ++rank) {
      const test::LauncherEnvironment environment(test::launchers(rank, 2).at(launcher));
      auto model = test::tiny_lm();
      HPUPrecisionPlugin plugin("fp8");
      auto o = options(folder, false);
      o.dump_stats_path = (folder / launcher / "p").string();
      calibrate(model, plugin, o);
      o.quant = true;
      EXPECT_GT(plugin.convert_modules(*model, o).converted.size(), 10u);
    }
    for (const char* name : {"p_hooks_maxabs_0_2.json", "p_hooks_maxabs_1_2.json"})
      EXPECT_TRUE(std::filesystem::exists(folder / launcher / name)) << launcher << name;
    EXPECT_FALSE(std::filesystem::exists(folder / launcher / "p_hooks_maxabs.json")) << launcher;
  }
}

TEST_F(PrecisionPlugin, WithoutMeasurementsItSaysWhichFile) {
  auto model = test::tiny_lm();
  EXPECT_REFUSED(HPUPrecisionPlugin("fp8").convert_modules(*model, options(folder, true)),
                 "Failed to load file " + (folder / "stats/inc_output_hooks_maxabs.json").string(), "no such file",
                 ".quant = false");
  EXPECT_EQ(model->lm_head->weight.scalar_type(), at::kFloat);
}

TEST_F(PrecisionPlugin, ListsChooseForInferenceToo) {
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  ConvertOptions o = options(folder, false);
  o.block = {"lm_head", "nowhere"};
  const auto measuring = plugin.convert_modules(*model, o);
  EXPECT_EQ(measuring.converted.size(), 14u);
  EXPECT_EQ(measuring.skipped.back().reason, "blocked by \"lm_head\"");
  EXPECT_EQ(measuring.warnings, std::vector<std::string>{"block[1] \"nowhere\": no module has such a name"});
  model(test::token_ids());
  o.quant = true;
  o.allow = {"layer_0"};
  o.block = {"o_proj$"};
  EXPECT_EQ(plugin.convert_modules(*model, o).converted.size(), 6u);
  for (const auto& m : measure::weight_modules(*model)) {
    const bool chosen = m.name.rfind("layer_0", 0) == 0 && m.name != "layer_0.o_proj";
    EXPECT_EQ(m.weight.scalar_type(), chosen ? at::kFloat8_e4m3fn : at::kFloat) << m.name;
  }
  o.block = {"("};
  EXPECT_REFUSED(plugin.convert_modules(*model, o), "convert_modules: block", "(");
}

TEST_F(PrecisionPlugin, AnInferencePlanChangesNothing) {
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  ConvertOptions o = options(folder, false);
  o.plan_only = true;
  EXPECT_EQ(plugin.convert_modules(*model, o).converted.size(), 15u);
  EXPECT_EQ(measure::CalibrationSession::of(*model), nullptr);
  o.plan_only = false;
  calibrate(model, plugin, o);
  measure::finalize_calibration(*model);
  o.quant = o.plan_only = true;
  const auto plan = plugin.convert_modules(*model, o);
  ASSERT_EQ(plan.converted.size(), 14u);
  const at::Tensor w = model->layers[0]->q_proj->weight.detach().cpu();
  EXPECT_EQ(model->layers[0]->q_proj->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(plan.converted[0].bytes_before, 32 * 32 * 4);
  EXPECT_EQ(plan.converted[0].bytes_after, 32 * 32);
  EXPECT_EQ(plan.converted[0].flops_per_row, 2.0 * 32 * 32);
  // The scale of q, k and v is one: their largest.
  float amax = 0;
  for (const auto* m : {&model->layers[0]->q_proj, &model->layers[0]->k_proj, &model->layers[0]->v_proj})
    amax = std::max(amax, (*m)->weight.abs().max().item<float>());
  const at::Tensor back = (w * (448.0f / amax)).to(at::kFloat8_e4m3fn).to(at::kFloat) * (amax / 448.0f);
  const double weight_error = ((back - w).norm() / w.norm()).item<double>();
  EXPECT_NEAR(plan.converted[0].expected_error.value(), std::hypot(weight_error, std::sqrt(std::log(2.0) / 18) / 8),
              1e-4);
  std::ostringstream text;
  text << plan;
  EXPECT_THAT(text.str(), HasSubstr("; 1.02 kB of 4.1 kB, 2.05 kflop a row, error 3."));
  o.plan_only = false;
  EXPECT_EQ(plugin.convert_modules(*model, o).converted.size(), 14u);
}

TEST_F(PrecisionPlugin, RestoreGivesValuesBack) {
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto model = test::tiny_lm(1, at::kBFloat16);
  const at::Tensor ids = test::token_ids();
  calibrate(model, plugin, options(folder, false));
  plugin.convert_modules(*model, options(folder, true));
  std::vector<std::pair<void*, at::Tensor>> expected;
  for (const auto& m : measure::weight_modules(*model)) {
    at::Tensor values = m.weight.detach().cpu();
    const auto* tag = runtime::find_tag(m.weight);
    if (const auto* handler = tag != nullptr ? dynamic_cast<const quant::Fp8Handler*>(tag->handler.get()) : nullptr) {
      values =
          (values.view(at::kByte).clone().view(values.scalar_type()).to(at::kFloat) * handler->weight_scale_inv().cpu())
              .to(at::kBFloat16);
    }
    expected.emplace_back(m.weight.unsafeGetTensorImpl(), values.clone());
  }
  EXPECT_EQ(plugin.restore(*model), 14);
  std::size_t i = 0;
  for (const auto& m : measure::weight_modules(*model)) {
    EXPECT_EQ(m.weight.unsafeGetTensorImpl(), expected[i].first) << m.name;
    EXPECT_EQ(runtime::find_tag(m.weight), nullptr) << m.name;
    EXPECT_TRUE(same_bits(m.weight, expected[i++].second)) << m.name;
  }
  EXPECT_EQ(model(ids).scalar_type(), at::kBFloat16);
  EXPECT_EQ(plugin.restore(*model), 0);
  EXPECT_EQ(plugin.convert_modules(*model, {.replace_layers = true}).converted.size(), 15u);  // and it can train
}

TEST_F(PrecisionPlugin, ArgumentsWithoutEffectAreNamed) {
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  ConvertOptions o = options(folder, false);
  o.plan_only = o.replace_layers = o.minimize_memory = true;
  o.recipe = recipes::CurrentScaling{};
  o.rules = {{"lm_head", std::nullopt}};
  o.alignment = Alignment::pad;
  o.warm_start = "m";
  std::vector<std::string> expected;
  for (const char* name : {"replace_layers", "recipe", "rules", "alignment", "minimize_memory", "warm_start"})
    expected.push_back(std::string(name) + " has no effect with inference = true");
  EXPECT_EQ(plugin.convert_modules(*model, o).warnings, expected);
  ConvertOptions training{.replace_layers = true};
  training.fp8_data_path = training.dump_stats_path = "x";
  EXPECT_EQ(plugin.convert_modules(*model, training).warnings,
            (std::vector<std::string>{"fp8_data_path has no effect with inference = false",
                                      "dump_stats_path has no effect with inference = false"}));
}

// Train, measure, quantize: the training handlers go, and no later region brings them back.
TEST_F(PrecisionPlugin, FromTrainingToInference) {
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  plugin.convert_modules(*model, {.replace_layers = true});
  EXPECT_REFUSED(plugin.convert_modules(*model, options(folder, true)), "Failed to load file");
  EXPECT_NE(training_handler(model->lm_head->weight), nullptr);  // nothing changed
  const auto report = plugin.convert_modules(*model, options(folder, false));
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("15 weights lost their handlers")));
  model(test::token_ids());
  EXPECT_EQ(plugin.convert_modules(*model, options(folder, true)).converted.size(), 14u);
  { const auto region = plugin.forward_context(); }
  EXPECT_EQ(training_handler(model->lm_head->weight), nullptr);
  EXPECT_EQ(model->layers[0]->q_proj->weight.scalar_type(), at::kFloat8_e4m3fn);
}

TEST_F(PrecisionPlugin, TheDevicesKindIsTheDialect) {
  auto model = test::tiny_lm();
  calibrate(model, HPUPrecisionPlugin("fp8"), options(folder, false));
  test::within(runtime::DeviceKindScope(runtime::DeviceKind::gaudi), [&] {
    EXPECT_REFUSED(HPUPrecisionPlugin("fp8").convert_modules(*model, options(folder, true)),
                   "FP8 not supported on Gaudi");
  });
  const runtime::DeviceKindScope kind(runtime::DeviceKind::gaudi2);
  const auto report = HPUPrecisionPlugin("fp8").convert_modules(*model, options(folder, true));
  EXPECT_EQ(report.converted.at(0).scheme, "E4M3 tensor weights, static tensor activations, gaudi2");
}

TEST_F(PrecisionPlugin, ScriptedModelsToo) {
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  const at::Tensor x = hpu(torch::randn({5, 16})), plain = model.forward({x}).toTensor();
  plugin.convert_modules(model, options(folder, false));
  EXPECT_TRUE(same_bits(model.forward({x}).toTensor(), plain));
  measure::finalize_calibration(model);
  EXPECT_EQ(plugin.convert_modules(model, options(folder, true)).converted.size(), 2u);
  EXPECT_LT(((model.forward({x}).toTensor() - plain).norm() / plain.norm()).item<double>(), 0.1);
}

}  // namespace
}  // namespace fp8::te
