// SPDX-License-Identifier: Apache-2.0
// Each model that answers a source text against transformers, row by row: what a padded row computes is what its tokens
// alone compute.
#include <ATen/Functions.h>

#include "fp8/tools/models/layer_stream.h"
#include "support/golden.h"
#include "support/throws_with.h"
#include "support/values.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

constexpr float kMostApart = 3e-4f;

float apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<float>(); }

/// [source | answer] of one row, and how many of them are the source's.
struct Columns {
  at::Tensor ids;
  std::int64_t source;
};
Columns columns_of(const FixtureRun& run, std::int64_t row) {
  const auto source = run.lengths[static_cast<std::size_t>(row)];
  return {at::cat({run.ids.narrow(0, row, 1).narrow(1, 0, source), run.answers.narrow(0, row, 1)}, 1), source};
}

class Seq2Seq : public testing::FixtureTest {};

TEST_P(Seq2Seq, LogitsAreThoseOfTransformers) {
  float most = 0;
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load(attention);
    EXPECT_EQ(loaded.unused, std::vector<std::string>());
    for (const auto& run : fixture.runs)
      for (std::int64_t row = 0; row < run.ids.size(0); ++row) {
        const auto [ids, source] = columns_of(run, row);
        const auto logits = loaded.model->forward(ids, nullptr, CausalLM::Logits::all, source);
        EXPECT_EQ(logits.size(1), run.answers.size(1));
        const auto found = logits.index_select(1, at::tensor(run.positions, at::kLong));
        most = std::max(most, apart(found, run.logits.narrow(0, row, 1)));
      }
  }
  EXPECT_LE(most, kMostApart);
  RecordProperty("logit_difference", testing::number_text(most));
}

TEST_P(Seq2Seq, RowsOfABatchAreAsEachAlone) {
  const auto loaded = load();
  const auto& run = fixture.runs.front();
  const auto source = run.ids.size(1);
  const auto all = loaded.model->forward(at::cat({run.ids, run.answers}, 1), nullptr, CausalLM::Logits::all, source);
  for (std::int64_t row = 0; row < 2; ++row) {  // those without padding
    const auto alone = columns_of(run, row);
    const auto one = loaded.model->forward(alone.ids, nullptr, CausalLM::Logits::all, alone.source);
    EXPECT_LE(apart(all.narrow(0, row, 1), one), kMostApart);
  }
}

TEST_P(Seq2Seq, TheCacheGoesOnFromWhatItHolds) {
  const auto loaded = load();
  for (const auto& run : fixture.runs) {
    const auto [ids, source] = columns_of(run, 0);
    const auto whole = loaded.model->forward(ids, nullptr, CausalLM::Logits::all, source);
    const auto length = ids.size(1) - source;
    const auto cache = loaded.model->make_cache(length);
    std::vector<at::Tensor> parts;
    for (std::int64_t i = 0; i < length;) {  // the source and some at once, then one by one
      const auto count = std::min(length - i, i == 0 ? length / 2 : i == length / 2 ? 3 : 1);
      const auto part = i == 0 ? ids.narrow(1, 0, source + count) : ids.narrow(1, source + i, count);
      parts.push_back(loaded.model->forward(part, cache.get(), CausalLM::Logits::all, i == 0 ? source : 0));
      i += count;
    }
    EXPECT_EQ(cache->length(), length);
    EXPECT_LE(apart(at::cat(parts, 1), whole), kMostApart);
  }
}

/// Sources of other lengths: no token sees the padding in front of a shorter one.
TEST_P(Seq2Seq, JoinedSequencesAreAsEachAlone) {
  const auto loaded = load();
  const auto& run = fixture.runs.back();
  const std::vector<std::int64_t> sources = {run.ids.size(1), 5, 19};
  const auto answer = run.answers;
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<Cache*> each;
  const auto columns = [&](std::int64_t source, std::int64_t tokens) {
    return at::cat({run.ids.narrow(1, 0, source), answer.narrow(1, 0, tokens)}, 1);
  };
  for (const auto source : sources) {
    caches.push_back(loaded.model->make_cache(1));
    loaded.model->forward(columns(source, 1), caches.back().get(), CausalLM::Logits::last, source);
    each.push_back(caches.back().get());
  }
  const auto all = loaded.model->join(each, 8);
  ASSERT_NE(all, nullptr);
  std::vector<std::size_t> left = {0, 1, 2};
  for (std::int64_t step = 1; step < 6; ++step) {
    if (step == 3) all->keep({1, 2}), left = {1, 2};
    const auto logits =
        loaded.model->forward(answer.narrow(1, step, 1).expand({static_cast<std::int64_t>(left.size()), 1}), all.get());
    for (std::size_t i = 0; i < left.size(); ++i) {
      const auto source = sources[left[i]];
      const auto alone = loaded.model->forward(columns(source, step + 1), nullptr, CausalLM::Logits::last, source);
      EXPECT_LE(apart(logits[static_cast<std::int64_t>(i)], alone[0]), kMostApart) << source << " + " << step;
    }
  }
}

TEST_P(Seq2Seq, LayersAreStreamed) {
  const auto loaded = load();
  const auto [ids, source] = columns_of(fixture.runs.front(), 2);
  LayerStream stream(folder.path(), {.dtype = at::kFloat, .device = at::kCPU});
  auto h = stream.embed(ids, /*load=*/true, source);
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    h = stream.run_layer(i, h, source);
  }
  const auto head = stream.load_head();
  EXPECT_TRUE(at::equal(stream.run_head(stream.run_norm(h, source)),
                        loaded.model->forward(ids, nullptr, CausalLM::Logits::all, source)));
}

TEST_P(Seq2Seq, AnswersNeedASource) {
  const auto loaded = load();
  const auto ids = fixture.runs.front().ids;
  EXPECT_THROW(loaded.model->forward(ids), c10::Error);
  const auto cache = loaded.model->make_cache(8);
  EXPECT_THROW(loaded.model->forward(ids, cache.get()), c10::Error);
  EXPECT_THROW(loaded.model->forward(ids, nullptr, CausalLM::Logits::all, ids.size(1) + 1), c10::Error);
}

TEST_P(Seq2Seq, NamesAreThoseOfCheckpoints) {
  const auto loaded = load();
  const bool bart = GetParam() == "bart";
  auto names = collected(loaded.model->named_modules(), [](const auto& item) { return item.key(); });
  for (const char* node : {"k_cache", "v_cache", "fused_scaled_dot_product_attention"})
    for (const std::string& attention :
         bart ? std::vector<std::string>{"model.decoder.layers.1.self_attn.", "model.decoder.layers.1.encoder_attn."}
              : std::vector<std::string>{"decoder.block.2.layer.0.SelfAttention.",
                                         "decoder.block.2.layer.1.EncDecAttention."})
      EXPECT_THAT(names, Contains(attention + node));
  EXPECT_THAT(names, Not(Contains(bart ? "model.encoder.layers.0.self_attn.k_cache"
                                       : "encoder.block.0.layer.0.SelfAttention.k_cache")));
}

/// A T5 without a decoder, as sentence encoders have it: its hidden states are those of the whole model's source.
TEST(Seq2SeqCheckpoints, EncodersAloneGiveHiddenStates) {
  Fixture fixture("t5");
  const test::TempDir whole, alone;
  fixture.write(whole.path());
  fixture.config["architectures"] = {"T5EncoderModel"};
  fixture.write(alone.path());
  const at::NoGradGuard no_grad;
  const auto& ids = fixture.runs.back().ids;
  const auto encoder = load_model(alone.path());
  EXPECT_EQ(encoder.model->shape().task, Task::embed);
  EXPECT_TRUE(at::equal(encoder.model->forward(ids), load_model(whole.path()).model->hidden(ids)));
  EXPECT_TRUE(at::equal(encoder.model->hidden(ids), encoder.model->forward(ids)));
  EXPECT_THROW(encoder.model->make_cache(8), c10::Error);
}

/// Without a prefix in the names, and without a bias of the logits.
TEST(Seq2SeqCheckpoints, BaseModelsHaveTheirWordsForAHead) {
  Fixture fixture("bart");
  const test::TempDir with, without;
  fixture.scale(0, [](const std::string& name) { return name == "final_logits_bias"; });
  fixture.write(with.path());
  fixture.config["architectures"] = {"BartModel"};
  fixture.write(without.path(),
                [](const std::string& name) { return name.starts_with("model.") ? name.substr(6) : "another" + name; });
  const at::NoGradGuard no_grad;
  const auto [ids, source] = columns_of(fixture.runs.back(), 0);
  const auto a = load_model(with.path()), b = load_model(without.path());
  EXPECT_EQ(b.unused, std::vector<std::string>{"anotherfinal_logits_bias"});
  EXPECT_TRUE(at::equal(a.model->forward(ids, nullptr, CausalLM::Logits::all, source),
                        b.model->forward(ids, nullptr, CausalLM::Logits::all, source)));
}

/// How an error of reading `fixture` with these keys begins after the file's name.
std::string config_error(const std::string& name, const io::Json& keys) {
  auto config = Fixture(name).config;
  config.merge_patch(keys);
  return error_of<io::Error>([&] { parse_config(config, "config.json"); });
}

TEST(Seq2SeqConfigs, WhatIsNotComputedIsRefused) {
  const auto error = [](const std::string& text) {  // "t5 {...}": the fixture and its keys
    const auto name = text.substr(0, text.find(' '));
    return config_error(name, io::parse_json(text.substr(name.size()), "keys"));
  };
  EXPECT_GOLDEN(error(text));
  EXPECT_EQ(config_error("bart", io::Json::object()), "");
}

TEST(Seq2SeqConfigs, CheckpointsMustHaveWhatTheyPromise) {
  const auto message_of = [](const std::string& name, const io::Json& keys) -> std::string {
    Fixture fixture(name);
    fixture.config.merge_patch(keys);
    const test::TempDir folder;
    fixture.write(folder.path());
    return error_of<io::Error>([&] { load_model(folder.path()); });
  };
  EXPECT_THAT(
      message_of("t5", {{"num_decoder_layers", 4}}),
      HasSubstr(
          "tensor 'decoder.block.3.layer.0.SelfAttention.o.weight' is missing (config.json: layers of the decoder 4)"));
  EXPECT_THAT(message_of("t5", {{"feed_forward_proj", "gated-gelu"}}),
              HasSubstr("tensor 'encoder.block.0.layer.1.DenseReluDense.wi_0.weight' is missing"));
  EXPECT_THAT(
      message_of("bart", {{"max_position_embeddings", 65}}),
      HasSubstr("tensor 'model.encoder.embed_positions.weight': found shape [66, 64], config.json asks for [67, 64]"));
}

/// Copies of the word table may be there, other tables not.
TEST(Seq2SeqConfigs, ThereIsOneTableOfWords) {
  const auto fixture_with = [](double amplitude) {
    Fixture fixture("bart");
    fixture.put("model.shared.weight", {{"shape", {48, 64}}, {"mean", 0.5}, {"amplitude", 0}});
    fixture.put("model.encoder.embed_tokens.weight", {{"shape", {48, 64}}, {"mean", 0.5}, {"amplitude", amplitude}});
    return fixture;
  };
  const test::TempDir same, other;
  fixture_with(0).write(same.path());
  EXPECT_EQ(load_model(same.path()).unused, std::vector<std::string>{"model.encoder.embed_tokens.weight"});
  fixture_with(1).write(other.path());
  EXPECT_REFUSED(load_model(other.path()),
                 "tensor 'model.encoder.embed_tokens.weight': found another than "
                 "'model.shared.weight', allowed: one table of words for encoder and decoder");
}

/// bos_token_id stands in for decoder_start_token_id; generation_config.json goes first.
TEST(Seq2SeqConfigs, AnswersBeginAsConfigsSay) {
  auto config = Fixture("bart").config;
  EXPECT_EQ(parse_config(config, "config.json").values->shape.start, 2);
  EXPECT_EQ(parse_config(config, "config.json").values->shape.forced_first, std::nullopt);
  config.erase("decoder_start_token_id");
  config["forced_bos_token_id"] = 7;
  EXPECT_EQ(parse_config(config, "config.json").values->shape.start, 0);
  EXPECT_EQ(parse_config(config, "config.json").values->shape.forced_first, 7);
}

INSTANTIATE_TEST_SUITE_P(All, Seq2Seq, ::testing::ValuesIn(testing::seq2seq_fixtures()), testing::test_name);

}  // namespace
}  // namespace fp8::models
