// SPDX-License-Identifier: Apache-2.0
// Layer by layer gives the bits of the whole model, and holds no more than it says.
#include "fp8/tools/models/layer_stream.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"
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
  std::vector<std::string> names;
  for (const auto& m : stream.embedding_modules()) names.push_back(m.name);
  for (std::int64_t i = 0; i < stream.shape().layers; ++i)
    for (const auto& m : stream.layer_modules(i)) names.push_back(m.name);
  for (const auto& m : stream.head_modules()) names.push_back(m.name);
  std::vector<std::string> expected;
  for (const auto& m : measure::weight_modules(*stream.loaded().model)) expected.push_back(m.name);
  EXPECT_EQ(names, expected);
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

}  // namespace
}  // namespace fp8::models
