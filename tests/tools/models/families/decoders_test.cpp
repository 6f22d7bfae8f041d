// SPDX-License-Identifier: Apache-2.0
// Each family against transformers: logits of tiny checkpoints (fixture.h), whole, from a cache, in a batch, layer by
// layer, and in fp8.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/layer_stream.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"
#include "fp8/tools/models/save.h"
#include "support/temp_dir.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using testing::FixtureRun;

const bool kOneThread = (at::set_num_threads(1), true);

constexpr float kTolerance = 3e-4f;

class Families : public testing::FixtureTest {
 protected:
  /// mllama's layer 1 looks at images.
  bool is_in_absent_layer(const std::string& name) const {
    return GetParam() == "mllama" && name.find(".layers.1.") != std::string::npos;
  }
  /// Frequencies depend on how long a text is. Keys that were turned when it was shorter stay as they are.
  bool stretches_with_length(const std::set<std::string>& kinds) const {
    const io::Json rope = fixture.config.value("rope_scaling", io::Json());
    return rope.is_object() && kinds.contains(rope.value("rope_type", rope.value("type", "")));
  }
  void record(const std::string& key, double value) { RecordProperty(key, testing::number_text(value)); }
  bool trainable() const { return parse_config(fixture.config, "config.json").family.trainable; }
};

at::Tensor at_positions(const at::Tensor& logits, const FixtureRun& run) {
  return logits.cpu().to(at::kFloat).index_select(1, at::tensor(run.positions, at::kLong));
}

float difference(const at::Tensor& a, const at::Tensor& b) { return (a.cpu() - b.cpu()).abs().max().item<float>(); }

/// Of the other part of a model of text and images.
bool is_of_images(const std::string& name) {
  for (const char* part : {"vision", "visual", "multi_modal_projector", "cross_attn"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

TEST_P(Families, LogitsAreThoseOfTransformers) {
  float most = 0;
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load(attention);
    for (const auto& name : loaded.unused) EXPECT_TRUE(is_of_images(name) || is_in_absent_layer(name)) << name;
    for (const auto& run : fixture.runs)
      most = std::max(most, difference(at_positions(loaded.model->forward(run.ids), run), run.logits));
  }
  EXPECT_LE(most, kTolerance);
  record("logit_difference", most);
}

TEST_P(Families, TheCacheGoesOnFromWhatItHolds) {
  const auto loaded = load();
  for (const auto& run : fixture.runs) {
    const auto length = run.ids.size(1);
    if (stretches_with_length({"dynamic"}) && length > fixture.config["max_position_embeddings"].get<std::int64_t>())
      continue;
    const auto whole = loaded.model->forward(run.ids);
    const auto cache = loaded.model->make_cache(length);
    std::vector<at::Tensor> parts;
    for (std::int64_t i = 0; i < length;) {  // some at once, then one by one
      const auto count = i == 0 ? length / 2 : i == length / 2 ? 3 : 1;
      const auto part = run.ids.narrow(1, i, std::min(count, length - i));
      parts.push_back(loaded.model->forward(part, cache.get()));
      i += part.size(1);
    }
    EXPECT_LE(difference(at::cat(parts, 1), whole), kTolerance);
  }
}

TEST_P(Families, JoinedSequencesAreAsEachAlone) {
  const auto loaded = load();
  if (stretches_with_length({"dynamic", "longrope"})) return;  // by the longest of all, in transformers too
  const auto ids = fixture.runs.back().ids;                    // one long text, of which each sequence has a part
  const std::vector<std::int64_t> lengths = {ids.size(1) - 4, 5, 19};
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<Cache*> each;
  for (const auto length : lengths) {
    caches.push_back(loaded.model->make_cache(length));
    loaded.model->forward(ids.narrow(1, 0, length), caches.back().get());
    each.push_back(caches.back().get());
  }
  const auto all = loaded.model->join(each, ids.size(1));
  ASSERT_NE(all, nullptr);
  for (std::int64_t step = 0; step < 4; ++step) {
    std::vector<at::Tensor> next;
    for (const auto length : lengths) next.push_back(ids.narrow(1, length + step, 1));
    const auto logits = loaded.model->forward(at::cat(next), all.get());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto alone = loaded.model->forward(ids.narrow(1, 0, lengths[i] + step + 1));
      const auto row = logits.narrow(0, static_cast<std::int64_t>(i), 1).select(1, 0);
      EXPECT_LE(difference(row, alone.select(1, lengths[i] + step)), kTolerance) << lengths[i] << " + " << step;
    }
  }
}

TEST_P(Families, LayersAreStreamed) {
  const auto loaded = load();
  const auto& ids = fixture.runs.front().ids;
  LayerStream stream(folder.path(), {.dtype = at::kFloat, .device = at::kCPU});
  auto h = stream.embed(ids);
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    h = stream.run_layer(i, h);
  }
  const auto head = stream.load_head();
  EXPECT_TRUE(at::equal(stream.run_head(stream.run_norm(h)), loaded.model->forward(ids)));
}

/// d loss / d parameter of a model whose forward is that of training.
std::map<std::string, at::Tensor> gradients(CausalLM& model, const at::Tensor& ids) {
  model.train();
  for (auto& parameter : model.parameters()) parameter.set_requires_grad(true);
  const auto logits = model.forward(ids.to(model.parameters()[0].device())).to(at::kFloat);
  at::log_softmax(logits, -1).select(-1, 3).mean().backward();
  std::map<std::string, at::Tensor> found;
  for (const auto& item : model.named_parameters())
    if (item.value().grad().defined()) found[item.key()] = item.value().grad().cpu();
  return found;
}

TEST_P(Families, GradientsOnHpuAreThoseOfTheCpu) {
  if (!trainable()) return;
  const at::AutoGradMode with_gradients(true);
  const auto& ids = fixture.runs.front().ids;
  const auto on_cpu = load(), on_hpu = load(AttentionKind::fused, at::kHPU);
  const auto expected = gradients(*on_cpu.model, ids), found = gradients(*on_hpu.model, ids);
  EXPECT_EQ(found.size(), on_cpu.model->named_parameters().size());
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, gradient] : expected)
    EXPECT_LE((found.at(name) - gradient).norm().item<double>(), 1e-4 * gradient.norm().item<double>() + 1e-7) << name;
}

TEST_P(Families, WhatIsSavedIsLoaded) {
  const auto loaded = load();
  if (fixture.config.contains("quantization_config") || !trainable()) return;
  std::filesystem::create_directory(folder / "saved");
  save_model(*loaded.model, fixture.config.dump(), {}, folder / "saved", at::kFloat);
  const auto& ids = fixture.runs.front().ids;
  EXPECT_TRUE(at::equal(load_model(folder / "saved").model->forward(ids), loaded.model->forward(ids)));
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(testing::decoder_fixtures()), testing::test_name);

}  // namespace
}  // namespace fp8::models
