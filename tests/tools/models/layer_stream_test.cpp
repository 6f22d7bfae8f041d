// SPDX-License-Identifier: Apache-2.0
// Layer by layer gives the bits of the whole model, and holds no more than it says.
#include "fp8/tools/models/layer_stream.h"

#include <torch/torch.h>

#include "fp8/quant/model/convert.h"
#include "fp8/tools/models/hidden_states.h"
#include "fp8/tools/text/dataset.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "support/values.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

using testing::TinyCheckpoint;
using testing::TinyMixtral;

at::Tensor ids() { return (at::arange(0, 42, at::kLong) * 5 + 3).remainder(32).view({3, 14}); }

/// Logits of every layer in turn.
at::Tensor streamed(LayerStream& stream) {
  auto h = stream.embed(ids());
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    h = stream.run_layer(i, h);
  }
  const auto head = stream.load_head();
  return stream.run_head(stream.run_norm(h));
}

/// Logits of two processes, each with a part of the layers.
at::Tensor in_two_parts(const std::filesystem::path& folder, const LoadOptions& options) {
  LayerStream first(folder, options), second(folder, options);
  const auto cut = first.shape().layers / 2;
  const auto load = [](LayerStream& stream, std::int64_t begin, std::int64_t end) {
    std::vector<Resident> resident;
    std::int64_t bytes = 0;
    for (; begin < end; ++begin) {
      resident.push_back(stream.load_layer(begin));
      bytes += stream.layer_bytes(begin);
    }
    EXPECT_LE(bytes, stream.layer_bytes() * static_cast<std::int64_t>(resident.size()));
    return resident;
  };
  const auto front = load(first, 0, cut), back = load(second, cut, second.shape().layers);
  const auto h = first.run_layers(0, cut, first.embed(ids()));
  const auto head = second.load_head();
  EXPECT_GT(second.head_bytes(), 0);
  return second.run_head(second.run_norm(second.run_layers(cut, second.shape().layers, h.clone())));
}

template <class Checkpoint>
void expect_same_bits(const Checkpoint& checkpoint, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const test::TempDir folder;
  checkpoint.write(folder / "model");
  LayerStream stream(folder / "model", options);
  auto whole = load_model(folder / "model", options);
  const auto expected = whole.model->forward(ids().to(options.device));
  EXPECT_TRUE(at::equal(streamed(stream).cpu(), expected.cpu()));
  EXPECT_TRUE(at::equal(in_two_parts(folder / "model", options).cpu(), expected.cpu()));
  EXPECT_EQ(bytes_in_memory(folder / "model", options.dtype), weights_bytes(*whole.model));
  for (const auto& item : stream.loaded().model->named_parameters())
    EXPECT_TRUE(item.value().isnan().all().item<bool>()) << item.key();  // placeholders again
}

TEST(LayerStream, GivesTheBitsOfTheWholeModel) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kHPU)}) {
    expect_same_bits(TinyCheckpoint(), {.dtype = std::nullopt, .device = device});
    expect_same_bits(TinyMixtral(), {.dtype = std::nullopt, .device = device});
    expect_same_bits(TinyCheckpoint(), {.dtype = at::kBFloat16, .device = device, .attention = AttentionKind::eager});
  }
  TinyCheckpoint tied;
  tied.config["tie_word_embeddings"] = true;
  tied.tensors.erase("lm_head.weight");
  expect_same_bits(tied, {});
}

TEST(LayerStream, HeadInParts) {
  const at::NoGradGuard no_grad;
  const test::TempDir folder;
  TinyCheckpoint().write(folder / "model");
  LayerStream stream(folder / "model", {});
  const auto h = at::randn({2, 3, 16});
  at::Tensor expected;
  {
    const auto head = stream.load_head();
    expected = stream.run_head(stream.run_norm(h));
  }
  const auto part = stream.load_head(10, 7);
  // Sums of 16 products, in another order.
  EXPECT_TRUE(at::allclose(stream.run_head(stream.run_norm(h)), expected.narrow(-1, 10, 7), 1e-4, 1e-5));
  EXPECT_TRUE(at::equal(stream.loaded().model->parts().head->weight, stream.rows(true, 10, 7)));
  EXPECT_FALSE(at::equal(stream.rows(false, 10, 7), stream.rows(true, 10, 7)));
}

TEST(LayerStream, ModulesAreNamedFromTheRoot) {
  const test::TempDir folder;
  TinyMixtral().write(folder / "model");
  const LayerStream stream(folder / "model", {});
  auto names = collected(stream.embedding_modules(), [](const auto& m) { return m.name; });
  for (std::int64_t i = 0; i < stream.shape().layers; ++i)
    for (const auto& m : stream.layer_modules(i)) names.push_back(m.name);
  for (const auto& m : stream.head_modules()) names.push_back(m.name);
  EXPECT_EQ(names, collected(measure::weight_modules(*stream.loaded().model), [](const auto& m) { return m.name; }));
}

TEST(LayerStream, RefusesBeforeTheFirstLayerRuns) {
  const test::TempDir folder;
  TinyCheckpoint missing;
  missing.tensors.erase("model.layers.1.mlp.up_proj.weight");
  missing.write(folder / "missing");
  EXPECT_THROW(LayerStream(folder / "missing", {}), io::Error);
  TinyCheckpoint quantized;
  quantized.config["quantization_config"] = {{"quant_method", "fp8"}};
  quantized.tensors["model.layers.1.mlp.up_proj.weight_scale"] = quantized.tensors["model.norm.weight"];
  quantized.write(folder / "quantized");
  EXPECT_THROW(LayerStream(folder / "quantized", {}), io::Error);
}

// Damage of fp8 with a scale per block to real models, converted in memory: the KL divergence of the next-token
// distributions from those of the model in high precision, beside that of per-tensor scales.

at::Tensor logits_of(const std::filesystem::path& folder, const at::Tensor& ids, const quant::PlanOptions* options) {
  const torch::NoGradGuard no_grad;
  auto loaded =
      load_model(folder, {.dtype = at::kFloat, .device = at::Device(at::kHPU), .attention = AttentionKind::fused});
  if (options != nullptr) quant::convert(*loaded.model, *options);
  return at::log_softmax(loaded.model->forward(ids.to(at::kHPU)).cpu().to(at::kDouble), -1);
}

/// KL(high precision || options) in nats a token.
double kl(const std::filesystem::path& folder, const at::Tensor& ids, const at::Tensor& p,
          const quant::PlanOptions& options) {
  return (p.exp() * (p - logits_of(folder, ids, &options))).sum(-1).mean().item<double>();
}

void expect_blocks_close(const std::filesystem::path& folder, const std::filesystem::path& data) {
  const text::Tokenizer tokenizer(folder);
  const auto chunks = text::load_chunks(data, &tokenizer, {.seq_len = 256, .samples = 32});
  const at::Tensor ids = torch::tensor(chunks.ids).view({chunks.count, chunks.length});
  const at::Tensor p = logits_of(folder, ids, nullptr);
  for (const auto activations : {quant::ActivationScaling::dynamic_token, quant::ActivationScaling::none}) {
    quant::PlanOptions o{.activations = activations, .weights = recipes::Granularity::tensor};
    const double tensor = kl(folder, ids, p, o);
    EXPECT_GT(tensor, 0);
    std::string table = "tensor " + std::to_string(1e3 * tensor);
    o.weights = recipes::Granularity::block;
    for (const std::int64_t block : {128, 64, 32})
      for (const bool power_of_two : {false, true}) {
        o.block = {block, block};
        o.power_of_two = power_of_two;
        const double found = kl(folder, ids, p, o);
        table += ", " + std::to_string(block) + (power_of_two ? " e8m0 " : " ") + std::to_string(1e3 * found);
        EXPECT_GT(found, 0);
        if (!power_of_two) {
          EXPECT_LE(found, 1.1 * tensor) << block;
        }
        EXPECT_LE(found, 2 * tensor) << block;  // a power of two costs up to one bit of the range, not of the precision
      }
    ::testing::Test::RecordProperty(std::string("millinats_") + quant::name_of(activations), table);
  }
}

TEST(BlockKl, OfKjvByte) {
  expect_blocks_close(test::demo_data() / "kjv-byte-1.7M", test::demo_data() / "kjv_heldout_16k.txt");
}

TEST(BlockKl, OfStories260K) {
  FP8_NEED_TEST_DATA(data);
  expect_blocks_close(data / "models/stories260K", data / "text/ts_calib.txt");
}

// Hidden states in memory and in files behave alike, and outlive their process in a snapshot.

constexpr std::int64_t kSamples = 5, kBytes = 12;

std::vector<char> pattern(std::size_t n, int seed) {
  std::vector<char> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(static_cast<int>(i) * 7 + seed);
  return bytes;
}

struct States : ::testing::TestWithParam<bool> {
  static void fill(HiddenStates& states, int seed) {
    const auto bytes = pattern(kSamples * kBytes, seed);
    for (std::int64_t first = 0; first < kSamples; first += 2) {
      std::vector<char> old(2 * kBytes);
      const auto count = std::min<std::int64_t>(2, kSamples - first);
      if (seed > 0) states.read(first, count, old.data());
      states.write(first, count, bytes.data() + first * kBytes);
    }
    states.advance();
  }
  static std::vector<char> content(const HiddenStates& states) {
    std::vector<char> bytes(kSamples * kBytes);
    states.read(0, kSamples, bytes.data());
    return bytes;
  }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  }
  test::TempDir folder;
};

TEST_P(States, EveryLayerReadsWhatTheOneBeforeWrote) {
  {
    HiddenStates states(kSamples, kBytes, folder.path(), GetParam());
    for (int layer = 0; layer < 4; ++layer) {
      fill(states, layer);
      EXPECT_EQ(content(states), pattern(kSamples * kBytes, layer));
      EXPECT_LE(files(), GetParam() ? 0 : 1);
    }
  }
  EXPECT_EQ(files(), 0);
}

TEST_P(States, ASnapshotOutlivesTheRun) {
  io::Json saved;
  {
    HiddenStates states(kSamples, kBytes, folder.path(), GetParam());
    fill(states, 0);
    states.keep_only(states.save());
    fill(states, 1);
    saved = states.save();
    states.keep_only(saved);
    EXPECT_EQ(files(), 1);
    fill(states, 2);
  }
  EXPECT_EQ(files(), 1);
  {
    HiddenStates states(kSamples, kBytes, folder.path(), !GetParam());  // a snapshot of one kind is read by the other
    states.restore(saved);
    EXPECT_EQ(content(states), pattern(kSamples * kBytes, 1));
    fill(states, 5);
    EXPECT_EQ(content(states), pattern(kSamples * kBytes, 5));
  }
  const auto file = folder / saved.at("file").get<std::string>();
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).put('!');
  HiddenStates damaged(kSamples, kBytes, folder.path(), GetParam());
  EXPECT_THROW(damaged.restore(saved), io::Error);
  fs::resize_file(file, 10);
  EXPECT_THROW(damaged.restore(saved), io::Error);
  fs::remove(file);
  EXPECT_THROW(damaged.restore(saved), io::Error);
  for (const io::Json& bad : {io::Json(), io::Json{{"file", "../x"}, {"checksum", ""}}, io::Json{{"file", 3}}})
    EXPECT_THROW(damaged.restore(bad), io::Error);
}

INSTANTIATE_TEST_SUITE_P(MemoryAndFiles, States, ::testing::Bool());

}  // namespace
}  // namespace fp8::models
