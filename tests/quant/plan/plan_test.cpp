// SPDX-License-Identifier: Apache-2.0
// Which modules are quantized, how, and why the others are not.
#include "fp8/quant/plan/plan.h"

#include "configs/quant_config_text.h"
#include "quant/plan/find_node.h"
#include "support/enum_names.h"

namespace fp8::quant {
namespace {

using test::quant_config;
using test::reason;

const std::vector<ModuleInfo> kModel = {{"model.embed_tokens", "Embedding", {48, 32}},
                                        {"model.layers.0.self_attn.q_proj", "Linear", {32, 32}},
                                        {"model.layers.0.self_attn.k_proj", "Linear", {16, 32}},
                                        {"model.layers.0.self_attn.v_proj", "Linear", {16, 32}},
                                        {"model.layers.0.self_attn.o_proj", "Linear", {32, 32}},
                                        {"model.layers.0.mlp.gate", "Linear", {4, 32}},
                                        {"model.layers.0.mlp.gate_proj", "Linear", {40, 32}},
                                        {"model.layers.0.mlp.up_proj", "Linear", {40, 32}},
                                        {"vision.patch", "Conv2d", {8, 3, 4, 4}},
                                        {"vision.mix", "Conv1d", {8, 8, 3}},
                                        {"vision.odd", "ConvTranspose2d", {8, 8, 3, 3}},
                                        {"lm_head", "Linear", {48, 32}}};

measure::MeasurementFile measured(const std::vector<std::string>& names, float input = 2.0f, float weight = 1.0f) {
  measure::MeasurementFile file;
  for (const auto& name : names) file.modules.push_back({name, {{input}}, std::nullopt, measure::Amax{weight}});
  return file;
}

/// Static activations with measurements of these modules; `exclude` leaves modules out.
PlanOptions static_options(const std::vector<std::string>& names, const std::vector<std::string>& exclude = {},
                           float input = 2.0f) {
  PlanOptions o{
      .activations = ActivationScaling::static_tensor, .exclude = exclude, .measurements = measured(names, input)};
  return o;
}

TEST(Plan, FormsOfExpertsHaveNames) { test::check_names<ExpertForm>(); }

/// Modules that a plan with these entries leaves out.
std::vector<std::string> ignored(const std::vector<std::string>& entries) {
  PlanOptions o{.ignore = entries};
  std::vector<std::string> names;
  for (const auto& s : make_plan(kModel, o).skipped)
    if (s.reason == "excluded by 'ignore'") names.push_back(s.name);
  return names;
}

TEST(Plan, IgnoreIsLlmCompressors) {
  const std::string q = "model.layers.0.self_attn.q_proj", k = "model.layers.0.self_attn.k_proj";
  EXPECT_THAT(ignored({q}), ElementsAre(q));
  EXPECT_THAT(ignored({"re:.*self_attn\\.[qk]_proj$"}), ElementsAre(q, k));
  EXPECT_THAT(ignored({"re:model.layers.0.self_attn.q"}), ElementsAre(q)) << "open at the end, as re.match is";
  EXPECT_THAT(ignored({"Conv2d"}), ElementsAre("vision.patch")) << "a class";
  for (const char* none : {"q_proj", "self_attn", "re:self_attn", "modelxlayers.0.self_attn.q_proj", "re:Conv2"}) {
    EXPECT_REFUSED(make_plan(kModel, {.ignore = {none}}),
                   "'ignore': pattern " + io::in_quotes(none) + " matches no module; the nearest is");
  }
}

TEST(Plan, FoldedNamesCanBeCopied) {
  std::vector<ModuleInfo> model;
  for (int i = 0; i < 13; ++i) model.push_back({"model.layers." + std::to_string(i) + ".up_proj", "Linear", {8, 4}});
  const auto kept = [&](const std::string& pattern) {
    PlanOptions o{.exclude = {pattern}};
    std::vector<std::string> names;
    for (const auto& s : make_plan(model, o).skipped) names.push_back(s.name.substr(13, s.name.find('.', 13) - 13));
    return names;
  };
  EXPECT_THAT(kept("model.layers.{0,2-4}.up_proj"), ElementsAre("0", "2", "3", "4"));
  EXPECT_THAT(kept("model.layers.{1,12}.up_proj"), ElementsAre("1", "12")) << "no three characters";
  EXPECT_THAT(kept("layers.{1,2}"), ElementsAre("1", "2")) << "not 10 to 12";
  EXPECT_THAT(kept("model.layers.*.up_proj"), ::testing::SizeIs(13));
  EXPECT_THAT(kept(R"(layers\.\d{2}\.)"), ElementsAre("10", "11", "12")) << "a regular expression as ever";
  EXPECT_THAT(kept(R"(layers\.1{1,2}\.)"), ElementsAre("1", "11"));
}

// A model in memory has an expert's gate above its up in one module; its files have two names for it.
TEST(Plan, PatternsMeanTheNamesOfTheCheckpoint) {
  const std::vector<ModuleInfo> model = {{"experts.moe_op.w13_list.0", "MoeMatmul", {8, 4}},
                                         {"experts.moe_op.w2_list.0", "MoeMatmul", {4, 4}},
                                         {"lm_head", "Linear", {8, 4}}};
  PlanOptions o;
  o.called = [](const std::string& name) -> std::vector<std::string> {
    if (name.ends_with("w13_list.0")) return {"experts.0.w1", "experts.0.w3"};
    return {name.ends_with("w2_list.0") ? "experts.0.w2" : name};
  };
  o.checkpoint_names = {"visual.proj"};
  o.exclude = {"w3$", "visual"};
  o.include = {"lm_head", "visual"};
  o.keep = {{"experts.0.w2", "why"}};
  const Plan plan = make_plan(model, o);
  EXPECT_EQ(reason(plan, "experts.moe_op.w13_list.0"), "excluded by 'exclude'");
  EXPECT_EQ(reason(plan, "experts.moe_op.w2_list.0"), "why");
  EXPECT_NE(plan.find("lm_head"), nullptr);
  o.exclude = {"moe_op"};
  EXPECT_REFUSED(make_plan(model, o), "'exclude': pattern 'moe_op' matches no module");
}

TEST(Plan, DynamicByDefault) {
  const Plan plan = make_plan(kModel, {});
  EXPECT_EQ(plan.modules.size(), 8u);
  EXPECT_EQ(plan.scale_method, "amax");
  EXPECT_TRUE(plan.measurements.empty());
  for (const auto& m : plan.modules) {
    EXPECT_EQ(m.scheme.describe(), "E4M3 channel weights, dynamic token activations, ocp") << m.info.name;
    EXPECT_EQ(m.scheme.convention, Convention::own);
    EXPECT_TRUE(m.fuse_group.empty()) << "channel scales need no common one";
  }
  EXPECT_NE(plan.find("vision.patch"), nullptr);
  EXPECT_EQ(plan.find("lm_head"), nullptr);
  EXPECT_EQ(reason(plan, "lm_head"), "kept in high precision by default ('include' quantizes it)");
  EXPECT_EQ(reason(plan, "model.embed_tokens"), "kept in high precision by default ('include' quantizes it)");
  EXPECT_EQ(reason(plan, "model.layers.0.mlp.gate"), "a router, kept in high precision ('include' quantizes it)");
  EXPECT_EQ(reason(plan, "vision.odd"), "no fp8 kernel for type ConvTranspose2d");
}

TEST(Plan, APatternThatMeansNothingIsASlip) {
  PlanOptions o{.exclude = {"lm_hed"}};
  EXPECT_REFUSED(make_plan(kModel, o), "'exclude'", "'lm_hed' matches no module", "the nearest is 'lm_head'");
  o.other_names = {"model.lm_hed.norm"};
  EXPECT_NO_THROW(make_plan(kModel, o)) << "what the model has besides";
  o.include = {R"(layers\.7\.mlp\.gate$)"};
  EXPECT_REFUSED(make_plan(kModel, o), "'include'", "matches no module", "the nearest is 'model.layers.0.mlp.gate'");
  o.include = {"up_proj", "lm_head"};
  EXPECT_NO_THROW(make_plan(kModel, o));
}

TEST(Plan, HintsNameTheApisOptionsOrTheCommandLines) {
  PlanOptions o{.exclude = {"vision"}};
  const auto reasons = [&] {
    const Plan plan = make_plan(kModel, o);
    return reason(plan, "lm_head") + "; " + reason(plan, "vision.patch");
  };
  EXPECT_EQ(reasons(), "kept in high precision by default ('include' quantizes it); excluded by 'exclude'");
  o.spelling = [](std::string_view id, std::string_view) { return "--" + std::string(id); };
  EXPECT_EQ(reasons(), "kept in high precision by default (--include quantizes it); excluded by --exclude");
  o.activations = ActivationScaling::static_tensor;
  try {
    make_plan(kModel, o);
    FAIL() << "expected an error";
  } catch (const io::Error& error) {
    EXPECT_THAT(io::spelled(error.message(), o.spelling),
                AllOf(HasSubstr("no measurement of module"), HasSubstr("leave it out with --exclude")));
  }
  EXPECT_REFUSED(make_plan(kModel, o), "no measurement of module",
                 "leave it out with 'exclude' (convert_modules: 'block')");
}

TEST(Plan, IncludeAndExcludeArePatterns) {
  PlanOptions o{.include = {"lm_head$", "embed", "odd"}, .exclude = {R"(mlp\.)", "vision.patch"}};
  const Plan plan = make_plan(kModel, o);
  EXPECT_NE(plan.find("lm_head"), nullptr);
  ASSERT_NE(plan.find("model.embed_tokens"), nullptr);
  EXPECT_EQ(plan.find("model.embed_tokens")->scheme.activations, ActivationScaling::none);
  EXPECT_EQ(reason(plan, "vision.odd"), "no fp8 kernel for type ConvTranspose2d");  // not even when included
  EXPECT_EQ(reason(plan, "vision.patch"), "excluded by 'exclude'");
  EXPECT_EQ(reason(plan, "model.layers.0.mlp.gate"), "excluded by 'exclude'");
  o.include = {"lm_head"}, o.exclude = {"lm_head"};
  EXPECT_EQ(make_plan(kModel, o).find("lm_head"), nullptr);  // exclude wins
  o.exclude = {"("};
  EXPECT_REFUSED(make_plan(kModel, o), "'exclude'", "(");
}

TEST(Plan, PerTensorScalesAreSharedWhereEnginesFuse) {
  PlanOptions o{.weights = Granularity::tensor};
  const Plan plan = make_plan(kModel, o);
  const auto group = [&](const char* name) { return plan.find(std::string("model.layers.0.") + name)->fuse_group; };
  EXPECT_FALSE(group("self_attn.q_proj").empty());
  EXPECT_EQ(group("self_attn.q_proj"), group("self_attn.v_proj"));
  EXPECT_EQ(group("self_attn.q_proj"), group("self_attn.k_proj"));
  EXPECT_EQ(group("mlp.gate_proj"), group("mlp.up_proj"));
  EXPECT_NE(group("mlp.gate_proj"), group("self_attn.q_proj"));
  EXPECT_TRUE(group("self_attn.o_proj").empty());
  o.fuse_scales = false;
  for (const auto& m : make_plan(kModel, o).modules) EXPECT_TRUE(m.fuse_group.empty());
}

TEST(Plan, StaticTakesItsScalesFromTheMeasurement) {
  PlanOptions o = static_options({"model.layers.0.mlp.up_proj", "lm_head"}, {"self_attn", "vision", "gate_proj"}, 7.0f);
  const Plan plan = make_plan(kModel, o);
  ASSERT_EQ(plan.modules.size(), 1u);
  EXPECT_EQ(plan.modules[0].scheme.input_scale_inv, 7.0f / 448.0f);
  EXPECT_EQ(plan.modules[0].scheme.weights, Granularity::tensor);  // the default with measurements
  EXPECT_EQ(plan.modules[0].measured_weight_amax, 1.0f);
  EXPECT_EQ(plan.measurements, o.measurements->fingerprint());
  EXPECT_TRUE(plan.warnings.empty());
}

TEST(Plan, UnmeasuredModulesAreNamed) {
  PlanOptions o = static_options({"model.layers.0.mlp.up_proj"});
  EXPECT_REFUSED(make_plan(kModel, o), "no measurement of module 'model.layers.0.self_attn.q_proj'",
                 "leave it out with 'exclude'");
  o.measurements->modules[0].inputs[0] = {};
  o.include = {}, o.exclude = {"self_attn", "vision", "gate_proj"};
  EXPECT_REFUSED(make_plan(kModel, o), "up_proj.inputs[0]", "expected an amax, found none");
}

TEST(Plan, OfValuesPerChannelTheLargestCounts) {
  PlanOptions o = static_options({"model.layers.0.mlp.up_proj"}, {"self_attn", "vision", "gate_proj"});
  o.measurements->observer = "maxabs_per_channel";
  o.measurements->modules[0].inputs[0] = {1.0f, 7.0f, 2.0f};
  o.measurements->modules[0].weight = measure::Amax{0.5f, 0.25f, 3.0f};
  const Plan plan = make_plan(kModel, o);
  EXPECT_EQ(plan.modules.at(0).scheme.input_scale_inv, 7.0f / 448.0f);
  EXPECT_EQ(plan.modules[0].measured_weight_amax, 3.0f);
  EXPECT_NO_THROW(check_measured_weight(plan.modules[0], 3.0f));
  EXPECT_THROW(check_measured_weight(plan.modules[0], 4.0f), io::Error) << "these are no thresholds";
}

TEST(Plan, FilesOfShapeAndSaveAreRefusedByTheObserversName) {
  PlanOptions o{.measurements = measured({"model.layers.0.mlp.up_proj"})};
  o.measurements->observer = "save";
  EXPECT_REFUSED(make_plan(kModel, o), "measurements: found those of observer 'save'", "measure with maxabs");
  o.measurements->observer = "";
  o.measurements->mode = measure::MeasurementMode::shape;  // another tool's file under another name
  EXPECT_REFUSED(make_plan(kModel, o), "found those of observer 'shape', which keeps sizes");
}

TEST(Plan, WhatWasNotToBeMeasuredIsLeftOut) {
  PlanOptions o = static_options({"model.layers.0.mlp.up_proj"}, {"self_attn", "vision"});
  o.measurements->selected = {"model.layers.0.mlp.up_proj"};
  const Plan plan = make_plan(kModel, o);
  EXPECT_EQ(plan.modules.size(), 1u);
  EXPECT_EQ(reason(plan, "model.layers.0.mlp.gate_proj"), "no measurement of its input, which was not to be measured");
  o.measurements->selected.push_back("model.layers.0.mlp.gate_proj");  // it was to be, and is not there
  EXPECT_REFUSED(make_plan(kModel, o), "no measurement of module 'model.layers.0.mlp.gate_proj'");
}

TEST(Plan, MeasurementsOfAnotherModelAreRefused) {
  PlanOptions o{.measurements = measured({"model.layers.0.mlp.up_proj", "model.layers.7.mlp.up_proj"})};
  EXPECT_REFUSED(make_plan(kModel, o), "'model.layers.7.mlp.up_proj'", "another model");
  // Nodes without a weight (matmul, caches) are no modules of ours.
  o.measurements->modules[1] = {"model.layers.0.self_attn.matmul_qk", {{1.0f}, {2.0f}}, std::nullopt, std::nullopt};
  const Plan plan = make_plan(kModel, o);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("1 measured nodes without a weight are passed over (the first is "
                                                   "'model.layers.0.self_attn.matmul_qk')")));
  o.measurements->modules.erase(o.measurements->modules.begin());
  EXPECT_REFUSED(make_plan(kModel, o), "no module of this model", "matmul_qk");
}

TEST(Plan, TheWeightsAmaxTellsAnotherModel) {
  PlannedModule m{.info = {.name = "up_proj"}};
  EXPECT_NO_THROW(check_measured_weight(m, 5.0f));  // nothing measured, nothing to tell
  m.measured_weight_amax = 1.0f;
  EXPECT_NO_THROW(check_measured_weight(m, 1.0f + 0x1p-8f));  // the rounding of bf16
  EXPECT_REFUSED(check_measured_weight(m, 1.1f), "up_proj", "was 1 when measured and is 1.1", "another model");
  EXPECT_THROW(check_measured_weight(m, 0.9f), io::Error);
  m.measured_weight_amax = 0.0f;
  EXPECT_NO_THROW(check_measured_weight(m, 0.0f));
}

TEST(Plan, ARanksFileMayBeOfTheWholeWeight) {
  PlanOptions o = static_options({"model.layers.0.mlp.up_proj"}, {"self_attn", "vision", "gate_proj"});
  const auto amax_is = [&](float amax) { check_measured_weight(make_plan(kModel, o).modules.at(0), amax); };
  for (const std::int64_t rank : {0, 1}) {
    o.measurements->local_rank = rank;
    EXPECT_NO_THROW(amax_is(0.5f));  // of a part, 1 is the whole's
    EXPECT_REFUSED(amax_is(1.1f), "up_proj", "was 1 when measured and is 1.1", "another model");
  }
  o.measurements->local_rank = -1;  // unified
  EXPECT_REFUSED(amax_is(0.5f), "up_proj", "was 1 when measured and is 0.5", "another model");
}

TEST(Plan, AWeightsThresholdIsBelowItsAmaxOrOfAnotherModel) {
  PlanOptions o = static_options({"model.layers.0.mlp.up_proj"}, {"self_attn", "vision", "gate_proj"});
  for (const char* observer : {"percentile", "mse", "kl", "of_my_own"}) {
    o.measurements->observer = observer;
    const PlannedModule m = make_plan(kModel, o).modules.at(0);  // its threshold is 1
    EXPECT_NO_THROW(check_measured_weight(m, 1.0f)) << observer;
    EXPECT_NO_THROW(check_measured_weight(m, 9.0f)) << observer;
    EXPECT_REFUSED(check_measured_weight(m, 0.9f),
                   "up_proj: the weight's clipping threshold was 1 when measured and its amax is 0.9", "another model")
        << observer;
  }
  o.measurements->modules[0].weight = measure::Amax{0.0f};
  EXPECT_THROW(check_measured_weight(make_plan(kModel, o).modules.at(0), 9.0f), io::Error)
      << "a weight of zeros was measured";
  for (const char* observer : {"maxabs", "histogram", ""}) {
    o.measurements->modules[0].weight = measure::Amax{1.0f};
    o.measurements->observer = observer;
    const PlannedModule m = make_plan(kModel, o).modules.at(0);
    EXPECT_THROW(check_measured_weight(m, 9.0f), io::Error) << observer << " keeps the amax itself";
  }
}

TEST(Plan, AConfigBringsItsOwnRules) {
  PlanOptions o;
  o.dialect = recipes::Dialect::gaudi2;
  o.config = quant_config(R"({"scale_method": "maxabs_hw", "blocklist": {"names": ["lm_head", "mlp\\.gate$"], )"
                          R"("types": ["Conv1d", "Conv2d", "Softmax"]}})");
  o.measurements =
      measured({"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj",
                "model.layers.0.self_attn.o_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"},
               3.0f);
  const Plan plan = make_plan(kModel, o);
  EXPECT_EQ(plan.modules.size(), 6u);
  EXPECT_EQ(plan.scale_method, "MAXABS_HW");
  const Scheme& s = plan.modules[0].scheme;
  EXPECT_EQ(s.convention, Convention::inc);
  EXPECT_EQ(s.hp, recipes::FloatType::BF16);
  EXPECT_EQ(s.input_scale_inv, 0x1p-4f);  // 3 / (240 * 0.25) = 0.05 -> 2^-4, one of gaudi2's four
  EXPECT_TRUE(plan.modules[0].fuse_group.empty());
  EXPECT_EQ(reason(plan, "lm_head"), "not selected by allowlist and blocklist of q.json");
  EXPECT_EQ(reason(plan, "model.embed_tokens"), "type Embedding is not quantized unless the allowlist names it");
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("Softmax")));
}

TEST(Plan, AConfigsUnmeasuredModulesAreAnErrorOrLeftOut) {
  PlanOptions o{.config = quant_config(R"({"allowlist": {"names": ["up_proj", "gate_proj"]}})"),
                .measurements = measured({"model.layers.0.mlp.up_proj"})};
  EXPECT_REFUSED(make_plan(kModel, o), "'model.layers.0.mlp.gate_proj'", "ignore_modules_wo_measures");
  o.config = quant_config(R"({"allowlist": {"names": ["up_proj", "gate_proj"]}, "ignore_modules_wo_measures": true})");
  const Plan plan = make_plan(kModel, o);
  EXPECT_EQ(plan.modules.size(), 1u);
  EXPECT_EQ(reason(plan, "model.layers.0.mlp.gate_proj"), "no measurement of its input (ignore_modules_wo_measures)");
}

TEST(Plan, FixedScalesNeedNoMeasurement) {
  PlanOptions o{.config = quant_config(R"({"scale_method": "unit_scale", "allowlist": {"types": ["Linear"]}})")};
  const Plan plan = make_plan(kModel, o);
  EXPECT_EQ(plan.modules.size(), 8u);  // lm_head and the router too: nothing is kept by default under a config
  for (const auto& m : plan.modules) EXPECT_EQ(m.scheme.input_scale_inv, 1.0f);
}

TEST(Plan, ChannelMethodsGiveChannelWeights) {
  PlanOptions o;
  o.config = quant_config(
      R"({"scale_method": "act_maxabs_pow2_weights_pcs_maxabs_pow2", "allowlist": {"names": ["up_proj"]}, )"
      R"("fp8_config": "E5M2", "hp_dtype": "fp32"})");
  o.measurements = measured({"model.layers.0.mlp.up_proj"});
  const Scheme s = make_plan(kModel, o).modules.at(0).scheme;
  EXPECT_EQ(s.weights, Granularity::channel);
  EXPECT_EQ(s.format, recipes::Format::E5M2);
  EXPECT_EQ(s.hp, recipes::FloatType::F32);
  EXPECT_EQ(s.activations, ActivationScaling::static_tensor);
}

}  // namespace
}  // namespace fp8::quant
