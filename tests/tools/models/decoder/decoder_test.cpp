// SPDX-License-Identifier: Apache-2.0
// Logits against those that transformers gave (reference.safetensors, f32), names against Hugging Face's, the cache
// against the forward without one.
#include "fp8/tools/models/decoder/decoder.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "support/throws_with.h"
#include "support/values.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

// One thread: barriers of many small matrix products cost far more than the products where other tests share the cores.
const bool kOneThread = (at::set_num_threads(1), true);

std::filesystem::path kjv() { return test::demo_data() / "kjv-byte-1.7M"; }
std::filesystem::path kjv_reference() { return test::demo_data() / "kjv-reference.safetensors"; }

at::Tensor read(const io::SafetensorsFile& file, const std::string& name) {
  const auto* info = file.find(name);
  EXPECT_NE(info, nullptr) << name;
  auto tensor = at::empty(info->shape, scalar_type_of(info->dtype, name));
  file.read(*info, tensor.mutable_data_ptr());
  return tensor;
}

void expect_reference_logits(const std::filesystem::path& folder, const std::filesystem::path& file,
                             AttentionKind attention = AttentionKind::fused) {
  c10::NoGradGuard no_grad;
  const io::SafetensorsFile reference(file);
  auto loaded = load_model(folder, {.dtype = at::kFloat, .attention = attention});
  const auto logits = loaded.model->forward(read(reference, "input_ids"));
  const auto expected = read(reference, "logits");
  ASSERT_EQ(logits.sizes(), expected.sizes());
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_LT((logits - expected).abs().max().item<float>(), 2e-4f);  // other kernels, so other orders of summation
}

DecoderAttention attention_of(CausalLM& model, std::int64_t layer) {
  return model.parts().layers->ptr(static_cast<std::size_t>(layer))->as<DecoderLayer>()->attention;
}

TEST(Llama, LogitsOfKjvByteEqualTransformers) { expect_reference_logits(kjv(), kjv_reference()); }

TEST(Llama, EagerAttentionGivesThemToo) { expect_reference_logits(kjv(), kjv_reference(), AttentionKind::eager); }

TEST(Llama, OnlyTheModulesOfTheChosenAttentionAreThere) {
  const auto names = [](AttentionKind attention) {
    auto loaded = load_model(kjv(), {.dtype = at::kFloat, .attention = attention});
    return collected(attention_of(*loaded.model, 0)->named_children(), [](const auto& child) { return child.key(); });
  };
  EXPECT_THAT(names(AttentionKind::fused), ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "k_cache", "v_cache",
                                                       "fused_scaled_dot_product_attention"));
  EXPECT_THAT(names(AttentionKind::eager), ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "k_cache", "v_cache",
                                                       "matmul_qk", "softmax", "matmul_av"));
}

TEST(Llama, ItsNodesAreThoseThatACheckpointIsSaidToHave) {
  std::vector<std::string> weights;
  std::map<std::string, std::string> found, ways;
  for (const auto way : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load_model(kjv(), {.dtype = at::kFloat, .attention = way});
    weights.clear();
    for (const auto& m : measure::weight_modules(*loaded.model)) weights.push_back(m.name);
    for (const auto& n : measure::op_nodes(*loaded.model)) {
      found[n.name] = n.type;
      auto& in = ways[n.name];
      in = in.empty() ? (way == AttentionKind::fused ? "fused" : "eager") : "";  // both
    }
  }
  std::map<std::string, std::string> said, said_ways;
  for (const auto& n : quant::attention_nodes(quant::attention_modules(weights))) {
    said[n.name] = n.type;
    said_ways[n.name] = n.way;
  }
  EXPECT_EQ(said, found);
  EXPECT_EQ(said_ways, ways);
}

/// Stores halves, so that what a reader sees tells whether the handler was asked both ways.
struct HalvingCache : runtime::ModuleHandler {
  at::ScalarType cache_dtype(at::ScalarType) const override { return at::kDouble; }
  at::Tensor store(const at::Tensor& x) override { return (x * 0.5).to(at::kDouble); }
  at::Tensor fetch(const at::Tensor& x, at::ScalarType dtype) override { return (x * 2.0).to(dtype); }
  std::string describe() const override { return "halves"; }
};

TEST(Llama, TheCacheAsksTheHandlersOfItsLayer) {
  c10::NoGradGuard no_grad;
  auto plain = load_model(kjv(), {.dtype = at::kFloat}), handled = load_model(kjv(), {.dtype = at::kFloat});
  for (std::int64_t i = 0; i < handled.model->shape().layers; ++i) {
    const auto attention = attention_of(*handled.model, i);
    attention->k_cache->slot()->handler = std::make_shared<HalvingCache>();
    attention->v_cache->slot()->handler = std::make_shared<HalvingCache>();
  }
  const auto ids = at::arange(12, at::kLong).unsqueeze(0);
  KVCache a(16), b(16), filled(16);
  for (const auto& part : ids.split(4, 1))
    EXPECT_TRUE(at::equal(plain.model->forward(part, &a), handled.model->forward(part, &b)));
  plain.model->forward(ids, &filled);
  EXPECT_THROW(handled.model->forward(ids.narrow(1, 0, 1), &filled), c10::Error);  // filled before there was a handler
}

TEST(Llama, LogitsOfStories260KEqualTransformers) {
  FP8_NEED_TEST_DATA(data);
  expect_reference_logits(data / "models/stories260K", data / "models/stories260K/reference.safetensors");
}

TEST(Llama, Bf16StaysCloseToTheReference) {
  c10::NoGradGuard no_grad;
  const io::SafetensorsFile reference(kjv_reference());
  auto loaded = load_model(kjv());
  EXPECT_EQ(loaded.dtype, at::kBFloat16);
  const auto logits = loaded.model->forward(read(reference, "input_ids"));
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  // KL(f32 || bf16) of this model is about 1e-4 nats a token; wrong casts or angles in bf16 give ten times that.
  const auto p = at::log_softmax(read(reference, "logits").to(at::kDouble), -1);
  const auto q = at::log_softmax(logits.to(at::kDouble), -1);
  const auto kl = (p.exp() * (p - q)).sum(-1).mean().item<double>();
  EXPECT_GT(kl, 0);
  EXPECT_LT(kl, 3e-4);
}

/// Modules without a weight have optimum-habana's names.
TEST(Llama, NamesAreHuggingFaces) {
  const auto model = parse_config(testing::TinyCheckpoint().config, "config.json").make();
  std::set<std::string> parameters, modules;
  for (const auto& item : model->named_parameters()) parameters.insert(item.key());
  for (const auto& item : model->named_modules("", false)) modules.insert(item.key());
  std::set<std::string> expected;
  for (const auto& [name, tensor] : testing::TinyCheckpoint().tensors) expected.insert(name);
  EXPECT_EQ(parameters, expected);
  std::set<std::string> expected_modules = {"model",      "model.embed_tokens", "model.layers",
                                            "model.norm", "model.rotary_emb",   "lm_head"};
  for (const char* layer : {"model.layers.0", "model.layers.1"}) {
    expected_modules.insert(layer);
    for (const char* name :
         {"self_attn", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "self_attn.k_cache", "self_attn.v_cache", "self_attn.fused_scaled_dot_product_attention", "mlp",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"})
      expected_modules.insert(std::string(layer) + "." + name);
  }
  EXPECT_EQ(modules, expected_modules);
}

TEST(Llama, FreshModelHasShapesButNoMemory) {
  auto json = testing::TinyCheckpoint().config;
  json["vocab_size"] = 1 << 24;
  json["hidden_size"] = 1 << 20;  // 64 TiB of embeddings
  json["num_attention_heads"] = 1 << 10;
  const auto model = parse_config(json, "config.json").make();
  const auto weight = model->parts().head->weight;
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({1 << 24, 1 << 20}));
  EXPECT_TRUE(std::isnan(weight[3][5].item<float>()));
}

TEST(Llama, TiedEmbeddingsAreOneTensor) {
  auto json = testing::TinyCheckpoint().config;
  json["tie_word_embeddings"] = true;
  const auto model = parse_config(json, "config.json").make();
  const auto parts = model->parts();
  EXPECT_TRUE(parts.head->weight.is_same(parts.words->weight));
  EXPECT_TRUE(model->named_parameters()["lm_head.weight"].is_same(parts.head->weight));
  model->to(at::kBFloat16);
  EXPECT_TRUE(parts.head->weight.is_same(parts.words->weight));
  model->untie_head();
  EXPECT_FALSE(parts.head->weight.is_same(parts.words->weight));
  EXPECT_TRUE(model->named_parameters()["lm_head.weight"].is_same(parts.head->weight));
}

TEST(Llama, BiasesAreThereWhenAskedFor) {
  auto json = testing::TinyCheckpoint().config;
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  const auto model = parse_config(json, "config.json").make();
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["model.layers.1.self_attn.k_proj.bias"].sizes(), at::IntArrayRef({8}));
  EXPECT_EQ(parameters["model.layers.1.mlp.gate_proj.bias"].sizes(), at::IntArrayRef({24}));
  EXPECT_FALSE(parameters.contains("lm_head.bias"));
}

class LlamaCache : public ::testing::TestWithParam<std::tuple<int, AttentionKind>> {};

TEST_P(LlamaCache, GivesTheLogitsOfTheForwardWithoutIt) {
  c10::NoGradGuard no_grad;
  const auto [step, attention] = GetParam();
  auto loaded = load_model(kjv(), {.dtype = at::kFloat, .attention = attention});
  const io::SafetensorsFile reference(kjv_reference());
  const auto ids = read(reference, "input_ids");
  const auto expected = read(reference, "logits");
  const auto cache = loaded.model->make_cache(64);
  for (int start = 0; start < 64; start += step) {
    const auto length = std::min(step, 64 - start);
    const auto logits = loaded.model->forward(ids.narrow(1, start, length).contiguous(), cache.get());
    EXPECT_EQ(cache->length(), start + length);
    EXPECT_LT((logits - expected.narrow(1, start, length)).abs().max().item<float>(), 2e-4f) << start;
  }
  EXPECT_THROW(loaded.model->forward(ids.narrow(1, 0, 1), cache.get()), c10::Error);  // full
}

INSTANTIATE_TEST_SUITE_P(Steps, LlamaCache,
                         ::testing::Combine(::testing::Values(1, 7, 64),
                                            ::testing::Values(AttentionKind::fused, AttentionKind::eager)));

class LlamaJoined : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(LlamaJoined, GoesOnAsEachByItself) {
  c10::NoGradGuard no_grad;
  auto loaded = load_model(kjv(), {.dtype = at::kFloat, .attention = GetParam()});
  auto& model = *loaded.model;
  const std::vector<std::int64_t> lengths = {5, 1, 90, 17};
  const auto ids = at::randint(0, 256, {4, 100}, at::kLong);
  std::vector<std::unique_ptr<Cache>> alone, prompts;
  std::vector<Cache*> parts;
  for (std::int64_t i = 0; i < 4; ++i) {
    for (auto* caches : {&alone, &prompts}) {
      caches->push_back(model.make_cache(120));
      model.forward(ids.narrow(0, i, 1).narrow(1, 0, lengths[static_cast<std::size_t>(i)]), caches->back().get());
    }
    parts.push_back(prompts.back().get());
  }
  const auto joined = model.join(parts, 100);
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->length(), 90);
  EXPECT_EQ(joined->starts(), (std::vector<std::int64_t>{85, 89, 0, 73}));
  std::vector<std::int64_t> rows = {0, 1, 2, 3};
  const auto step = [&](std::int64_t tokens) {
    std::vector<at::Tensor> input, expected;
    for (const auto i : rows) {
      input.push_back(at::randint(0, 256, {1, tokens}, at::kLong));
      expected.push_back(model.forward(input.back(), alone[static_cast<std::size_t>(i)].get()));
    }
    const auto logits = model.forward(at::cat(input), joined.get());
    EXPECT_LT((logits - at::cat(expected)).abs().max().item<float>(), 2e-4f) << tokens << " " << rows.size();
  };
  step(1);
  step(1);
  step(3);  // several at once
  joined->keep({3, 1});
  rows = {3, 1};
  EXPECT_EQ(joined->starts(), (std::vector<std::int64_t>{73, 89}));
  step(1);
  joined->keep({1});
  rows = {1};
  step(1);
  EXPECT_EQ(joined->length(), 97);
  EXPECT_THROW(joined->keep({1}), c10::Error);
  EXPECT_THROW(model.join({joined.get()}, 100), c10::Error);  // joined already
  EXPECT_THROW(model.join(parts, 89), c10::Error);
  EXPECT_THROW(prompts[0]->keep({0}), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LlamaJoined, ::testing::Values(AttentionKind::fused, AttentionKind::eager));

at::Tensor frequencies_of(const io::Json& json) {
  const auto config = parse_config(json, "c");
  return rotary_frequencies(dynamic_cast<const DecoderConfig&>(*config.values).ropes.at(0), 1);
}

/// f_i as the formulas of the header say, in double.
double frequency(double theta, int i, int dim) { return std::pow(theta, -2.0 * i / dim); }

TEST(Llama, RotaryFrequencies) {
  auto json = testing::TinyCheckpoint().config;
  json["head_dim"] = 64;
  json["rope_theta"] = 500000.0;
  const auto plain = frequencies_of(json);
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  const auto linear = frequencies_of(json);
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  const auto llama3 = frequencies_of(json);
  ASSERT_EQ(plain.sizes(), at::IntArrayRef({32}));
  int kept = 0, between = 0, stretched = 0;
  for (int i = 0; i < 32; ++i) {
    const double f = frequency(500000.0, i, 64), wavelength = 2 * M_PI / f;
    EXPECT_NEAR(plain[i].item<float>() / f, 1, 1e-6);
    EXPECT_NEAR(linear[i].item<float>() / (f / 4), 1, 1e-6);
    double expected = f;
    if (wavelength < 8192.0 / 4) {
      ++kept;
    } else if (wavelength > 8192.0) {
      expected = f / 8;
      ++stretched;
    } else {
      const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * f / 8 + smooth * f;
      ++between;
    }
    EXPECT_NEAR(llama3[i].item<float>() / expected, 1, 1e-5) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(stretched, 0);
}

TEST(Llama, PositionsOfJoinedSequencesAreTheirOwn) {
  c10::NoGradGuard no_grad;
  const test::TempDir folder;
  testing::TinyCheckpoint().write(folder.path());
  auto loaded = load_model(folder.path());  // 64 positions
  const auto longest = loaded.model->make_cache(64), shorter = loaded.model->make_cache(64);
  loaded.model->forward(at::zeros({1, 63}, at::kLong), longest.get());
  loaded.model->forward(at::zeros({1, 10}, at::kLong), shorter.get());
  const auto joined = loaded.model->join({longest.get(), shorter.get()}, 80);
  EXPECT_NO_THROW(loaded.model->forward(at::zeros({2, 1}, at::kLong), joined.get()));
  EXPECT_THROW(loaded.model->forward(at::zeros({2, 1}, at::kLong), joined.get()), c10::Error);  // the first has 64
  EXPECT_THROW(loaded.model->forward(at::zeros({1, 1}, at::kLong), joined.get()), c10::Error);  // they are two
  joined->keep({1});
  EXPECT_NO_THROW(loaded.model->forward(at::zeros({1, 1}, at::kLong), joined.get()));
}

TEST(Llama, TheLastPositionsLogitsAlone) {
  c10::NoGradGuard no_grad;
  auto loaded = load_model(kjv(), {.dtype = at::kFloat});
  const auto ids = at::arange(60, at::kLong).view({3, 20});
  const auto all = loaded.model->forward(ids), last = loaded.model->forward(ids, nullptr, CausalLM::Logits::last);
  EXPECT_EQ(last.sizes(), (std::vector<std::int64_t>{3, 1, 256}));
  EXPECT_LT((last - all.narrow(1, 19, 1)).abs().max().item<float>(), 1e-4f);
}

TEST(Llama, RefusesIdsOfAnotherKindAndTooManyPositions) {
  c10::NoGradGuard no_grad;
  const test::TempDir folder;
  testing::TinyCheckpoint().write(folder.path());
  auto loaded = load_model(folder.path());
  EXPECT_THROW(loaded.model->forward(at::zeros({3}, at::kLong)), c10::Error);
  EXPECT_THROW(loaded.model->forward(at::zeros({1, 3}, at::kInt)), c10::Error);
  EXPECT_THROW(loaded.model->forward(at::zeros({1, 0}, at::kLong)), c10::Error);
  EXPECT_NO_THROW(loaded.model->forward(at::zeros({1, 64}, at::kLong)));
  EXPECT_ERROR(c10::Error, loaded.model->forward(at::zeros({1, 65}, at::kLong)),
               "65 positions, but max_position_embeddings is 64");
}

}  // namespace
}  // namespace fp8::models
