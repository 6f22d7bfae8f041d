// SPDX-License-Identifier: Apache-2.0
// What a checkpoint lacks of what its class needs, and names that no class has.
#include <gmock/gmock.h>

#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/runtime/io/base/file.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using io::Json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Model {
  test::TempDir dir;
  Json config = {{"model_type", "qwen3"},
                 {"architectures", {"Qwen3ForCausalLM"}},
                 {"vocab_size", 32},
                 {"num_hidden_layers", 3},
                 {"tie_word_embeddings", false}};
  std::map<std::string, std::vector<std::int64_t>> shapes = {
      {"model.embed_tokens", {32, 16}}, {"lm_head", {32, 16}}, {"model.norm", {16}}};

  explicit Model(int layers = 3) {
    for (int i = 0; i < layers; ++i) {
      const std::string block = "model.layers." + std::to_string(i) + ".";
      for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"}) shapes[block + name] = {16, 16};
      shapes[block + "input_layernorm"] = {16};
    }
  }
  io::Checkpoint checkpoint() const {
    test::NamedTensors tensors;
    for (const auto& [name, shape] : shapes) tensors.emplace_back(name + ".weight", at::ones(shape, at::kBFloat16));
    test::write_tensors(dir / "in", tensors);
    test::write_text(dir / "in/config.json", config.dump());
    return io::Checkpoint(dir / "in");
  }
  std::vector<std::string> incomplete() const {
    const auto c = checkpoint();
    return incomplete_parts(c, config, CheckpointModules(c, config));
  }
  /// The message of require_complete(), without the folder; its warning where it throws nothing.
  std::string verdict() const {
    const auto c = checkpoint();
    std::vector<std::string> warnings;
    const auto error =
        test::error_of<io::Error>([&] { warnings = require_complete(c, config, CheckpointModules(c, config)); });
    if (error.empty()) return warnings.empty() ? "" : "warning: " + warnings.front();
    return error.substr((dir / "in").string().size() + 2);
  }
};

TEST(Completeness, AWholeModelIsWhole) {
  EXPECT_THAT(Model().incomplete(), IsEmpty());
  Model tied;
  tied.config["tie_word_embeddings"] = true;
  tied.shapes.erase("lm_head");
  EXPECT_THAT(tied.incomplete(), IsEmpty());
  // Of one tensor with two names a writer may have kept the head's, which vLLM skips where the config ties.
  tied.shapes["lm_head"] = tied.shapes["model.embed_tokens"];
  tied.shapes.erase("model.embed_tokens");
  EXPECT_THAT(tied.incomplete(), ElementsAre(HasSubstr("embed_tokens.weight: missing, and the head is tied to it")));
}

TEST(Completeness, WhatIsMissing) {
  const auto without = [](const std::string& name) {
    Model m;
    EXPECT_EQ(m.shapes.erase(name), 1U);
    return m.incomplete();
  };
  EXPECT_THAT(without("model.layers.1.mlp.up_proj"),
              ElementsAre("model.layers.1.mlp.up_proj.weight: missing, 2 blocks like it have it"));
  EXPECT_THAT(without("model.layers.2.input_layernorm"), ElementsAre(HasSubstr("2.input_layernorm.weight")));
  EXPECT_THAT(without("model.norm"), ElementsAre(HasSubstr("model.norm.weight: missing")));
  EXPECT_THAT(without("lm_head"), ElementsAre(HasSubstr("lm_head.weight: missing, and not tied")));
  EXPECT_THAT(without("model.embed_tokens"), ElementsAre(HasSubstr("model.embed_tokens.weight: missing")));
  Model fewer(2);
  EXPECT_THAT(fewer.incomplete(), ElementsAre(HasSubstr("model.layers.2: missing")));
}

TEST(Completeness, WhatIsLeftOver) {
  Model more(4);
  EXPECT_THAT(more.incomplete(), ElementsAre("model.layers.3: left over, config.json counts 3 blocks"));
  more.shapes["model.layers.3.eh_proj"] = {16, 32};  // now a draft layer
  EXPECT_THAT(more.incomplete(), IsEmpty());
}

TEST(Completeness, SistersAreOfOneKind) {
  Model m(4);
  m.config["num_hidden_layers"] = 4;
  for (const char* i : {"1", "3"}) m.shapes.erase("model.layers." + std::string(i) + ".self_attn.q_proj");
  EXPECT_THAT(m.incomplete(), ElementsAre(HasSubstr("model.layers.1.self_attn.q_proj.weight: missing")));
  m.config["layer_types"] = {"full", "shared", "full", "shared"};
  EXPECT_THAT(m.incomplete(), IsEmpty());
  m.config.erase("layer_types");
  m.shapes["model.layers.1.self_attn.q_proj"] = {16, 16};
  m.shapes.erase("model.layers.2.self_attn.q_proj");
  m.config["num_kv_shared_layers"] = 2;
  EXPECT_THAT(m.incomplete(), IsEmpty());
}

TEST(Completeness, WhatTheFirstBlockAloneHas) {
  Model m(2);
  m.config["num_hidden_layers"] = 2;
  m.shapes["model.layers.0.pre_norm"] = {16};
  EXPECT_THAT(m.incomplete(), IsEmpty());
  m.shapes["model.layers.0.mlp.gate_proj"] = {16, 16};
  EXPECT_THAT(m.incomplete(), ElementsAre(HasSubstr("model.layers.1.mlp.gate_proj.weight: missing with 1 more")));
}

TEST(Completeness, ATypeThatSaysNothingOfTying) {
  for (const auto& [type, whole] : {std::pair("qwen3", false), std::pair("gemma2", true)}) {
    Model m;
    m.config["model_type"] = type;
    m.config.erase("tie_word_embeddings");
    m.shapes.erase("lm_head");
    EXPECT_EQ(m.incomplete().empty(), whole) << type;
  }
}

TEST(Completeness, NamesThatNoClassHas) {
  for (const auto& [part, name, said] :
       {std::tuple("_orig_mod", "_orig_mod.model.norm", "_orig_mod.state_dict()"),
        std::tuple("_fsdp_wrapped_module", "model.layers.0._fsdp_wrapped_module.mlp.up_proj", "full state dict"),
        std::tuple("_checkpoint_wrapped_module", "model._checkpoint_wrapped_module.norm", "state dict"),
        std::tuple("base_layer", "model.layers.0.q_proj.base_layer", "merge_and_unload()"),
        std::tuple("lora_A", "model.layers.0.q_proj.lora_A.default", "merge_and_unload()")}) {
    Model m;
    m.shapes[name] = {16};
    EXPECT_THAT(m.verdict(), HasSubstr(std::string("'") + part + "'"));
    EXPECT_THAT(m.verdict(), HasSubstr(said));
  }
  Model parallel;
  auto shapes = std::move(parallel.shapes);
  for (const auto& [name, shape] : shapes) parallel.shapes["module." + name] = shape;
  EXPECT_THAT(parallel.verdict(), HasSubstr("save model.module.state_dict()"));
}

TEST(Completeness, AnUnknownFamilyIsWarnedOf) {
  Model m;
  m.config["model_type"] = "nobody_knows";
  m.shapes.erase("model.layers.1.mlp.up_proj");
  EXPECT_THAT(m.verdict(), HasSubstr("warning: model.layers.1.mlp.up_proj.weight: missing"));
}

}  // namespace
}  // namespace fp8::quant
