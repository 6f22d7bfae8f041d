// SPDX-License-Identifier: Apache-2.0
// Modules without a weight in the plan: which are selected, and what scales INC's rules give each kind.
#include "configs/quant_config_text.h"
#include "fp8/quant/plan/rules.h"
#include "quant/plan/find_node.h"

namespace fp8::quant {
namespace {

using test::reason;
using Floats = std::vector<float>;

const std::vector<ModuleInfo> kWeights = {{"l.q_proj", "Linear", {8, 8}},
                                          {"l.moe.w13_list.0", "MoeMatmul", {8, 4}},
                                          {"l.moe.w2_list.0", "MoeMatmul", {4, 4}},
                                          {"l.moe.w13_list.1", "MoeMatmul", {8, 4}},
                                          {"l.moe.w2_list.1", "MoeMatmul", {4, 4}}};
const std::vector<NodeInfo> kNodes = {{"l.matmul_qk", "Matmul"},    {"l.b2b", "B2BMatmul"},
                                      {"l.softmax", "Softmax"},     {"l.sdpa", "ModuleFusedSDPA"},
                                      {"l.k_cache", "VLLMKVCache"}, {"l.moe", "VllmMixtureOfExpertsOp"},
                                      {"l.odd", "SomethingElse"}};

/// Amax values of powers of two, so that scales of MAXABS_POW2 on gaudi2 (240 * 0.25 = 60) are 2^ceil(log2(amax / 60))
/// = amax / 32.
measure::MeasurementFile measured() {
  using Outputs = std::vector<measure::Amax>;
  measure::MeasurementFile f{.modules = {{"l.q_proj", {{64.0f}}, std::nullopt, std::nullopt},
                                         {"l.matmul_qk", {{32.0f}, {64.0f}}, std::nullopt, std::nullopt},
                                         {"l.b2b", {{1.0f}, {1e30f}}, Outputs{{128.0f}}, std::nullopt},
                                         {"l.softmax", {{9.0f}}, Outputs{{1.0f}}, std::nullopt},
                                         {"l.sdpa", {{2.0f}, {4.0f}, {8.0f}}, Outputs{{16.0f}, {1.0f}}, std::nullopt},
                                         {"l.k_cache", {{256.0f}}, std::nullopt, std::nullopt},
                                         {"l.moe", {{512.0f}}, Outputs{{1.0f}, {2.0f}, {4.0f}}, std::nullopt},
                                         {"l.moe.w13_list.0", {{0.0f}}, std::nullopt, measure::Amax{1.0f}}}};
  return f;
}

PlanOptions options(const std::string& json) {
  return {.dialect = recipes::Dialect::gaudi2, .config = test::quant_config(json), .measurements = measured()};
}

TEST(PlanNodes, ScalesOfEveryKindFollowIncsRules) {
  const Plan plan = make_plan(kWeights, kNodes, options(R"({"scale_method": "maxabs_pow2"})"));
  const auto in = [&](const char* name) { return test::find_node(plan, name)->scheme.input_scale_inv; };
  const auto out = [&](const char* name) { return test::find_node(plan, name)->scheme.output_scale_inv; };
  EXPECT_EQ(in("l.matmul_qk"), (Floats{1, 2}));
  EXPECT_EQ(out("l.matmul_qk"), (Floats{2}));
  EXPECT_EQ(in("l.b2b"), (Floats{1.0f / 32, 4}))
      << "the second input's scale comes from the output, its padding holds garbage";
  EXPECT_EQ(in("l.softmax"), Floats{});
  EXPECT_EQ(out("l.softmax"), (Floats{1.0f / 32}));
  EXPECT_EQ(in("l.sdpa"), (Floats{2.0f / 32, 4.0f / 32, 8.0f / 32, 1.0f / 32}));
  EXPECT_EQ(out("l.sdpa"), (Floats{0.5f}));
  EXPECT_EQ(in("l.k_cache"), (Floats{8}));
  EXPECT_EQ(out("l.k_cache"), (Floats{8}));
  EXPECT_EQ(in("l.moe"), (Floats{16, 2.0f / 32, 4.0f / 32}));
  EXPECT_EQ(plan.find("l.moe.w13_list.0")->scheme.input_scale_inv, 16)
      << "the mixture's hidden states, not the placeholder";
  EXPECT_EQ(plan.find("l.moe.w2_list.1")->scheme.input_scale_inv, 4.0f / 32);
  EXPECT_EQ(reason(plan, "l.odd"), "type SomethingElse is not quantized");
  EXPECT_TRUE(plan.warnings.empty());
}

TEST(PlanNodes, AnUnmeasuredNodeIsNamedBeforeAnythingRuns) {
  PlanOptions o = options(R"({"scale_method": "maxabs_pow2"})");
  auto nodes = kNodes;
  nodes.push_back({"m.softmax", "Softmax"});
  o.measurements->modules[3].module = "m.softmax";  // one of two was measured
  EXPECT_REFUSED(make_plan(kWeights, nodes, o), "'l.softmax'", "ignore_modules_wo_measures");
  o.config->ignore_modules_wo_measures = true;
  EXPECT_EQ(reason(make_plan(kWeights, nodes, o), "l.softmax"),
            "no measurement of its inputs (ignore_modules_wo_measures)");
  o.measurements->modules.erase(o.measurements->modules.begin() + 3);
  o.measurements->modules[3].outputs = std::vector<measure::Amax>{{16.0f}};  // sdpa without P
  EXPECT_REFUSED(make_plan(kWeights, kNodes, o), "l.sdpa.outputs[1]", "not measured");
  o = options(R"({"scale_method": "maxabs_pow2"})");
  o.measurements->modules[6].outputs->pop_back();
  EXPECT_REFUSED(make_plan(kWeights, kNodes, o), "l.moe.outputs", "expert 1");
}

TEST(PlanNodes, MeasurementsOfAModelWithoutSuchModulesFit) {
  PlanOptions o = options(R"({"scale_method": "maxabs_pow2"})");
  o.measurements->modules.erase(o.measurements->modules.begin() + 3);
  const Plan plan = make_plan(kWeights, kNodes, o);
  EXPECT_EQ(reason(plan, "l.softmax"), "no module of type Softmax was measured");
  EXPECT_NE(test::find_node(plan, "l.sdpa"), nullptr);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("the first is 'l.softmax'")));
}

TEST(PlanNodes, ListsAndMethodsAreOfTheNode) {
  const char* const json = R"({"scale_method": {
      "default": {"weight": {"rounding_method": "POW2", "backoff": 0.5},
                  "activation": {"rounding_method": "POW2", "backoff": 0.25}},
      "nodes": {"l.k_cache": {"weight": {"scale_value_type": "FIXED_VALUE", "rounding_method": "SCALE_UNIT"},
                              "activation": {"scale_value_type": "FIXED_VALUE", "rounding_method": "SCALE_UNIT"}}}},
      "blocklist": {"types": ["Softmax"], "names": ["moe"]}})";
  const Plan plan = make_plan(kWeights, kNodes, options(json));
  EXPECT_EQ(test::find_node(plan, "l.k_cache")->scheme.input_scale_inv, std::vector<float>{1.0f});
  EXPECT_EQ(test::find_node(plan, "l.matmul_qk")->scheme.input_scale_inv[1], 2.0f);
  EXPECT_THAT(reason(plan, "l.softmax"), HasSubstr("not selected"));
  EXPECT_THAT(reason(plan, "l.moe"), HasSubstr("not selected"));
  EXPECT_EQ(plan.modules.size(), 1u);
}

TEST(PlanNodes, BackoffsAreInEffect) {
  for (const char* key : {R"("scale_params": {"input_backoff": 0.5})", R"("input_backoff": 0.5)"}) {
    const Plan plan =
        make_plan(kWeights, kNodes, options(std::string(R"({"scale_method": "maxabs_pow2", )") + key + "}"));
    EXPECT_EQ(plan.find("l.q_proj")->scheme.input_scale_inv, 1.0f) << "64 / (240 * 0.5) = 0.53; with 0.25 it is 2";
  }
}

TEST(PlanNodes, AMixtureFollowsItsExpertsWeights) {
  const Plan plan = make_plan(kWeights, kNodes,
                              options(R"({"scale_method": "maxabs_pow2", "blocklist": {"names": ["w2_list\\.1"]}})"));
  EXPECT_EQ(reason(plan, "l.moe"), "its experts' weights stay in high precision");
  EXPECT_NE(plan.find("l.moe.w2_list.0"), nullptr);
}

TEST(PlanNodes, DynamicScalesNeedNoMeasurement) {
  PlanOptions o = options(R"({"scale_method": "maxabs_pcs_pow2", "dynamic_quantization": true})");
  o.measurements.reset();
  const Plan plan = make_plan(kWeights, kNodes, o);
  ASSERT_NE(test::find_node(plan, "l.matmul_qk"), nullptr);
  EXPECT_TRUE(test::find_node(plan, "l.matmul_qk")->scheme.dynamic &&
              test::find_node(plan, "l.matmul_qk")->scheme.per_token);
  EXPECT_EQ(plan.find("l.q_proj")->scheme.activations, ActivationScaling::dynamic_token);
  EXPECT_NE(test::find_node(plan, "l.moe"), nullptr);
  EXPECT_THAT(reason(plan, "l.softmax"), HasSubstr("has no dynamic scales"));
  EXPECT_THAT(reason(plan, "l.sdpa"), HasSubstr("has no dynamic scales"));
  EXPECT_THAT(reason(plan, "l.k_cache"), HasSubstr("no place for the scales"));
}

TEST(PlanNodes, WithoutAConfigAttentionIsAskedFor) {
  PlanOptions o{.activations = ActivationScaling::static_tensor, .exclude = {"b2b"}, .measurements = measured()};
  const Plan kept = make_plan(kWeights, kNodes, o);
  EXPECT_EQ(kept.nodes.size(), 1u) << "the mixture";
  EXPECT_EQ(reason(kept, "l.sdpa"), "attention stays in high precision by default");
  EXPECT_EQ(reason(kept, "l.k_cache"), "key-value caches stay in high precision by default");
  o.attention = true;
  o.kv_cache = true;
  const Plan all = make_plan(kWeights, kNodes, o);
  EXPECT_EQ(all.nodes.size(), 5u);
  EXPECT_EQ(reason(all, "l.b2b"), "excluded by 'exclude'");
  EXPECT_THAT(test::find_node(all, "l.sdpa")->scheme.input_scale_inv,
              ElementsAre(2.0f / 448, 4.0f / 448, 8.0f / 448, 1.0f / 448));
  EXPECT_TRUE(test::find_node(all, "l.sdpa")->scheme.output_scale_inv.empty());
  EXPECT_EQ(test::find_node(all, "l.k_cache")->scheme.input_scale_inv, std::vector<float>{256.0f / 448});
}

TEST(PlanNodes, AnIdleExpertTakesTheOthersScale) {
  PlanOptions o = options(R"({"scale_method": "maxabs_pow2"})");
  (*o.measurements->modules[6].outputs)[1] = {0.0f};
  const Plan plan = make_plan(kWeights, kNodes, o);
  EXPECT_EQ(test::find_node(plan, "l.moe")->scheme.input_scale_inv, (std::vector<float>{16, 4.0f / 32, 4.0f / 32}));
  EXPECT_EQ(plan.find("l.moe.w2_list.0")->scheme.input_scale_inv, 4.0f / 32);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("no token to expert 0")));
}

TEST(PlanNodes, ATensorOfZerosHasAUsableScale) {
  PlanOptions o = options(R"({"scale_method": "maxabs_arbitrary"})");
  for (auto& m : o.measurements->modules)
    for (auto& amax : m.inputs) amax = {0.0f};
  const Plan plan = make_plan(kWeights, kNodes, o);
  EXPECT_EQ(plan.find("l.q_proj")->scheme.input_scale_inv, 1.0f);
  EXPECT_EQ(test::find_node(plan, "l.matmul_qk")->scheme.input_scale_inv, (std::vector<float>{1, 1}));
}

// Scales of key-value caches against amax / fp8_max, and what is refused instead of a made-up scale.

/// Two layers of two heads, kept aside.
PlanOptions options() {
  PlanOptions o;
  o.measurements.emplace();
  o.measurements->modules = {{"l.0.k_proj", {{3.0f}}, std::nullopt, std::nullopt}};
  for (const auto& [name, amax] : {std::pair("l.0.k_cache", measure::Amax{7.0f, 11.0f}),
                                   {"l.0.v_cache", {0.3f, 448.0f}},
                                   {"l.1.k_cache", {5e4f, 1e-3f}},
                                   {"l.1.v_cache", {2.0f, 1.0f}}})
    o.measurements->kv_cache.push_back({name, {amax}, std::nullopt, std::nullopt});
  return o;
}
const std::vector<std::string> kAttention = {"l.0", "l.1"};

TEST(PlanKv, FindsAttentionByItsProjections) {
  EXPECT_THAT(attention_modules({"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj",
                                 "model.layers.1.self_attn.v_proj", "h.0.attn.c_attn", "h.0.mlp.c_fc",
                                 "t.attention.query_key_value", "x.qkv_proj", "lm_head", "k_proj"}),
              ElementsAre("model.layers.1.self_attn", "h.0.attn", "t.attention", "x"));
}

/// What an encoder sees of a source is kept by nobody; a decoder keeps what it sees of the source.
TEST(PlanKv, EncodersBesideADecoderKeepNothing) {
  EXPECT_THAT(attention_modules({"encoder.block.0.layer.0.SelfAttention.k", "decoder.block.0.layer.0.SelfAttention.k",
                                 "decoder.block.0.layer.1.EncDecAttention.k"}),
              ElementsAre("decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"));
  EXPECT_THAT(
      attention_modules({"model.encoder.layers.0.self_attn.k_proj", "model.decoder.layers.0.encoder_attn.k_proj"}),
      ElementsAre("model.decoder.layers.0.encoder_attn"));
  EXPECT_THAT(attention_modules({"transformer.encoder.layers.0.self_attention.query_key_value"}),
              ElementsAre("transformer.encoder.layers.0.self_attention"));
}

TEST(PlanKv, OneScaleOrOnePerHead) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  auto kv = plan_kv_cache(kAttention, o, warnings);
  ASSERT_EQ(kv.size(), 2u);
  EXPECT_EQ(kv[0].attention, "l.0");
  EXPECT_EQ(kv[0].k, Floats{11.0f / 448.0f});
  EXPECT_EQ(kv[0].v, Floats{1.0f}) << "the data gives it";
  EXPECT_EQ(kv[1].k, Floats{5e4f / 448.0f});
  o.kv_scales = Granularity::head;
  o.dialect = recipes::Dialect::gaudi2;
  kv = plan_kv_cache(kAttention, o, warnings);
  EXPECT_EQ(kv[0].k, (Floats{7.0f / 240.0f, 11.0f / 240.0f}));
  EXPECT_EQ(kv[1].v, (Floats{2.0f / 240.0f, 1.0f / 240.0f}));
  EXPECT_TRUE(warnings.empty());
}

TEST(PlanKv, NothingIsMadeUp) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  EXPECT_REFUSED(plan_kv_cache({"l.0", "l.2"}, o, warnings), "'l.2.k_cache'", "every layer", "measure again");
  EXPECT_REFUSED(plan_kv_cache({}, o, warnings), "no attention module");
  o.measurements->kv_cache[2].inputs[0] = {0.0f, 0.0f};
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.1.k_cache", "only zeros");
  o = options();
  o.kv_scales = Granularity::head;
  o.measurements->kv_cache[2].inputs[0] = {0.0f, 4.0f};
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[1].k, (Floats{4.0f / 448.0f, 4.0f / 448.0f}));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("l.1.k_cache: found only zeros in head 0")));
  o.measurements->kv_cache[3].inputs[0] = {1.0f};
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.1", "2 heads of keys and 1 of values");
  o.measurements.reset();
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "no measurement of 'l.0.k_cache'");
}

TEST(PlanKv, QueriesHaveTheFirstInputOfAttention) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  EXPECT_TRUE(plan_kv_cache(kAttention, o, warnings)[0].q.empty());
  o.query_scale = true;
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.0.fused_scaled_dot_product_attention", "queries",
                 "measure again");
  for (const char* layer : {"l.0", "l.1"})
    o.measurements->modules.push_back({layer + std::string(".fused_scaled_dot_product_attention"),
                                       {{5.0f}, {11.0f}, {448.0f}},
                                       std::nullopt,
                                       std::nullopt});
  const auto kv = plan_kv_cache(kAttention, o, warnings);
  EXPECT_EQ(kv[1].q, Floats{5.0f / 448.0f});
  EXPECT_EQ(kv[0].k, Floats{11.0f / 448.0f});
  o.kv_scales = Granularity::head;
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "scale of queries", "per head");
  o.kv_scales = Granularity::tensor;
  o.measurements->modules.back().inputs[0] = {0.0f};
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.1.fused_scaled_dot_product_attention", "only zeros");
}

TEST(PlanKv, MeasurementsOfIncHaveNoHeads) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  o.measurements->modules = o.measurements->kv_cache;
  o.measurements->kv_cache.clear();
  for (auto& m : o.measurements->modules) m.inputs[0] = {56.0f};
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k, Floats{0.125f});
  o.kv_scales = Granularity::head;
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.0.k_cache", "one amax for all heads");
  o.kv_scales = Granularity::tensor;
  o.dialect = recipes::Dialect::gaudi2;
  o.config = test::quant_config(R"({"scale_method": "maxabs_pow2"})");
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k, Floats{1.0f}) << "56 / (240 * 0.25) up to a power of two";
  EXPECT_EQ(kv_numbers(o).convention, Convention::inc);
}

TEST(PlanKv, ChannelsAndThresholdsAreNoHeads) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  o.measurements->observer = "maxabs_per_channel";
  std::swap(o.measurements->modules, o.measurements->kv_cache);  // as a config's list of KVCache has them
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k, Floats{11.0f / 448.0f});
  o.kv_scales = Granularity::head;
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.0.k_cache", "one amax for each channel", "scale per head");
  std::swap(o.measurements->modules, o.measurements->kv_cache);
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k.size(), 2u) << "kept aside: of heads";
  o.measurements->observer = "save";
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "observer 'save'");
  o.measurements->observer = "percentile";
  for (auto& m : o.measurements->kv_cache) m.inputs[0] = {1.0f};
  EXPECT_REFUSED(plan_kv_cache(kAttention, o, warnings), "l.0.k_cache", "one amax for all heads");
}

TEST(PlanKv, PlansOfModelsTakeTheSameScales) {
  PlanOptions o = options();
  o.activations = ActivationScaling::static_tensor;
  o.kv_cache = true;
  o.kv_scales = Granularity::head;
  const Plan plan =
      make_plan({{"l.0.k_proj", "Linear", {8, 8}}}, {{"l.0.k_cache", "KVCache"}, {"l.0.v_cache", "KVCache"}}, o);
  EXPECT_EQ(test::find_node(plan, "l.0.k_cache")->scheme.input_scale_inv, (Floats{7.0f / 448.0f, 11.0f / 448.0f}));
  EXPECT_EQ(test::find_node(plan, "l.0.v_cache")->scheme.output_scale_inv, (Floats{0.3f / 448.0f, 1.0f}));
  EXPECT_TRUE(plan.warnings.empty());
}

}  // namespace
}  // namespace fp8::quant
