// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/load.h"

#include <torch/torch.h>

#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/registry.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

using Tiny = testing::TinyCheckpoint;

std::string load_error(const std::filesystem::path& folder, const LoadOptions& options = {}) {
  const std::string error = error_of<io::Error>([&] { load_model(folder, options); });
  EXPECT_THAT(error, Not(HasSubstr("\n")));
  return error;
}

std::string load_error(const Tiny& checkpoint, const LoadOptions& options = {}) {
  const test::TempDir folder;
  checkpoint.write(folder.path());
  return load_error(folder.path(), options);
}

class LoadModel : public test::InFolder {};

TEST_F(LoadModel, ParametersHoldTheValuesOfTheFile) {
  const Tiny tiny;
  tiny.write(folder.path());
  const auto loaded = load_model(folder.path());
  EXPECT_EQ(loaded.dtype, at::kFloat);
  EXPECT_THAT(loaded.unused, IsEmpty());
  EXPECT_EQ(loaded.config_json["model_type"], "llama");
  std::int64_t bytes = 0;
  for (const auto& item : loaded.model->named_parameters()) {
    const auto& expected = tiny.tensors.at(item.key());
    ASSERT_EQ(item.value().sizes(), at::IntArrayRef(expected.shape));
    EXPECT_EQ(std::memcmp(item.value().const_data_ptr(), expected.values.data(), expected.values.size() * 4), 0)
        << item.key();
    bytes += static_cast<std::int64_t>(expected.values.size()) * 4;
  }
  EXPECT_EQ(weights_bytes(*loaded.model), bytes);
}

TEST_F(LoadModel, ConvertsToTheComputeDtype) {
  const Tiny tiny;
  tiny.write(folder.path());
  const auto loaded = load_model(folder.path(), {.dtype = at::kBFloat16});
  EXPECT_EQ(loaded.dtype, at::kBFloat16);
  for (const auto& item : loaded.model->named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), at::kBFloat16);
    const auto& expected = tiny.tensors.at(item.key()).values;
    // bf16 keeps 8 bits of significand: half a unit in the last place is at most a relative 2^-8.
    const auto got = item.value().to(at::kFloat).flatten();
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_LE(std::abs(got[static_cast<std::int64_t>(i)].item<float>() - expected[i]), std::abs(expected[i]) / 256)
          << item.key();
  }
}

TEST_F(LoadModel, TheDtypeIsConfigsThenTheEmbeddings) {
  Tiny tiny;
  const test::TempDir a, b;
  tiny.config["torch_dtype"] = "bfloat16";
  tiny.write(a.path());
  EXPECT_EQ(load_model(a.path()).dtype, at::kBFloat16);
  tiny.config.erase("torch_dtype");
  tiny.write(b.path());
  EXPECT_EQ(load_model(b.path()).dtype, at::kFloat);
}

TEST_F(LoadModel, TiedModelNeedsNoHead) {
  Tiny tiny;
  tiny.config["tie_word_embeddings"] = true;
  tiny.tensors.erase("lm_head.weight");
  tiny.write(folder.path());
  const auto loaded = load_model(folder.path());
  const auto parts = loaded.model->parts();
  EXPECT_EQ(parts.head->weight.unsafeGetTensorImpl(), parts.words->weight.unsafeGetTensorImpl());
  EXPECT_EQ(parts.head->weight[1][2].item<float>(), tiny.tensors.at("model.embed_tokens.weight").values[18]);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tiny.tensors) bytes += static_cast<std::int64_t>(tensor.values.size()) * 4;
  EXPECT_EQ(weights_bytes(*loaded.model), bytes);
}

TEST_F(LoadModel, UnusedTensorsAreReportedButForDerivedOnes) {
  Tiny tiny;
  tiny.add("model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  tiny.add("model.layers.2.mlp.up_proj.weight", {24, 16});
  tiny.write(folder.path());
  EXPECT_THAT(load_model(folder.path()).unused, ElementsAre("model.layers.2.mlp.up_proj.weight"));
}

TEST_F(LoadModel, MissingTensor) {
  Tiny tiny;
  tiny.tensors.erase("model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(load_error(tiny),
              HasSubstr(": tensor 'model.layers.1.mlp.up_proj.weight' is missing, expected shape [24, 16]"));
  Tiny headless;
  headless.tensors.erase("lm_head.weight");
  EXPECT_THAT(load_error(headless), HasSubstr("tensor 'lm_head.weight' is missing"));
}

TEST_F(LoadModel, MoreLayersThanTheFileHas) {
  Tiny tiny;
  tiny.config["num_hidden_layers"] = 4096;
  EXPECT_THAT(
      load_error(tiny),
      HasSubstr("tensor 'model.layers.4095.self_attn.o_proj.weight' is missing (config.json: num_hidden_layers 4096)"));
}

TEST_F(LoadModel, WrongShape) {
  Tiny tiny;
  tiny.config["intermediate_size"] = 1 << 20;
  EXPECT_THAT(
      load_error(tiny),
      HasSubstr(
          "tensor 'model.layers.0.mlp.gate_proj.weight': found shape [24, 16], config.json asks for [1048576, 16]"));
  Tiny flat;
  flat.add("model.norm.weight", {4, 4});
  EXPECT_THAT(load_error(flat), HasSubstr("tensor 'model.norm.weight': found shape [4, 4], config.json asks for [16]"));
}

TEST_F(LoadModel, NaNAndInfinity) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Tiny tiny;
    tiny.tensors["model.layers.1.self_attn.o_proj.weight"].values.back() = bad;
    EXPECT_THAT(load_error(tiny), HasSubstr("tensor 'model.layers.1.self_attn.o_proj.weight' holds NaN or infinity"));
  }
  Tiny large;
  large.tensors["model.norm.weight"].values[3] = 1e6f;
  EXPECT_EQ(load_error(large), "");
  EXPECT_THAT(load_error(large, {.dtype = at::kHalf}), HasSubstr("tensor 'model.norm.weight' passes 65504"));
}

TEST_F(LoadModel, WeightsOfAnotherDtype) {
  Tiny().write(folder.path());
  const std::vector<std::uint8_t> codes(32 * 16, 0x38);
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : Tiny().tensors)
    entries.push_back({name, name == "model.embed_tokens.weight" ? io::DType::F8_E4M3 : io::DType::F32, tensor.shape});
  io::SafetensorsWriter writer(folder.path() / "model.safetensors", entries);
  for (const auto& [name, tensor] : Tiny().tensors)
    writer.write(name,
                 name == "model.embed_tokens.weight" ? static_cast<const void*>(codes.data()) : tensor.values.data());
  writer.commit();
  EXPECT_THAT(load_error(folder.path()),
              HasSubstr("no quantization_config that says what its codes are: found 1 weights in codes, the first is "
                        "model.embed_tokens.weight F8_E4M3 [32, 16] without scales"));
}

TEST_F(LoadModel, TruncatedFileAtEveryPart) {
  Tiny().write(folder.path());
  const auto file = folder.path() / "model.safetensors";
  const auto size = std::filesystem::file_size(file);
  for (const auto length :
       {size - 1, size / 2, std::uintmax_t{200}, std::uintmax_t{8}, std::uintmax_t{7}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(file, length);
    EXPECT_THAT(load_error(folder.path()), HasSubstr("model.safetensors")) << length;
  }
}

TEST_F(LoadModel, MissingFiles) {
  EXPECT_THAT(load_error(folder.path() / "nothing"), HasSubstr("config.json"));
  Tiny().write(folder.path());
  std::filesystem::remove(folder.path() / "model.safetensors");
  EXPECT_THAT(load_error(folder.path()), HasSubstr("model.safetensors"));
  std::ofstream(folder.path() / "config.json") << "{\"model_type\": \"llama\",";
  EXPECT_THAT(load_error(folder.path()), HasSubstr("config.json:1:"));
}

TEST(ParseConfig, KeysThatTransformersReadsForEveryFamily) {
  const auto refused = [](const char* key, const io::Json& value) {
    io::Json json = testing::TinyCheckpoint().config;
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
    json[key] = value;
    return throws_with({std::string("'") + key + "'", "allowed"}, [&] { parse_config(json, "config.json"); });
  };
  EXPECT_TRUE(refused("is_causal", false));
  EXPECT_FALSE(refused("is_causal", true));
  EXPECT_TRUE(refused("per_layer_config", {{"0", {{"hidden_act", "gelu"}}}}));
  EXPECT_FALSE(refused("per_layer_config", io::Json::object()));
  EXPECT_TRUE(refused("rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}));
  EXPECT_FALSE(refused("rope_scaling", nullptr));
}

TEST(ParseConfig, NamesOfOneSizeAgree) {
  const auto refused = [](io::Json json, const char* key, const io::Json& value) {
    json[key] = value;
    return throws_with({std::string("'") + key + "'", "beside it"}, [&] { parse_config(json, "config.json"); });
  };
  const io::Json llama = testing::TinyCheckpoint().config;
  for (const auto& [name, other] : {std::pair("hidden_size", "n_embd"), std::pair("num_hidden_layers", "n_layer"),
                                    std::pair("num_attention_heads", "n_heads")}) {
    EXPECT_TRUE(refused(llama, other, llama.at(name).get<int>() * 2)) << other;
    EXPECT_FALSE(refused(llama, other, llama.at(name))) << other;
  }
  io::Json mixtral = llama;
  mixtral.update({{"model_type", "mixtral"}, {"architectures", {"MixtralForCausalLM"}}, {"num_local_experts", 4}});
  for (const char* other : {"num_experts", "n_routed_experts"}) {
    EXPECT_TRUE(refused(mixtral, other, 3)) << other;
    EXPECT_FALSE(refused(mixtral, other, 4)) << other;
  }
  io::Json qwen = mixtral;  // as transformers 5 writes it; published files have num_experts
  qwen.update({{"model_type", "qwen3_moe"}, {"architectures", {"Qwen3MoeForCausalLM"}}, {"num_experts_per_tok", 5}});
  EXPECT_TRUE(throws_with({"num_experts_per_tok", "4"}, [&] { parse_config(qwen, "config.json"); }));
  const io::Json whole = {{"model_type", "llava"},
                          {"architectures", {"LlavaForConditionalGeneration"}},
                          {"text_config", llama},
                          {"tie_word_embeddings", false}};
  io::Json other = whole;
  other["text_config"]["is_causal"] = false;
  EXPECT_NO_THROW(parse_config(whole, "config.json"));
  EXPECT_TRUE(throws_with({"text_config", "is_causal"}, [&] { parse_config(other, "config.json"); }));
}

TEST_F(LoadModel, GenerationConfigSaysWhereToStop) {
  Tiny().write(folder.path());
  EXPECT_THAT(load_model(folder.path()).model->shape().eos, ElementsAre(2));
  std::ofstream(folder.path() / "generation_config.json") << R"({"eos_token_id": [5, 6]})";
  EXPECT_THAT(load_model(folder.path()).model->shape().eos, ElementsAre(5, 6));
}

// First weights by their statistics, and the gradients of a model on hpu against those on the CPU.

std::shared_ptr<CausalLM> fresh(std::uint64_t seed, at::Device device, bool tied = false) {
  const io::Json json = {{"model_type", "llama"},      {"vocab_size", 64},       {"hidden_size", 48},
                         {"intermediate_size", 80},    {"num_hidden_layers", 2}, {"num_attention_heads", 6},
                         {"num_key_value_heads", 2},   {"head_dim", 8},          {"max_position_embeddings", 64},
                         {"tie_word_embeddings", tied}};
  auto model = parse_config(json, "config.json").make();
  initialize(*model, 0.02, seed, device);
  return model;
}

TEST(Initialize, MatricesAreNormalNormsAreOne) {
  auto model = fresh(3, at::kCPU);
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  for (const auto& item : model->named_parameters()) {
    const auto& p = item.value();
    ASSERT_EQ(p.scalar_type(), at::kFloat);
    ASSERT_TRUE(p.requires_grad()) << item.key();
    if (p.dim() == 1) {
      EXPECT_TRUE(p.eq(1).all().item<bool>()) << item.key();
      continue;
    }
    sum += p.sum().item<double>();
    squares += p.square().sum().item<double>();
    count += p.numel();
  }
  const auto n = static_cast<double>(count);
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
}

TEST(Initialize, TheSeedDecides) {
  auto a = fresh(1, at::kCPU), b = fresh(1, at::kHPU), c = fresh(2, at::kCPU);
  const auto pa = a->named_parameters(), pb = b->named_parameters(), pc = c->named_parameters();
  for (const auto& item : pa) {
    EXPECT_TRUE(at::equal(item.value(), pb[item.key()].cpu())) << item.key();
    EXPECT_EQ(at::equal(item.value(), pc[item.key()]), item.value().dim() == 1) << item.key();
  }
}

TEST(Initialize, TiedWeightsStayOneTensor) {
  auto model = fresh(1, at::kCPU, /*tied=*/true);
  const auto parts = model->parts();
  EXPECT_TRUE(parts.head->weight.is_same(parts.words->weight));
  EXPECT_TRUE(parts.head->weight.isfinite().all().item<bool>());
}

/// d loss / d parameter of each parameter, on the CPU.
std::map<std::string, at::Tensor> gradients(at::Device device, const at::Tensor& ids, double& loss_value) {
  auto model = fresh(7, device);
  const auto input = ids.to(device);
  const auto logits = model->forward(input).to(at::kFloat);
  const auto rows = logits.slice(1, 0, -1).reshape({-1, logits.size(2)});
  const auto loss = torch::nn::functional::cross_entropy(rows, input.slice(1, 1).reshape({-1}));
  loss.backward();
  loss_value = loss.item<double>();
  std::map<std::string, at::Tensor> found;
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
    if (item.value().grad().defined()) found[item.key()] = item.value().grad().cpu();
  }
  return found;
}

TEST(Training, GradientsOnHpuAreThoseOfTheCpu) {
  const auto ids = torch::randint(0, 64, {3, 17}, at::kLong);
  double cpu_loss = 0, hpu_loss = 0;
  const auto cpu = gradients(at::kCPU, ids, cpu_loss), hpu = gradients(at::kHPU, ids, hpu_loss);
  // Near uniform at first: logits of 48 products of N(0, 0.02) with values near 1, standard deviation 0.14; the mean
  // of 48 of them 0.02.
  EXPECT_NEAR(cpu_loss, std::log(64), 0.02 * 0.02 * 48 / 2 + 5 * 0.02);
  EXPECT_NEAR(hpu_loss, cpu_loss, 1e-5);
  ASSERT_EQ(cpu.size(), hpu.size());
  for (const auto& [name, expected] : cpu) {
    const auto norm = expected.norm().item<double>();
    EXPECT_GT(norm, 0) << name;
    EXPECT_LT((hpu.at(name) - expected).norm().item<double>(), 1e-4 * norm) << name;
  }
}

}  // namespace
}  // namespace fp8::models
