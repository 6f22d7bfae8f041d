// SPDX-License-Identifier: Apache-2.0
// Options of fp8 quantize for modules, experts and towers, run as a process.
#include <set>

#include "tools/commands/quantize/ones_checkpoint.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

class QuantizeFamilies : public ::testing::Test {
 protected:
  /// Quantizes `model` with these options too; what the tool said.
  test::Run quantize(const std::string& model, const std::vector<std::string>& more) {
    return run_fp8("quantize --model {} --out {} --dynamic --overwrite {}", model, out(), more);
  }
  /// Modules whose weights are codes in the output.
  std::set<std::string> quantized() const {
    const io::Checkpoint written(out());
    std::set<std::string> modules;
    for (const auto& name : written.names()) {
      if (written.info(name).dtype == io::DType::F8_E4M3) modules.insert(name.substr(0, name.size() - 7));
    }
    return modules;
  }
  std::vector<std::string> ignored() const {
    return io::read_json(out() + "/config.json")["quantization_config"]["ignore"].get<std::vector<std::string>>();
  }
  std::string out() const { return (folder_ / "out").string(); }

  test::TempDir folder_;
};

TEST_F(QuantizeFamilies, ExpertsAreCastOneByOneOrKept) {
  const auto model = test::write_mixture(folder_ / "moe");
  const auto each = quantize(model, {"--check"});
  ASSERT_EQ(each.code, 0) << each.err;
  EXPECT_EQ(quantized().size(), 1u + 6u);
  EXPECT_THAT(quantized(), Contains("model.layers.0.mlp.experts.1.up_proj"));
  EXPECT_THAT(each.out, HasSubstr("loads"));
  const auto kept = quantize(model, {"--experts", "keep"});
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_EQ(quantized(), std::set<std::string>{"model.layers.0.self_attn.o_proj"});
  EXPECT_THAT(ignored(), Contains("model.layers.0.mlp.experts"));
  expect_failed(quantize(model, {"--experts", "some"}), {"--experts"}, 2);
}

TEST_F(QuantizeFamilies, LinearKeepAndIgnoreDecideWhereTheToolMayNotKnow) {
  const auto model = test::write_ones(
      folder_ / "own",
      {{"words.weight", {64, 32}}, {"blocks.0.mix.weight", {32, 32}}, {"blocks.0.table_embed.weight", {48, 32}}},
      R"({"model_type": "nobody_knows", "vocab_size": 64})");
  const auto plain = quantize(model, {});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("unknown family 'nobody_knows'"));
  EXPECT_EQ(quantized(), std::set<std::string>{"blocks.0.mix"}) << "the rows of words are the config's vocab_size";
  ASSERT_EQ(quantize(model, args("--linear table_embed --keep mix$")).code, 0);
  EXPECT_EQ(quantized(), std::set<std::string>{"blocks.0.table_embed"});
  ASSERT_EQ(quantize(model, {"--ignore", "re:.*never_there$"}).code, 0);
  EXPECT_THAT(ignored(), Contains("re:.*never_there$"));
  expect_failed(quantize(model, {"--ignore", "re:.*mix"}), {"readers would use its codes as values"});
}

TEST_F(QuantizeFamilies, TowersAreKeptUnlessAskedFor) {
  const auto model = test::write_ones(folder_ / "vl",
                                      {{"vision_tower.encoder.layers.0.fc1.weight", {32, 32}},
                                       {"language_model.model.layers.0.mlp.up_proj.weight", {32, 32}},
                                       {"language_model.model.embed_tokens.weight", {16, 32}}},
                                      R"({"model_type": "llava", "text_config": {"model_type": "llama"}})");
  ASSERT_EQ(quantize(model, {}).code, 0);
  EXPECT_EQ(quantized(), std::set<std::string>{"language_model.model.layers.0.mlp.up_proj"});
  EXPECT_THAT(ignored(), Contains(HasSubstr("vision_tower")));
  ASSERT_EQ(quantize(model, {"--towers", "fp8"}).code, 0);
  EXPECT_EQ(quantized().size(), 2u);
  EXPECT_THAT(ignored(), Not(Contains(HasSubstr("vision_tower"))));
}

TEST_F(QuantizeFamilies, WhatNoReaderLoadsIsRefusedWithItsRule) {
  const std::string mlp = "dinov2.encoder.layer.0.mlp.";
  const std::string config = R"({"model_type": "dinov2"})";
  expect_failed(quantize(test::write_ones(folder_ / "plain",
                                          {{mlp + "fc1.weight", {64, 32}}, {mlp + "fc2.weight", {32, 64}}}, config),
                         {}),
                {"quantizers/base.py"});
  const auto fused = test::write_ones(
      folder_ / "fused", {{mlp + "weights_in.weight", {128, 32}}, {mlp + "weights_out.weight", {32, 64}}}, config);
  ASSERT_EQ(quantize(fused, {}).code, 0);
  EXPECT_EQ(quantized().size(), 2u);
  expect_failed(quantize(fused, {"--keep", "weights_in"}), {"weights_in: transformers splits it on load"});
}

}  // namespace
}  // namespace fp8
