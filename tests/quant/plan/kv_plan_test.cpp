// SPDX-License-Identifier: Apache-2.0
// Scales of key-value caches against amax / fp8_max, and what is refused instead of a made-up scale.
#include "fp8/quant/plan/rules.h"
#include "quant/plan/find_node.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using test::throws_with;
using Floats = std::vector<float>;

measure::Measurement cache(const std::string& name, const measure::Amax& amax) {
  return {name, {amax}, std::nullopt, std::nullopt};
}

/// Two layers of two heads, kept aside.
PlanOptions options() {
  PlanOptions o;
  o.measurements.emplace();
  o.measurements->modules = {{"l.0.k_proj", {{3.0f}}, std::nullopt, std::nullopt}};
  o.measurements->kv_cache = {cache("l.0.k_cache", {7.0f, 11.0f}), cache("l.0.v_cache", {0.3f, 448.0f}),
                              cache("l.1.k_cache", {5e4f, 1e-3f}), cache("l.1.v_cache", {2.0f, 1.0f})};
  return o;
}
const std::vector<std::string> kAttention = {"l.0", "l.1"};

TEST(PlanKv, FindsAttentionByItsProjections) {
  EXPECT_EQ(attention_modules({"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj",
                               "model.layers.1.self_attn.v_proj", "h.0.attn.c_attn", "h.0.mlp.c_fc",
                               "t.attention.query_key_value", "x.qkv_proj", "lm_head", "k_proj"}),
            (std::vector<std::string>{"model.layers.1.self_attn", "h.0.attn", "t.attention", "x"}));
}

/// What an encoder sees of a source is kept by nobody; a decoder keeps what it sees of the source.
TEST(PlanKv, EncodersBesideADecoderKeepNothing) {
  EXPECT_EQ(
      attention_modules({"encoder.block.0.layer.0.SelfAttention.k", "decoder.block.0.layer.0.SelfAttention.k",
                         "decoder.block.0.layer.1.EncDecAttention.k"}),
      (std::vector<std::string>{"decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"}));
  EXPECT_EQ(
      attention_modules({"model.encoder.layers.0.self_attn.k_proj", "model.decoder.layers.0.encoder_attn.k_proj"}),
      std::vector<std::string>{"model.decoder.layers.0.encoder_attn"});
  EXPECT_EQ(attention_modules({"transformer.encoder.layers.0.self_attention.query_key_value"}),
            std::vector<std::string>{"transformer.encoder.layers.0.self_attention"});
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
  o.kv_scales = KvGranularity::head;
  o.dialect = recipes::Dialect::gaudi2;
  kv = plan_kv_cache(kAttention, o, warnings);
  EXPECT_EQ(kv[0].k, (Floats{7.0f / 240.0f, 11.0f / 240.0f}));
  EXPECT_EQ(kv[1].v, (Floats{2.0f / 240.0f, 1.0f / 240.0f}));
  EXPECT_TRUE(warnings.empty());
}

TEST(PlanKv, NothingIsMadeUp) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  EXPECT_TRUE(throws_with({"'l.2.k_cache'", "every layer", "measure again"},
                          [&] { plan_kv_cache({"l.0", "l.2"}, o, warnings); }));
  EXPECT_TRUE(throws_with({"no attention module"}, [&] { plan_kv_cache({}, o, warnings); }));
  o.measurements->kv_cache[2].inputs[0] = {0.0f, 0.0f};
  EXPECT_TRUE(throws_with({"l.1.k_cache", "only zeros"}, [&] { plan_kv_cache(kAttention, o, warnings); }));
  o = options();
  o.kv_scales = KvGranularity::head;
  o.measurements->kv_cache[2].inputs[0] = {0.0f, 4.0f};
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[1].k, (Floats{4.0f / 448.0f, 4.0f / 448.0f}));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("l.1.k_cache: found only zeros in head 0"), std::string::npos) << warnings[0];
  o.measurements->kv_cache[3].inputs[0] = {1.0f};
  EXPECT_TRUE(throws_with({"l.1", "2 heads of keys and 1 of values"}, [&] { plan_kv_cache(kAttention, o, warnings); }));
  o.measurements.reset();
  EXPECT_TRUE(throws_with({"no measurement of 'l.0.k_cache'"}, [&] { plan_kv_cache(kAttention, o, warnings); }));
}

TEST(PlanKv, MeasurementsOfIncHaveNoHeads) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  o.measurements->modules = o.measurements->kv_cache;
  o.measurements->kv_cache.clear();
  for (auto& m : o.measurements->modules) m.inputs[0] = {56.0f};
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k, Floats{0.125f});
  o.kv_scales = KvGranularity::head;
  EXPECT_TRUE(throws_with({"l.0.k_cache", "one amax for all heads"}, [&] { plan_kv_cache(kAttention, o, warnings); }));
  o.kv_scales = KvGranularity::tensor;
  o.dialect = recipes::Dialect::gaudi2;
  o.config = configs::parse_quant_config(io::parse_json(R"({"scale_method": "maxabs_pow2"})", "q.json"), "q.json");
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k, Floats{1.0f}) << "56 / (240 * 0.25) up to a power of two";
  EXPECT_EQ(kv_numbers(o).convention, Convention::inc);
}

TEST(PlanKv, ChannelsAndThresholdsAreNoHeads) {
  std::vector<std::string> warnings;
  PlanOptions o = options();
  o.measurements->observer = "maxabs_per_channel";
  std::swap(o.measurements->modules, o.measurements->kv_cache);  // as a config's list of KVCache has them
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k, Floats{11.0f / 448.0f});
  o.kv_scales = KvGranularity::head;
  EXPECT_TRUE(throws_with({"l.0.k_cache", "one amax for each channel", "scale per head"},
                          [&] { plan_kv_cache(kAttention, o, warnings); }));
  std::swap(o.measurements->modules, o.measurements->kv_cache);
  EXPECT_EQ(plan_kv_cache(kAttention, o, warnings)[0].k.size(), 2u) << "kept aside: of heads";
  o.measurements->observer = "save";
  EXPECT_TRUE(throws_with({"observer 'save'"}, [&] { plan_kv_cache(kAttention, o, warnings); }));
  o.measurements->observer = "percentile";
  for (auto& m : o.measurements->kv_cache) m.inputs[0] = {1.0f};
  EXPECT_TRUE(throws_with({"l.0.k_cache", "one amax for all heads"}, [&] { plan_kv_cache(kAttention, o, warnings); }));
}

TEST(PlanKv, PlansOfModelsTakeTheSameScales) {
  PlanOptions o = options();
  o.activations = ActivationScaling::static_tensor;
  o.kv_cache = true;
  o.kv_scales = KvGranularity::head;
  const Plan plan =
      make_plan({{"l.0.k_proj", "Linear", {8, 8}}}, {{"l.0.k_cache", "KVCache"}, {"l.0.v_cache", "KVCache"}}, o);
  EXPECT_EQ(test::find_node(plan, "l.0.k_cache")->scheme.input_scale_inv, (Floats{7.0f / 448.0f, 11.0f / 448.0f}));
  EXPECT_EQ(test::find_node(plan, "l.0.v_cache")->scheme.output_scale_inv, (Floats{0.3f / 448.0f, 1.0f}));
  EXPECT_TRUE(plan.warnings.empty());
}

}  // namespace
}  // namespace fp8::quant
