// SPDX-License-Identifier: Apache-2.0
// A family of models in one file, as one is added: its config, its modules, its class with the steps of a forward, its
// row. The loader, layer streaming and the program's commands take it as they take those built in.
//
// "means" has GPT-2's frame without attention: a token sees the mean of the hidden states up to its own.
//
//   h = wte[ids] + wpe[positions];   per block: h += tanh(mix(mean of h so far));   logits = embed_out(ln_f(h))
#include <torch/torch.h>

#include "fp8/tools/commands/evaluate/scoring.h"
#include "fp8/tools/models/families/families.h"
#include "fp8/tools/models/layer_stream.h"
#include "support/in_process.h"
#include "support/throws_with.h"
#include "tools/models/fixture.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

struct MeansConfig : ModelConfig {
  void check(const io::Checkpoint& checkpoint) const override {
    require_promised(checkpoint, "h." + std::to_string(shape.layers - 1) + ".mix.weight",
                     "n_layer " + std::to_string(shape.layers));
  }
};

std::unique_ptr<ModelConfig> read_means_config(const ConfigReader& reader) {
  auto config = std::make_unique<MeansConfig>();
  config->shape.vocab = reader.integer("n_vocab", 1, 1 << 20);
  config->shape.hidden = config->shape.inner = reader.integer("n_embd", 1, 1 << 16);
  config->shape.layers = reader.integer("n_layer", 1, 1000);
  config->shape.context = reader.integer("n_ctx", 1, 1 << 20);
  return config;
}

/// The sums of the hidden states so far [B, 1, H], per block.
struct MeansCache : Cache {
  using Cache::Cache;
  std::map<std::int64_t, at::Tensor> sums;
};

struct MeansBlock : torch::nn::Module {
  explicit MeansBlock(std::int64_t width) : torch::nn::Module("MeansBlock") {
    mix = register_module("mix", make_linear(width, width, /*bias=*/true));
  }
  torch::nn::Linear mix{nullptr};
};

struct MeansModel : CausalLM {
  explicit MeansModel(const MeansConfig& config) : CausalLM("MeansModel", config.shape) {
    const auto width = config.shape.hidden;
    wte = register_module("wte", make_embedding(config.shape.vocab, width));
    wpe = register_module("wpe", make_embedding(config.shape.context, width));
    h = register_module("h", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < config.shape.layers; ++i) h->push_back(std::make_shared<MeansBlock>(width));
    ln_f = register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    for (auto& parameter : ln_f->parameters()) parameter.set_data(placeholder(parameter.sizes()));
    embed_out = register_module("embed_out", make_linear(width, config.shape.vocab, /*bias=*/true));
  }

  std::unique_ptr<Cache> make_cache(std::int64_t capacity) const override {
    return std::make_unique<MeansCache>(capacity);
  }

  Parts parts() const override {
    return {.words = wte, .before = {wpe.ptr()}, .layers = h, .after = {ln_f.ptr()}, .head = embed_out};
  }

  at::Tensor embed(const at::Tensor& words, const at::Tensor& positions, std::int64_t) override {
    return words + wpe->forward(positions.to(at::kLong).to(words.device()));
  }

  LayerFunction begin(const at::Tensor& first, Cache* cache, std::int64_t) override {
    const auto start = cache != nullptr ? cache->length() : 0, length = first.size(1);
    const auto counts = at::arange(start + 1, start + length + 1, at::kFloat).view({1, length, 1}).to(first.options());
    return [this, counts, state = dynamic_cast<MeansCache*>(cache)](std::int64_t layer, const at::Tensor& x) {
      auto sums = x.cumsum(1);
      if (state != nullptr) {
        auto& before = state->sums[layer];
        if (before.defined()) sums = sums + before;
        before = sums.narrow(1, sums.size(1) - 1, 1);
      }
      return x + h->at<MeansBlock>(static_cast<std::size_t>(layer)).mix->forward(sums / counts).tanh();
    };
  }

  at::Tensor norm(const at::Tensor& x) override { return ln_f->forward(x); }

  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
  torch::nn::Linear embed_out{nullptr};
};

std::shared_ptr<CausalLM> make_means(const ModelConfig& config) {
  return std::make_shared<MeansModel>(dynamic_cast<const MeansConfig&>(config));
}

ModelFamily means_family() { return {.model_type = "means", .read_config = read_means_config, .make = make_means}; }

// That is all. From here on: what works then.

struct MeansCheckpoint : testing::TinyCheckpoint {
  MeansCheckpoint() {
    config = {{"model_type", "means"},    {"n_vocab", 32},    {"n_embd", 16}, {"n_layer", 2}, {"n_ctx", 64},
              {"torch_dtype", "float32"}, {"eos_token_id", 2}};
    tensors.clear();
    add("wte.weight", {32, 16});
    add("wpe.weight", {64, 16});
    for (const std::string layer : {"h.0.", "h.1."}) {
      add(layer + "mix.weight", {16, 16});
      add(layer + "mix.bias", {16});
    }
    add("ln_f.weight", {16});
    add("ln_f.bias", {16});
    add("embed_out.weight", {32, 16});
    add("embed_out.bias", {32});
  }

  at::Tensor values(const std::string& name) const {
    const auto& tensor = tensors.at(name);
    return torch::tensor(tensor.values).view(tensor.shape).to(at::kDouble);
  }

  /// The formulas, in f64.
  at::Tensor logits(const at::Tensor& ids) const {
    const auto length = ids.size(1);
    auto h = values("wte.weight").index_select(0, ids.flatten()).view({ids.size(0), length, -1}) +
             values("wpe.weight").narrow(0, 0, length);
    const auto counts = at::arange(1, length + 1, at::kDouble).view({1, length, 1});
    for (const std::string layer : {"h.0.", "h.1."})
      h = h + at::tanh(at::matmul(h.cumsum(1) / counts, values(layer + "mix.weight").t()) + values(layer + "mix.bias"));
    const auto centred = h - h.mean(-1, /*keepdim=*/true);
    const auto variance = centred.square().mean(-1, /*keepdim=*/true);
    const auto n = centred / (variance + 1e-5).sqrt() * values("ln_f.weight") + values("ln_f.bias");
    return at::matmul(n, values("embed_out.weight").t()) + values("embed_out.bias");
  }
};

constexpr std::int64_t kChunks = 5, kLength = 24;

at::Tensor ids() { return (at::arange(kChunks * kLength, at::kLong) * 7 + 3).remainder(32).view({kChunks, kLength}); }

struct AddingAFamily : ::testing::Test {
  void SetUp() override {
    checkpoint.write(folder / "model");
    testing::write_ids(folder / "ids.safetensors", ids());
  }

  /// A command with the model and the ids.
  test::Run command(const std::string& name, const std::vector<std::string>& more) const {
    return test::fp8_in_process("{} --json --model {} --data {} {}", name, folder / "model", folder / "ids.safetensors",
                                more);
  }

  const at::NoGradGuard no_grad;
  const ModelRegistration means{means_family()};
  const MeansCheckpoint checkpoint;
  const test::TempDir folder;
};

TEST_F(AddingAFamily, ItsCheckpointIsLoaded) {
  const auto loaded = load_model(folder / "model");
  EXPECT_EQ(loaded.model->shape().layers, 2);
  EXPECT_THAT(loaded.model->shape().eos, ElementsAre(2));
  EXPECT_THAT(loaded.unused, ElementsAre());
  EXPECT_EQ(loaded.model->name_of(*loaded.model->parts().head), "embed_out");
  const auto logits = loaded.model->forward(ids());
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(logits.to(at::kDouble), checkpoint.logits(ids()), 1e-4, 1e-5));
  auto promising = checkpoint;
  promising.config["n_layer"] = 9;
  promising.write(folder / "promising");
  EXPECT_ERROR(io::Error, load_model(folder / "promising"),
               "tensor 'h.8.mix.weight' is missing (config.json: n_layer 9)");
}

TEST_F(AddingAFamily, ItsCacheGoesOnFromWhatItHolds) {
  const auto loaded = load_model(folder / "model");
  const auto cache = loaded.model->make_cache(kLength);
  std::vector<at::Tensor> parts;
  for (const auto& part : ids().split(5, 1)) parts.push_back(loaded.model->forward(part.contiguous(), cache.get()));
  EXPECT_EQ(cache->length(), kLength);
  EXPECT_TRUE(at::allclose(at::cat(parts, 1), loaded.model->forward(ids()), 1e-4, 1e-5));
}

TEST_F(AddingAFamily, ItIsEvaluated) {
  const auto expected = checkpoint.logits(ids());
  const auto log_p = at::log_softmax(expected.narrow(1, 0, kLength - 1), -1);
  const auto nll = -log_p.gather(2, ids().narrow(1, 1, kLength - 1).unsqueeze(2)).mean().item<double>();
  const auto loaded = load_model(folder / "model");
  double sum = 0;
  for (const auto& score : commands::score_chunks(loaded.model->forward(ids()), ids(), {})) sum += score.nll;
  EXPECT_NEAR(sum / (kChunks * (kLength - 1)), nll, 1e-5 * nll);
  for (const std::string device : {"cpu", "hpu"})
    EXPECT_NEAR(json_of(command("evaluate", {"--device", device}))["perplexity"].get<double>() / std::exp(nll), 1,
                1e-5);
}

TEST_F(AddingAFamily, ItsLayersAreStreamed) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kHPU)}) {
    LoadOptions options{.device = device};
    LayerStream stream(folder / "model", options);
    auto h = stream.embed(ids());
    for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
      const auto layer = stream.load_layer(i);
      h = stream.run_layer(i, h);
    }
    const auto whole = load_model(folder / "model", options);
    {
      const auto head = stream.load_head();
      EXPECT_TRUE(at::equal(stream.run_head(stream.run_norm(h)).cpu(), whole.model->forward(ids().to(device)).cpu()));
    }
    for (const auto& item : stream.loaded().model->named_parameters())
      EXPECT_TRUE(item.value().isnan().all().item<bool>()) << item.key();  // placeholders again
    const auto part = stream.load_head(10, 7);
    const auto expected = whole.model->parts().head->bias.narrow(0, 10, 7);
    EXPECT_TRUE(at::equal(stream.loaded().model->parts().head->bias.cpu(), expected.cpu()));
    EXPECT_EQ(stream.layer_name(1), "h.1");
  }
  EXPECT_EQ(bytes_in_memory(folder / "model", at::kFloat), weights_bytes(*load_model(folder / "model").model));
}

TEST_F(AddingAFamily, ItIsMeasuredWholeAndInBlocks) {
  for (const std::string way : {"whole", "block-wise"}) {
    EXPECT_EQ(json_of(command("measure", {"--batch", "2", "--out", (folder / way).string(), "--" + way}))["modules"],
              3);  // two blocks and the head
  }
  const auto whole = folder_bytes(folder / "whole");
  EXPECT_FALSE(whole.empty());
  EXPECT_TRUE(whole == folder_bytes(folder / "block-wise"));
}

TEST_F(AddingAFamily, WhatIsInNoLayerIsMeasuredToo) {
  std::ofstream(folder / "config.json") << R"({"mode": "MEASURE", "measure_exclude": "NONE", "dump_stats_path": "s"})";
  for (const std::string way : {"whole", "block-wise"}) {
    const auto run = command(
        "measure", {"--config", (folder / "config.json").string(), "--out", (folder / way).string(), "--" + way});
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("\"modules\":5,")) << "wpe too";
  }
  EXPECT_TRUE(folder_bytes(folder / "whole") == folder_bytes(folder / "block-wise"));
}

std::string config_error(const io::Json& config) {
  return error_of<io::Error>([&] { parse_config(config, "config.json"); });
}

TEST(ModelRegistration, ANearFamilyIsNamed) {
  EXPECT_THAT(config_error(io::Json{{"model_type", "mistrla"}}), HasSubstr("did you mean 'mistral'?"));
  EXPECT_THAT(config_error(io::Json{{"model_type", "rwkv"}}), Not(HasSubstr("did you mean")));
}

TEST(ModelRegistration, IsInForceWhileItLives) {
  const auto config = MeansCheckpoint().config;
  const std::string refused = "[models] config.json: model_type \"means\" is not supported, allowed: llama, mistral, ";
  EXPECT_THAT(config_error(config), StartsWith(refused));
  {
    const ModelRegistration means(means_family());
    EXPECT_EQ(config_error(config), "");
    EXPECT_THAT(config_error(io::Json{{"model_type", "rwkv"}}), HasSubstr(", means; "));
    EXPECT_THROW(ModelRegistration{means_family()}, std::invalid_argument);
  }
  EXPECT_THAT(config_error(config), StartsWith(refused));
}

TEST(ModelRegistration, BadRowsAreErrors) {
  auto taken = means_family(), nameless = means_family(), halved = means_family();
  taken.model_type = "llama";
  nameless.model_type = "";
  halved.make = nullptr;
  for (const auto& family : {taken, nameless, halved})
    EXPECT_THROW(ModelRegistration{family}, std::invalid_argument) << family.model_type;
}

// A family that combines known parts, as one is added: a reader, a row and a fixture. "arcee", which is not built in,
// has Llama's frame and Nemotron's MLP: down(relu(up(x))^2).

void read_arcee(const ConfigReader& reader, DecoderConfig& config) {
  families::read_llama_like(reader, config, {.sizes = {.default_context = 4096}, .eps = 1e-5, .activation = "relu2"});
  config.mlp.gated = false;
}

struct AddingARow : ::testing::Test {
  void SetUp() override { fixture.write(folder / "model"); }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  static io::Json json_of(const std::vector<std::string>& arguments) {
    return test::json_of(test::fp8_in_process("{} --json --quiet", arguments));
  }

  const at::NoGradGuard no_grad;
  const ModelRegistration row{model_family(DecoderFamily{"arcee", "Arcee", read_arcee})};
  const testing::Fixture fixture{"arcee-added"};
  const test::TempDir folder;
};

TEST_F(AddingARow, LogitsAreThoseOfTransformers) {
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load_model(folder / "model", {.dtype = at::kFloat, .attention = attention});
    EXPECT_EQ(loaded.unused, std::vector<std::string>());
    for (const auto& run : fixture.runs) {
      const auto cache = loaded.model->make_cache(run.ids.size(1));
      const auto half = run.ids.size(1) / 2;
      const auto whole = loaded.model->forward(run.ids);
      const auto logits = whole.index_select(1, at::tensor(run.positions, at::kLong));
      EXPECT_LE((logits - run.logits).abs().max().item<float>(), 3e-4f);
      loaded.model->forward(run.ids.narrow(1, 0, half), cache.get());
      const auto rest = loaded.model->forward(run.ids.narrow(1, half, run.ids.size(1) - half), cache.get());
      EXPECT_LE((rest - whole.narrow(1, half, rest.size(1))).abs().max().item<float>(), 3e-4f);
    }
  }
}

TEST_F(AddingARow, CommandsTakeIt) {
  const auto ids = (at::arange(8 * 24, at::kLong).square() * 17 + 5).remainder(45).view({8, 24}) + 3;
  testing::write_ids(folder / "ids.safetensors", ids);
  const auto measured = json_of(args("measure --model {} --data {} --seq-len 24 --block-wise --out {}", path("model"),
                                     path("ids.safetensors"), path("stats")));
  ASSERT_TRUE(measured.is_object());
  EXPECT_EQ(measured["modules"], 3 * 6 + 1);  // layers of q, k, v, o, up and down; the head
  json_of(
      args("quantize --model {} --measurements {} --kv-cache fp8 --out {}", path("model"), path("stats"), path("fp8")));
  const auto json = json_of(args("evaluate --model {} --reference {} --data {} --seq-len 24", path("fp8"),
                                 path("model"), path("ids.safetensors")));
  ASSERT_TRUE(json.is_object());
  EXPECT_GT(json["kl"].get<double>(), 0);
  EXPECT_LE(json["kl"].get<double>(), 0.1);
}

}  // namespace
}  // namespace fp8::models
