// SPDX-License-Identifier: Apache-2.0
// Which containers of a checkpoint are the blocks that its config counts.
#include "fp8/quant/names/model_stacks.h"

#include <gmock/gmock.h>

#include "quant/checkpoint/small_checkpoint.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using io::Json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The stacks of a file with these weights of two dimensions, [8, 8].
std::vector<std::string> stacks(const Json& config, const std::vector<std::string>& modules) {
  test::TempDir dir;
  test::NamedTensors tensors;
  for (const auto& module : modules) tensors.emplace_back(module + ".weight", at::ones({8, 8}, at::kBFloat16));
  test::write_tensors(dir / "in", tensors);
  test::write_text(dir / "in/config.json", config.dump());
  std::vector<std::string> found;
  const ModelStacks all(io::Checkpoint(dir / "in"), config, ModelNames(config));
  for (const auto& stack : all.stacks()) found.push_back(stack.before + std::to_string(stack.count));
  return found;
}

TEST(ModelStacks, OneStackByItsCount) {
  const Json config = {{"model_type", "llama"}, {"vocab_size", 8}, {"num_hidden_layers", 2}};
  EXPECT_THAT(stacks(config, {"model.embed_tokens", "model.layers.0.fc", "model.layers.1.fc"}),
              ElementsAre("model.layers.2"));
  EXPECT_THAT(stacks(config, {"model.embed_tokens", "model.layers.0.fc"}), IsEmpty()) << "one block of two";
  EXPECT_THAT(stacks(config, {"model.layers.0.fc", "model.layers.2.fc"}), IsEmpty()) << "the second is missing";
  EXPECT_THAT(stacks({{"model_type", "llama"}}, {"model.layers.0.fc"}), IsEmpty()) << "nothing is counted";
}

TEST(ModelStacks, DraftLayersAreBehindOrElsewhere) {
  Json config = {{"model_type", "glm4_moe"}, {"vocab_size", 8}, {"num_hidden_layers", 1}};
  const std::vector<std::string> behind = {"model.embed_tokens", "model.layers.0.fc", "model.layers.1.eh_proj"};
  EXPECT_THAT(stacks(config, behind), ElementsAre("model.layers.1"));
  for (const char* draft : {"model.mtp_layers.0.fc", "mtp.layers.0.fc", "model.mtp_block.0.fc"})
    EXPECT_THAT(stacks(config, {draft, "model.embed_tokens", "model.layers.0.fc"}), ElementsAre("model.layers.1"));
}

TEST(ModelStacks, WithoutWordsTheCountSpeaks) {
  const Json config = {{"model_type", "sew-d"}, {"vocab_size", 32}, {"num_hidden_layers", 2}};
  EXPECT_THAT(stacks(config, {"s.convs.0.fc", "s.convs.1.fc", "s.convs.2.fc", "s.encoder.encoder.layer.0.fc",
                              "s.encoder.encoder.layer.1.fc"}),
              ElementsAre("s.encoder.encoder.layer.2"));
}

TEST(ModelStacks, TheLanguageModelOfAComposedOne) {
  const Json config = {{"model_type", "x_chat"},
                       {"llm_config", {{"model_type", "qwen2"}, {"vocab_size", 8}, {"num_hidden_layers", 2}}},
                       {"vision_config", {{"num_hidden_layers", 2}}}};
  EXPECT_THAT(stacks(config, {"eyes.blocks.0.fc", "eyes.blocks.1.fc", "lm.model.embed_tokens", "lm.model.layers.0.fc",
                              "lm.model.layers.1.fc"}),
              ElementsAre("lm.model.layers.2"));
}

TEST(ModelStacks, AnEncoderAndADecoder) {
  const Json t5 = {{"model_type", "t5"}, {"num_layers", 2}, {"num_decoder_layers", 1}, {"is_encoder_decoder", true}};
  EXPECT_THAT(stacks(t5, {"shared", "encoder.block.0.wi", "encoder.block.1.wi", "decoder.block.0.wi"}),
              ElementsAre("encoder.block.2", "decoder.block.1"));
  EXPECT_THAT(stacks(t5, {"shared", "encoder.block.0.wi", "encoder.block.1.wi"}), IsEmpty()) << "no decoder";
  const Json bart = {{"model_type", "bart"}, {"encoder_layers", 1}, {"decoder_layers", 2}};
  EXPECT_THAT(stacks(bart, {"model.encoder.layers.0.fc1", "model.decoder.layers.0.fc1", "model.decoder.layers.1.fc1"}),
              ElementsAre("model.encoder.layers.1", "model.decoder.layers.2"));
}

TEST(ModelStacks, PartsOfNames) {
  EXPECT_TRUE(has_part("mlp.experts.3.up_proj", "experts"));
  EXPECT_TRUE(has_part("experts", "experts"));
  EXPECT_TRUE(has_part("a.mlp.experts", "mlp.experts"));
  EXPECT_FALSE(has_part("mlp.shared_experts.up_proj", "experts"));
  EXPECT_FALSE(has_part("mlp.experts_gate", "experts"));
  const auto [before, number] = block_of_name("model.layers.12.mlp.up_proj");
  EXPECT_EQ(before, "model.layers.");
  EXPECT_EQ(number, 12);
  EXPECT_EQ(block_of_name("score.2").first, "") << "a last part is no block";
}

}  // namespace
}  // namespace fp8::quant
