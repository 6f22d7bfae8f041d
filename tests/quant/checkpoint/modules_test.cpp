// SPDX-License-Identifier: Apache-2.0
// What the modules of a checkpoint are taken for: rows, evidence, names, sizes and places, and what the caller decides.
// Then whole checkpoints of unknown families.
#include "fp8/quant/checkpoint/modules.h"

#include "fp8/quant/forms/ignore_list.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/golden.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using io::Json;

struct Model {
  test::TempDir dir;
  test::NamedTensors tensors;
  Json config = {{"model_type", "llama"}};
  ModuleChoice choice;

  void weight(const std::string& name, std::vector<std::int64_t> shape, at::ScalarType type = at::kBFloat16) {
    tensors.emplace_back(name + ".weight", torch::randn(shape).to(type));
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in) {
    weight(name, {out, in});
    tensors.emplace_back(name + ".bias", torch::randn({out}).to(at::kBFloat16));
  }
  void write() const {
    test::write_tensors(dir / "in", tensors);
    test::write_text(dir / "in/config.json", config.dump());
  }
  CheckpointModules modules() const {
    write();
    return CheckpointModules(io::Checkpoint(dir / "in"), config, choice);
  }
  Role role(const std::string& name) const {
    const CheckpointModules all = modules();
    const auto* found = all.find(name);
    if (found == nullptr) throw std::invalid_argument("no module " + name);
    return found->role;
  }
};

TEST(CheckpointModules, NamesOfMostFamilies) {
  Model m;
  m.weight("model.embed_tokens", {40, 16});
  m.weight("model.layers.0.mlp.gate", {4, 16});
  m.weight("model.layers.0.mlp.gate_proj", {32, 16});
  m.weight("model.visual.blocks.0.attn.qkv", {48, 16});
  m.weight("lm_head", {40, 16});
  EXPECT_EQ(m.role("model.embed_tokens"), Role::embedding);
  EXPECT_EQ(m.role("model.layers.0.mlp.gate"), Role::router);
  EXPECT_EQ(m.role("model.layers.0.mlp.gate_proj"), Role::linear);
  EXPECT_EQ(m.role("model.visual.blocks.0.attn.qkv"), Role::tower);
  EXPECT_EQ(m.role("lm_head"), Role::head);
  m.choice.towers = true;
  EXPECT_EQ(m.role("model.visual.blocks.0.attn.qkv"), Role::linear);
}

TEST(CheckpointModules, SizeSpeaksWithPlaceOnly) {
  Model m{.config = {{"model_type", "odd"},
                     {"vocab_size", 40},
                     {"max_position_embeddings", 32},
                     {"text_config", {{"type_vocab_size", 6}}}}};
  m.weight("enc.words", {40, 16});
  m.weight("enc.places", {34, 16});  // two rows of padding
  m.weight("enc.kinds", {6, 16});
  m.weight("enc.layers.0.down", {32, 16});  // rows as many as positions, by chance
  m.linear("enc.pool", 34, 16);
  m.linear("enc.out", 40, 16);
  for (const char* table : {"enc.words", "enc.places", "enc.kinds"}) EXPECT_EQ(m.role(table), Role::embedding) << table;
  EXPECT_EQ(m.role("enc.layers.0.down"), Role::linear);
  EXPECT_EQ(m.role("enc.pool"), Role::linear);
  EXPECT_EQ(m.role("enc.out"), Role::head);
}

TEST(CheckpointModules, Evidence) {
  Model m{.config = {{"model_type", "odd"}}};
  m.linear("enc.embedding_projection", 16, 8);
  m.linear("enc.patch_embedding", 16, 8);  // a table has no bias
  m.weight("enc.char_embedding", {16, 8});
  m.weight("h.0.mlp.up", {8, 32});
  m.tensors.emplace_back("h.0.mlp.up.bias", torch::randn({32}).to(at::kBFloat16));
  m.tensors.emplace_back("enc.attn.in_proj_weight", torch::randn({24, 8}).to(at::kBFloat16));
  m.weight("enc.attn.out_proj", {8, 8});
  m.weight("enc.layers.0.gain", {1, 8});
  m.weight("enc.layers.0.q_norm", {4, 8});
  EXPECT_EQ(m.role("enc.embedding_projection"), Role::linear);
  EXPECT_EQ(m.role("enc.patch_embedding"), Role::linear);
  EXPECT_EQ(m.role("enc.char_embedding"), Role::embedding);
  EXPECT_EQ(m.role("h.0.mlp.up"), Role::transposed);
  EXPECT_EQ(m.role("enc.attn.out_proj"), Role::cut);
  EXPECT_EQ(m.role("enc.layers.0.gain"), Role::other);
  EXPECT_NE(m.role("enc.layers.0.q_norm"), Role::linear);
}

TEST(CheckpointModules, TheCallerKnowsBetter) {
  Model m{.config = {{"model_type", "odd"}, {"vocab_size", 40}}};
  m.weight("a.words", {40, 16});
  m.weight("a.layers.0.table", {16, 16});
  m.choice.linear = {"words"};
  m.choice.keep = {R"(layers\.\d+\.table$)"};
  EXPECT_EQ(m.role("a.words"), Role::linear);
  EXPECT_EQ(m.role("a.layers.0.table"), Role::other);
  EXPECT_TRUE(m.modules().find("a.layers.0.table")->final);
  m.choice.keep = {"words"};
  EXPECT_EQ(m.role("a.words"), Role::other);  // keeping wins
  m.choice.keep = {"("};
  EXPECT_REFUSED(m.modules(), "'keep'", "(");
}

TEST(CheckpointModules, HeadsThatReadersBuildOfEmbeddings) {
  const auto heads = [](const std::string& line) {  // "TYPE EMBEDDING", and what tie_word_embeddings is
    std::istringstream words(line);
    std::string type, embedding, tie, names;
    words >> type >> embedding >> tie;
    Model m{.config = {{"model_type", type}}};
    if (!tie.empty()) m.config["tie_word_embeddings"] = tie == "true";
    m.weight(embedding, {40, 16});
    const CheckpointModules modules = m.modules();
    for (const auto& module : modules.all())
      if (module.tied) names += (names.empty() ? "" : ", ") + module.name;
    return names;
  };
  EXPECT_GOLDEN(heads(text));
}

TEST(CheckpointModules, ATowerAloneIsTheModel) {
  Model m{.config = {{"model_type", "clip_vision_model"}}};
  m.linear("vision_model.encoder.layers.0.mlp.fc1", 32, 16);
  EXPECT_EQ(m.role("vision_model.encoder.layers.0.mlp.fc1"), Role::linear);
  m.linear("text_model.encoder.layers.0.mlp.fc1", 32, 16);
  EXPECT_EQ(m.role("vision_model.encoder.layers.0.mlp.fc1"), Role::tower);
}

TEST(CheckpointModules, WhatIsSplitByRowsNeedsScalesThatFit) {
  Model m{.config = {{"model_type", "gte"}}};
  const std::string name = "new.encoder.layer.0.attention.qkv_proj";
  m.weight(name, {96, 16});
  EXPECT_EQ(m.role(name), Role::linear);
  m.choice.scale_rows = 32;
  EXPECT_EQ(m.role(name), Role::linear);
  m.choice.scale_rows = 64;
  EXPECT_EQ(m.role(name), Role::cut);
  m.choice.scale_rows = 0;
  EXPECT_EQ(m.role(name), Role::cut);
  m.config["model_type"] = "dinov2";
  m.linear("encoder.layer.0.mlp.weights_in", 64, 16);
  EXPECT_REFUSED(m.modules(), "weights_in", "2 modules", "channel");
  m.choice.scale_rows = 1;
  EXPECT_EQ(m.role("encoder.layer.0.mlp.weights_in"), Role::linear);
}

TEST(CheckpointModules, WhatStandsOutsideOfTheBlocksStays) {
  Model m;
  m.config = {
      {"model_type", "glm4_moe"}, {"vocab_size", 40}, {"num_hidden_layers", 1}, {"num_nextn_predict_layers", 1}};
  m.weight("model.embed_tokens", {40, 16});
  for (const char* name : {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "model.layers.1.eh_proj",
                           "score.0", "mlp1.3", "mtp.layers.0.fc"})
    m.weight(name, {16, 16});
  EXPECT_EQ(m.role("model.layers.0.mlp.up_proj"), Role::linear);
  for (const char* outside :
       {"model.layers.1.mlp.up_proj", "model.layers.1.eh_proj", "score.0", "mlp1.3", "mtp.layers.0.fc"})
    EXPECT_EQ(m.role(outside), Role::other) << outside;
  EXPECT_THAT(m.modules().find("mlp1.3")->why, HasSubstr("outside of the language model's blocks"));
  m.choice.linear = {"mlp1"};
  EXPECT_EQ(m.role("mlp1.3"), Role::linear);
  m.choice.linear = {"mlp2"};
  EXPECT_REFUSED(m.modules(), "'linear'", "'mlp2'", "matches no module", "the nearest is");
}

TEST(CheckpointModules, HeadsOfAClassThatIsNoLanguageModel) {
  Model m{.config = {{"model_type", "odd"}, {"architectures", {"OddForTokenClassification"}}}};
  m.linear("tags", 9, 16);
  m.linear("enc.layers.0.up", 32, 16);
  EXPECT_EQ(m.role("tags"), Role::head);
  EXPECT_EQ(m.role("enc.layers.0.up"), Role::linear);
  m.config["architectures"] = {"OddForCausalLM"};
  EXPECT_EQ(m.role("tags"), Role::linear) << "the general rule of an unknown family";
}

// Whole checkpoints

/// Made-up names, several types, a tower, a shared table.
struct Strange : Model {
  Strange() {
    config = {{"model_type", "zorp"}, {"vocab_size", 48}, {"tie_word_embeddings", true}};
    weight("core.symbol_table", {48, 32});
    weight("core.ring_positions", {64, 32}, at::kFloat);
    weight("core.strata.0.mix.alpha", {32, 32});
    weight("core.strata.0.mix.beta", {32, 32}, at::kHalf);
    weight("core.strata.1.mix.alpha", {32, 32}, at::kFloat);
    weight("core.strata.1.mix.beta", {32, 32});
    weight("vision_tower.lens.0.fold", {32, 32});
    tensors.emplace_back("core.strata.0.mix.gain", torch::randn({32}).to(at::kBFloat16));
  }
};

Json ignore_of(const Model& m) { return io::read_json(m.dir / "out/config.json")["quantization_config"]["ignore"]; }

TEST(UnknownFamily, IsConvertedWithANotice) {
  Strange m;
  m.write();
  const auto report = quantize_checkpoint(m.dir / "in", m.dir / "out", {});
  const auto quantized = quantized_by(report);
  EXPECT_EQ(quantized, (std::set<std::string>{"core.strata.0.mix.alpha", "core.strata.0.mix.beta",
                                              "core.strata.1.mix.alpha", "core.strata.1.mix.beta"}));
  EXPECT_THAT(report.warnings,
              Contains(::testing::AllOf(HasSubstr("unknown family 'zorp': these 4 weights were taken for Linear"),
                                        HasSubstr("core.strata.*.mix.alpha"), HasSubstr("these 3 were not"),
                                        HasSubstr("vision_tower.lens.0.fold"))));
  EXPECT_THAT(report.guesses, Contains(Pair("core.strata.*.mix.alpha", "Linear")));
  EXPECT_THAT(report.guesses, Contains(Pair("core.symbol_table", HasSubstr("vocab_size"))));
  for (const auto& name : {"core.symbol_table", "core.ring_positions", "vision_tower.lens.0.fold"})
    EXPECT_THAT(ignore_of(m), Contains(name));
  for (const auto& name : quantized) {
    const at::Tensor scale = test::read_tensor(m.dir / "out", name + ".weight_scale"),
                     codes = test::read_tensor(m.dir / "out", name + ".weight").view(at::kFloat8_e4m3fn);
    const at::Tensor value = codes.to(at::kFloat) * scale,
                     source = test::find(m.tensors, name + ".weight").to(at::kFloat);
    EXPECT_TRUE(value.isfinite().all().item<bool>());
    EXPECT_LT((value - source).norm().item<float>() / source.norm().item<float>(), 0.04f) << name;  // E4M3 keeps 4 bits
    const IgnoreList ignored(compressed_tensors_form(), ignore_of(m));
    EXPECT_EQ(ignored.entry_for(name), nullptr) << name;
  }
}

TEST(UnknownFamily, OptionsDecide) {
  Strange m;
  m.write();
  CheckpointOptions options;
  options.modules.linear = {"symbol_table"};
  options.modules.keep = {"beta"};
  options.modules.towers = true;
  options.ignore = {"re:.*somewhere_else$"};
  const auto report = quantize_checkpoint(m.dir / "in", m.dir / "out", options);
  EXPECT_EQ(quantized_by(report), (std::set<std::string>{"core.symbol_table", "core.strata.0.mix.alpha",
                                                         "core.strata.1.mix.alpha", "vision_tower.lens.0.fold"}));
  EXPECT_THAT(ignore_of(m), Contains("re:.*somewhere_else$"));
  EXPECT_THAT(ignore_of(m), Contains("core.strata.0.mix.beta"));
  options.ignore = {"re:.*alpha"};
  options.overwrite = true;
  EXPECT_REFUSED(quantize_checkpoint(m.dir / "in", m.dir / "out", options), "re:.*alpha", "core.strata.");
}

TEST(Groups, AllInFp8OrNone) {
  Model m{.config = {{"model_type", "deepseek_v3"}}};
  const std::string attn = "model.layers.0.self_attn.";
  m.weight(attn + "q_a_proj", {256, 128});
  m.weight(attn + "kv_a_proj_with_mqa", {192, 128});  // no multiple of 128
  m.weight(attn + "q_b_proj", {256, 256});
  m.write();
  auto options = options_with({.weights = Granularity::block}, "fp8");
  const auto report = quantize_checkpoint(m.dir / "in", m.dir / "out", options);
  ASSERT_EQ(report.quantized.size(), 1u);
  EXPECT_EQ(report.quantized[0].first, attn + "q_b_proj");
  const Json kept = io::read_json(m.dir / "out/config.json")["quantization_config"]["modules_to_not_convert"];
  EXPECT_THAT(kept, ::testing::UnorderedElementsAre(attn + "q_a_proj", attn + "kv_a_proj_with_mqa"));
  options = {};
  options.overwrite = true;
  options.plan.exclude = {"kv_a_proj"};
  EXPECT_EQ(quantize_checkpoint(m.dir / "in", m.dir / "out", options).quantized.size(), 1u);
}

TEST(Heads, InFp8AreNoEmbedding) {
  Model m;
  m.config = {{"model_type", "gemma2"}, {"text_config", {{"tie_word_embeddings", true}}}};  // a class that ties
  m.weight("model.embed_tokens", {32, 16});
  m.weight("model.layers.0.mlp.up_proj", {32, 16});
  m.weight("lm_head", {32, 16});
  m.write();
  CheckpointOptions options;
  quantize_checkpoint(m.dir / "in", m.dir / "out", options);
  EXPECT_FALSE(io::read_json(m.dir / "out/config.json").contains("tie_word_embeddings"));
  options.plan.include = {"lm_head"};
  options.overwrite = true;
  quantize_checkpoint(m.dir / "in", m.dir / "out", options);
  const Json config = io::read_json(m.dir / "out/config.json");
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["text_config"]["tie_word_embeddings"], false);
}

TEST(Refusals, SayTheRightReason) {
  Model m{.config = {{"model_type", "gpt2"}}};
  m.weight("transformer.h.0.attn.c_attn", {16, 48});
  m.weight("transformer.h.0.attn.c_proj", {16, 16});
  m.write();
  EXPECT_REFUSED(quantize_checkpoint(m.dir / "in", m.dir / "out", {}), "Conv1D", "transposed", "c_attn");
  Model tied{.config = {{"model_type", "bloom"}}};
  tied.weight("transformer.word_embeddings", {32, 16});
  tied.weight("transformer.h.0.mlp.dense_h_to_4h", {64, 16});
  tied.write();
  auto options = options_with({.include = {"lm_head"}});
  EXPECT_REFUSED(quantize_checkpoint(tied.dir / "in", tied.dir / "out", options), "lm_head",
                 "transformer.word_embeddings");
  options.plan.include.clear();
  quantize_checkpoint(tied.dir / "in", tied.dir / "out", options);
  EXPECT_THAT(ignore_of(tied), Contains("lm_head"));
}

// Which containers of a checkpoint are the blocks that its config counts.

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
