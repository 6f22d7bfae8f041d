// SPDX-License-Identifier: Apache-2.0
// Each encoder against transformers, text by text: what a padded row computes is what its tokens alone compute.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/layer_stream.h"
#include "fp8/tools/models/load.h"
#include "support/temp_dir.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using testing::Fixture;

class Encoders : public testing::FixtureTest {};

TEST_P(Encoders, LogitsAreThoseOfTransformers) {
  float most = 0;
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load(attention);
    EXPECT_EQ(loaded.unused, std::vector<std::string>());
    for (const auto& run : fixture.runs) {
      for (std::int64_t row = 0; row < run.ids.size(0); ++row) {
        const auto ids = run.ids.narrow(0, row, 1).narrow(1, 0, run.lengths[static_cast<std::size_t>(row)]);
        auto logits = loaded.model->forward(ids);
        if (!run.positions.empty()) logits = logits.index_select(1, at::tensor(run.positions, at::kLong));
        const auto expected = run.logits.narrow(0, row, 1).reshape(logits.sizes());
        most = std::max(most, (logits - expected).abs().max().item<float>());
      }
    }
  }
  EXPECT_LE(most, 3e-4f);
  RecordProperty("logit_difference", testing::number_text(most));
}

TEST_P(Encoders, LayersAreStreamed) {
  const auto loaded = load();
  const auto ids = fixture.runs.back().ids;
  LayerStream stream(folder.path(), {.dtype = at::kFloat, .device = at::kCPU});
  auto h = stream.embed(ids);
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    h = stream.run_layer(i, h);
  }
  const auto head = stream.load_head();
  EXPECT_TRUE(at::equal(stream.run_head(stream.run_norm(h)), loaded.model->forward(ids)));
}

TEST_P(Encoders, ContinueNoText) { EXPECT_THROW(load().model->make_cache(8), c10::Error); }

/// The checkpoint of the model without a head has no prefix in its names.
TEST(EncoderCheckpoints, BaseModelsGiveHiddenStates) {
  Fixture fixture("bert");
  fixture.config["architectures"] = {"BertModel"};
  const test::TempDir with, without;
  fixture.write(with.path());
  fixture.write(without.path(),
                [](const std::string& name) { return name.starts_with("bert.") ? name.substr(5) : name; });
  const at::NoGradGuard no_grad;
  const auto& ids = fixture.runs.back().ids;
  // The bytes of a tensor depend on its name in the fixture, not in the file.
  const auto a = load_model(with.path()).model->forward(ids), b = load_model(without.path()).model->forward(ids);
  EXPECT_EQ(a.sizes(), (std::vector<std::int64_t>{1, ids.size(1), 64}));
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_TRUE(at::equal(a, load_model(with.path()).model->hidden(ids)));
}

TEST(EncoderCheckpoints, NormsMayHaveTensorFlowsNames) {
  const Fixture fixture("bert");
  const test::TempDir ours, theirs;
  fixture.write(ours.path());
  fixture.write(theirs.path(), [](const std::string& name) {
    const auto at = name.find("LayerNorm.");
    if (at == std::string::npos) return name;
    return name.substr(0, at + 10) + (name.ends_with("weight") ? "gamma" : "beta");
  });
  const at::NoGradGuard no_grad;
  const auto& ids = fixture.runs.back().ids;
  const auto a = load_model(ours.path()), b = load_model(theirs.path());
  EXPECT_TRUE(at::equal(a.model->forward(ids), b.model->forward(ids)));
  EXPECT_EQ(b.unused, std::vector<std::string>());
}

TEST(EncoderCheckpoints, OtherTasksAreRefused) {
  Fixture fixture("roberta");
  fixture.config["architectures"] = {"RobertaForTokenClassification"};
  const test::TempDir folder;
  fixture.write(folder.path());
  try {
    load_model(folder.path());
    FAIL();
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("key 'architectures': found [\"RobertaForTokenClassification\"], "
                                                   "allowed: a base model, or one for MaskedLM"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Encoders, ::testing::ValuesIn(testing::encoder_fixtures()), testing::test_name);

}  // namespace
}  // namespace fp8::models
