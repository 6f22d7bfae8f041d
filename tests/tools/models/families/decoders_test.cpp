// SPDX-License-Identifier: Apache-2.0
// Each family against transformers: logits of tiny checkpoints (fixture.h), whole, from a cache, in a batch, layer by
// layer, and in fp8.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/layer_stream.h"
#include "fp8/tools/models/save.h"
#include "support/throws_with.h"
#include "support/values.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

const bool kOneThread = (at::set_num_threads(1), true);

constexpr float kTolerance = 3e-4f;

struct Families : testing::FixtureTest {
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

/// Logits of every layer in turn.
at::Tensor streamed(const std::filesystem::path& folder, const at::Tensor& ids) {
  LayerStream stream(folder, {.dtype = at::kFloat, .device = at::kCPU});
  auto h = stream.embed(ids);
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    h = stream.run_layer(i, h);
  }
  const auto head = stream.load_head();
  return stream.run_head(stream.run_norm(h));
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
    auto next = collected(lengths, [&](const auto length) { return ids.narrow(1, length + step, 1); });
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
  EXPECT_TRUE(at::equal(streamed(folder.path(), ids), loaded.model->forward(ids)));
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

// Each encoder against transformers, text by text: what a padded row computes is what its tokens alone compute.

class Encoders : public testing::FixtureTest {};

TEST_P(Encoders, LogitsAreThoseOfTransformers) {
  float most = 0;
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load(attention);
    EXPECT_EQ(loaded.unused, std::vector<std::string>());
    for (const auto& run : fixture.runs)
      for (std::int64_t row = 0; row < run.ids.size(0); ++row) {
        const auto ids = run.ids.narrow(0, row, 1).narrow(1, 0, run.lengths[static_cast<std::size_t>(row)]);
        auto logits = loaded.model->forward(ids);
        if (!run.positions.empty()) logits = logits.index_select(1, at::tensor(run.positions, at::kLong));
        const auto expected = run.logits.narrow(0, row, 1).reshape(logits.sizes());
        most = std::max(most, (logits - expected).abs().max().item<float>());
      }
  }
  EXPECT_LE(most, 3e-4f);
  RecordProperty("logit_difference", testing::number_text(most));
}

TEST_P(Encoders, LayersAreStreamed) {
  const auto loaded = load();
  const auto ids = fixture.runs.back().ids;
  EXPECT_TRUE(at::equal(streamed(folder.path(), ids), loaded.model->forward(ids)));
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
  EXPECT_ERROR(io::Error, load_model(folder.path()),
               "key 'architectures': found [\"RobertaForTokenClassification\"], allowed: a base "
               "model, or one for MaskedLM");
}

INSTANTIATE_TEST_SUITE_P(All, Encoders, ::testing::ValuesIn(testing::encoder_fixtures()), testing::test_name);

// Heads that are the word table and heads that are not, by tie_word_embeddings and by what a checkpoint has: as in
// transformers (heads.json, written by make_heads.py).

const io::Json& heads_json() {
  static const io::Json json = io::read_json(testing::fixture_folder().parent_path() / "heads.json");
  return json;
}

/// BART's encoder and decoder have tables of words of their own where it says false: refused.
bool is_refused(const io::Json& config) {
  return config["model_type"] == "bart" && !config.value("tie_word_embeddings", true);
}

/// Sets the key of a config and of its text part; null: leaves it out.
void set_key(io::Json& config, const io::Json& whole, const io::Json& part) {
  const auto set = [](io::Json& object, const io::Json& value) {
    object.erase("tie_word_embeddings");
    if (!value.is_null()) object["tie_word_embeddings"] = value;
  };
  set(config, whole);
  if (config.contains("text_config")) set(config["text_config"], part);
}

bool is_tied(const io::Json& config) {
  const auto parsed = parse_config(config, "config.json");
  const auto* both = dynamic_cast<const EncoderDecoderConfig*>(parsed.values.get());
  return both != nullptr ? both->decoder.tied : dynamic_cast<const DecoderConfig&>(*parsed.values).tied;
}

TEST(HeadsOfConfigs, AreTiedWhereTransformersTiesThem) {
  std::set<std::string> types;
  for (const auto& item : heads_json()["ties"]) {
    io::Json config = item["config"];
    types.insert(config["model_type"]);
    for (const auto& says : item["says"]) {
      set_key(config, says[0], says[1]);
      SCOPED_TRACE(config["model_type"].get<std::string>() + ": " + says.dump());
      if (is_refused(config))
        EXPECT_REFUSED(is_tied(config), "key 'tie_word_embeddings': found false");
      else
        EXPECT_EQ(is_tied(config), says[2].get<bool>());
    }
  }
  for (const auto& family : model_families()) EXPECT_TRUE(types.contains(family.model_type)) << family.model_type;
}

class Heads : public ::testing::TestWithParam<std::string> {};

TEST_P(Heads, LogitsAreThoseOfTransformers) {
  const auto& json = heads_json()["heads"][GetParam()];
  for (const auto& item : json["cases"]) {
    const auto &key = item[0], &has_own = item[1], &expected = item[2];
    SCOPED_TRACE(item);
    Fixture fixture(GetParam());
    set_key(fixture.config, key, key);
    for (const auto& [name, tensor] : json["own"].items())
      has_own.get<bool>() ? fixture.put(name, tensor) : fixture.leave_out(name);
    const test::TempDir folder;
    fixture.write(folder.path());
    const at::NoGradGuard no_grad;
    const auto logits = [&] {
      const auto& run = fixture.runs.back();
      const auto model = load_model(folder.path(), {.dtype = at::kFloat}).model;
      if (!run.answers.defined()) return model->forward(run.ids);
      return model->forward(at::cat({run.ids, run.answers}, 1), nullptr, CausalLM::Logits::all, run.ids.size(1));
    };
    if (expected.is_null() || is_refused(fixture.config)) {  // the first: transformers makes a head up
      EXPECT_THAT(error_of(logits),
                  HasSubstr(is_refused(fixture.config) ? "key 'tie_word_embeddings': found false, allowed: true"
                                                       : "is missing (config.json: an untied head, tie_word_"));
      continue;
    }
    const auto theirs = testing::tensor_of(json["logits"][expected.get<std::size_t>()]).to(at::kFloat);
    EXPECT_LE((logits().select(1, -1)[0].narrow(0, 0, theirs.size(0)) - theirs).abs().max().item<float>(), 3e-4f);
  }
}

std::vector<std::string> names_of_heads() {
  return collected(heads_json()["heads"].items(), [](const auto& item) { return item.key(); });
}

INSTANTIATE_TEST_SUITE_P(All, Heads, ::testing::ValuesIn(names_of_heads()), testing::test_name);

}  // namespace
}  // namespace fp8::models
