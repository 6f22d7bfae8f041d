// SPDX-License-Identifier: Apache-2.0
// A converted model in memory becomes a checkpoint folder.
#include "fp8/quant/model/save.h"

#include <fstream>

#include "fp8/quant/handlers/node_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/load.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/fp8_reference.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::hpu;
using test::same_bits;
using test::throws_with;

TEST(Save, WritesCodesScalesAndTheRest) {
  const test::TempDir dir;
  auto model = test::tiny_lm(1, at::kBFloat16);
  model->register_buffer("steps", hpu(torch::tensor({3, 4}, at::kLong)));
  convert(*model, {});
  save(*model, dir / "out", "compressed-tensors");
  const io::SafetensorsFile file(dir / "out/model.safetensors");
  const auto* codes = file.find("layer_0.q_proj.weight");
  const auto* scale = file.find("layer_0.q_proj.weight_scale");
  ASSERT_TRUE(codes != nullptr && scale != nullptr);
  EXPECT_EQ(codes->dtype, io::DType::F8_E4M3);
  EXPECT_EQ(scale->shape, (std::vector<std::int64_t>{32, 1}));
  at::Tensor bytes = torch::empty({32, 32}, at::kByte);
  file.read(*codes, bytes.data_ptr());
  EXPECT_TRUE(same_bits(bytes, test::code_bytes(model->layers[0]->q_proj->weight)));
  EXPECT_EQ(file.find("layer_0.q_proj.bias")->dtype, io::DType::BF16);
  EXPECT_EQ(file.find("embed_tokens.weight")->dtype, io::DType::BF16);
  EXPECT_EQ(file.find("steps")->dtype, io::DType::I64);
  EXPECT_EQ(file.find("layer_0.q_proj.input_scale"), nullptr);
  const auto config = io::read_json(dir / "out/config.json");
  EXPECT_EQ(config["quantization_config"]["ignore"], (io::Json::array({"lm_head", R"(re:(.*\.)?lm_head$)"})))
      << "its family is not known: under any prefix";
  EXPECT_EQ(config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"], "channel");
  EXPECT_EQ(io::read_json(dir / "out/fp8.json")["dialect"], "ocp");
}

TEST(Save, CompletesTheSourcesConfigAndCarriesItsFiles) {
  const test::TempDir dir;
  fs::create_directories(dir / "source");
  std::ofstream(dir / "source/config.json") << R"({"model_type": "tiny", "rope_theta": 10000.0})";
  std::ofstream(dir / "source/tokenizer.json") << "{}";
  std::ofstream(dir / "source/model.safetensors") << "not carried";
  auto model = test::tiny_lm();
  convert(*model, {});
  save(*model, dir / "out", "compressed-tensors", {dir / "source"});
  const auto config = io::read_json(dir / "out/config.json");
  EXPECT_EQ(config["model_type"], "tiny");
  EXPECT_TRUE(config.contains("quantization_config"));
  EXPECT_TRUE(fs::exists(dir / "out/tokenizer.json"));
  EXPECT_TRUE(throws_with({"not empty"}, [&] { save(*model, dir / "out", "compressed-tensors", {dir / "source"}); }) ||
              throws_with({"overwrite"}, [&] { save(*model, dir / "out", "compressed-tensors", {dir / "source"}); }));
  EXPECT_NO_THROW(save(*model, dir / "out", "compressed-tensors", {dir / "source", true}));
  EXPECT_TRUE(throws_with({"is the input itself"},
                          [&] { save(*model, dir / "source", "compressed-tensors", {dir / "source", true}); }));
  EXPECT_TRUE(fs::exists(dir / "source/tokenizer.json"));
}

TEST(Save, NamesWhatReadersOfTheFamilyCallModules) {
  const test::TempDir dir;
  fs::create_directories(dir / "source");
  const auto ignored = [&](const std::string& model_type, bool head) {
    std::ofstream(dir / "source/config.json") << "{\"model_type\": \"" << model_type << "\"}";
    std::vector<measure::WeightModule> modules = {
        {"model.layers.0.mlp.up_proj", "Linear", hpu(torch::randn({32, 32}).to(at::kBFloat16)), std::nullopt}};
    std::vector<std::pair<std::string, at::Tensor>> tensors = {{"model.embed_tokens.weight", torch::randn({8, 32})}};
    if (head)
      modules.push_back(
          {"language_model.lm_head", "Linear", hpu(torch::randn({8, 32}).to(at::kBFloat16)), std::nullopt});
    convert(modules, PlanOptions{});
    for (const auto& m : modules) tensors.emplace_back(m.name + ".weight", m.weight);
    save(tensors, modules, {}, dir / "out", "compressed-tensors", {dir / "source", true});
    return io::read_json(dir / "out/config.json")["quantization_config"]["ignore"].dump();
  };
  EXPECT_EQ(ignored("llama", false), R"(["lm_head"])") << "which readers make of the embedding";
  EXPECT_NE(ignored("llava", true).find("\"lm_head\""), std::string::npos)
      << "transformers moves it: " << ignored("llava", true);
}

TEST(Save, OfAModelOnTheHostIsTheSame) {
  const test::TempDir dir;
  auto model = test::tiny_lm(1, at::kBFloat16);
  convert(*model, {});
  save(*model, dir / "hpu", "compressed-tensors");
  model->to(at::kCPU);
  save(*model, dir / "host", "compressed-tensors");
  const auto bytes = [](const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_FALSE(bytes(dir / "hpu/model.safetensors").empty());
  for (const char* file : {"model.safetensors", "config.json", "fp8.json"})
    EXPECT_TRUE(bytes(dir / "hpu" / file) == bytes(dir / "host" / file)) << file;
}

TEST(Save, CodesThatNoModuleHoldsAreRefused) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  convert(*model, {});
  model->register_buffer("kept", model->layers[0]->q_proj->weight.detach().clone());
  EXPECT_TRUE(throws_with({"[save] kept", "module 'layer_0.q_proj'"},
                          [&] { save(*model, dir / "out", "compressed-tensors"); }));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

struct CachedImpl : torch::nn::Module {
  struct AttentionImpl : torch::nn::Module {
    torch::nn::Linear k_proj = register_module("k_proj", torch::nn::Linear(16, 16));
    runtime::KVCache k_cache = register_module("k_cache", runtime::KVCache()),
                     v_cache = register_module("v_cache", runtime::KVCache());
  };
  std::shared_ptr<AttentionImpl> a = register_module("a", std::make_shared<AttentionImpl>()),
                                 b = register_module("b", std::make_shared<AttentionImpl>());
};

TEST(Save, CachesAreWrittenIfAllOfThemAreInFp8) {
  const test::TempDir dir;
  auto model = std::make_shared<CachedImpl>();
  model->to(test::kHpu);
  convert(*model, {});
  NodeScheme scheme;
  scheme.kind = configs::ModuleKind::kv_cache;
  scheme.input_scale_inv = scheme.output_scale_inv = {0.5f};
  const auto nodes = measure::op_nodes(*model);
  ASSERT_EQ(nodes.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    nodes[i].slot->handler = make_node_handler(scheme);
    save(*model, dir / "out", "compressed-tensors", {.overwrite = true});
    const io::SafetensorsFile file(dir / "out/model.safetensors");
    EXPECT_EQ(file.find("a.k_scale") != nullptr || file.find("a.k_proj.k_scale") != nullptr, i == 3) << i;
    const auto skipped = io::read_json(dir / "out/fp8.json")["skipped"];
    EXPECT_EQ(skipped.empty(), i == 3);  // engines would take 1.0 for the scales of the others
    if (i == 2) {
      EXPECT_EQ(skipped["a.k_cache"],
                "only a part of the key-value caches is in fp8, a checkpoint holds scales of all or none");
    }
  }
}

TEST(Save, RefusesWhatTheFormatCannotHold) {
  const test::TempDir dir;
  const auto fails = [&](const std::vector<std::string>& words, torch::nn::Module& model) {
    EXPECT_TRUE(throws_with(words, [&] { save(model, dir / "out", "compressed-tensors"); }));
    EXPECT_TRUE(fs::is_empty(dir.path()));
  };
  auto plain = test::tiny_lm();
  fails({"[save]", "no fp8 module"}, *plain);
  EXPECT_TRUE(throws_with({"[save]", "quark is written for checkpoints of gpt_oss"},
                          [&] { save(*plain, dir / "out", "quark"); }));
  torch::nn::Sequential conv(torch::nn::Conv2d(4, 4, 1));
  conv->to(test::kHpu);
  convert(*conv, {});
  fails({"[save] 0", "Linear modules only", "Conv2d"}, *conv);
  auto embedding = test::tiny_lm();
  PlanOptions o;
  o.include = {"embed_tokens"};
  convert(*embedding, o);
  fails({"[save] embed_tokens", "Embedding"}, *embedding);
  torch::nn::Linear root(4, 4);
  root->to(test::kHpu);
  convert(*root, {});
  fails({"root"}, *root);
  auto mixed = test::tiny_lm();
  o = {};
  o.exclude = {"layer_1"};
  convert(*mixed, o);
  auto modules = measure::weight_modules(*mixed);
  modules.erase(
      std::remove_if(modules.begin(), modules.end(), [](const auto& m) { return m.name.rfind("layer_1", 0) != 0; }),
      modules.end());
  o = {};
  o.weights = WeightGranularity::tensor;
  convert(modules, o);
  fails({"one scheme", "tensor weights"}, *mixed);
  auto e5m2 = test::tiny_lm();
  o = {};
  o.config = configs::parse_quant_config(io::Json{{"scale_method", "unit_scale"}, {"fp8_config", "E5M2"}}, "q");
  convert(*e5m2, o);
  fails({"[save]", "E5M2"}, *e5m2);
}

}  // namespace
}  // namespace fp8::quant
