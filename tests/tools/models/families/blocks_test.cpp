// SPDX-License-Identifier: Apache-2.0
// Measuring layer by layer under a memory limit, of every family with repeated layers: decoders, encoders, models that
// answer and the language parts of larger ones. The same amax as of the whole model, and one layer's weights in memory
// at a time.
#include "fp8/tools/models/layer_stream.h"
#include "tools/models/families/answers.h"

namespace fp8::models {
namespace {

using testing::Answers;

constexpr std::int64_t kRows = 6, kInputLength = 40, kAnswerLength = 9;

class BlocksOfFamilies : public Answers {
 protected:
  void SetUp() override {
    fixture.write(folder / "model");
    const auto ids = tokens(kRows, kInputLength, 1);
    if (task() == Task::answer)
      return testing::write_pairs(folder / "ids.safetensors", ids, tokens(kRows, kAnswerLength, 2));
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, ids.sizes().vec()}});
    writer.write("input_ids", ids.contiguous().const_data_ptr());
    writer.commit();
  }
  Task task() const { return parse_config(fixture.config, "config.json").values->shape.task; }

  std::vector<std::string> command(const std::string& out, const std::vector<std::string>& more) const {
    return args("measure --model {} --data {} --batch 2 --out {} {}", path("model"), path("ids.safetensors"), path(out),
                more);
  }
  /// The least --memory-limit that is taken, as its refusal tells: "203MB".
  std::string least() const {
    const auto refused = run(command("none", {"--block-wise", "--memory-limit", "1kB"}));
    expect_failed(refused, {"one decoder layer with a batch of 2 samples"}, 2);
    const std::string allowed = "allowed: ";
    const auto begin = refused.err.find(allowed) + allowed.size();
    return refused.err.substr(begin, refused.err.find(" or more") - begin);
  }
};

TEST_P(BlocksOfFamilies, GiveTheAmaxOfTheWholeModel) {
  const auto whole = json_of(command("whole", {"--whole"}));
  const auto blocks = json_of(command("blocks", {"--block-wise", "--memory-limit", least()}));
  ASSERT_TRUE(whole.is_object() && blocks.is_object());
  EXPECT_EQ(whole["mode"], "whole");
  EXPECT_EQ(blocks["mode"], "block-wise");
  for (const char* key : {"modules", "tensors", "samples", "kv_caches", "non_finite"})
    EXPECT_EQ(blocks[key], whole[key]) << key;
  std::vector<std::string> files = {"inc_output_hooks_maxabs.json"};
  if (whole["kv_caches"] != 0) files.emplace_back("inc_output_hooks_maxabs.kv_cache");
  for (const auto& name : files) {
    const auto expected = io::read_json(folder / "whole" / name);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(io::read_json(folder / "blocks" / name), expected) << name;
  }
}

/// Placeholders are NaN: what is not is in memory.
TEST_P(BlocksOfFamilies, HoldOneLayerAtATime) {
  LayerStream stream(folder / "model", {.dtype = at::kFloat, .device = at::kCPU});
  ASSERT_GT(stream.shape().layers, 1);
  const auto& model = *stream.loaded().model;
  const auto layer_of = [&](const std::string& name) {
    if (name.ends_with(".relative_attention_bias.weight")) return std::int64_t{-1};  // T5's: all layers look there
    for (std::int64_t i = 0; i < stream.shape().layers; ++i)
      if (name.starts_with(stream.layer_name(i) + ".")) return i;
    return std::int64_t{-1};
  };
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    std::int64_t bytes = 0;
    for (const auto& item : model.named_parameters()) {
      const auto nan = item.value().isnan();
      const auto own = layer_of(item.key());
      if (own == i) {
        EXPECT_FALSE(nan.any().item<bool>()) << item.key();
        bytes += item.value().numel() * 4;
      } else if (own >= 0) {
        EXPECT_TRUE(nan.all().item<bool>()) << item.key() << " beside layer " << i;
      }
    }
    const bool absent = GetParam() == "mllama" && i == 1;  // which looks at images
    EXPECT_EQ(bytes > 0, !absent);
    EXPECT_LE(bytes, stream.layer_bytes());
  }
  for (const auto& item : model.named_parameters())
    EXPECT_TRUE(layer_of(item.key()) < 0 || item.value().isnan().all().item<bool>()) << item.key();
  EXPECT_LE(stream.layer_bytes() * 3 / 2, bytes_in_memory(folder / "model", at::kFloat));
}

/// Two processes with a half of the layers each, by what goes from one to the other alone: of every family.
TEST_P(BlocksOfFamilies, RunInTwoParts) {
  const LoadOptions options = {.dtype = at::kFloat, .device = at::kCPU};
  const bool answers = task() == Task::answer;
  const std::int64_t source = answers ? kInputLength : 0;
  const auto ids =
      answers ? at::cat({tokens(2, kInputLength, 1), tokens(2, kAnswerLength, 2)}, 1) : tokens(2, kInputLength, 1);
  const auto expected =
      load_model(folder / "model", options).model->forward(ids, nullptr, CausalLM::Logits::all, source);
  LayerStream first(folder / "model", options), second(folder / "model", options);
  const auto layers = first.shape().layers, cut = layers / 2;
  const auto run = [&](LayerStream& stream, std::int64_t begin, std::int64_t end, const at::Tensor& h) {
    std::vector<Resident> resident;
    for (auto i = begin; i < end; ++i) resident.push_back(stream.load_layer(i));
    return stream.run_layers(begin, end, h, source);
  };
  const auto h = run(second, cut, layers, run(first, 0, cut, first.embed(ids, /*load=*/true, source)).clone());
  const auto head = second.load_head();
  EXPECT_TRUE(at::equal(second.run_head(second.run_norm(h, source)), expected));
}

INSTANTIATE_TEST_SUITE_P(All, BlocksOfFamilies, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

// Damage of fp8 to each family: `inspect --data` sees the inputs that `measure` sees, and `quantize --budget` writes
// checkpoints whose divergence is the one that it tells.

constexpr std::int64_t kTexts = 4, kTokens = 24;

class DamageOfFamilies : public Answers {
 protected:
  void SetUp() override {
    fixture.write(folder / "model");
    const auto ids = tokens(kTexts, kTokens, 1);
    if (parse_config(fixture.config, "config.json").values->shape.task == Task::answer)
      return testing::write_pairs(folder / "ids.safetensors", ids, tokens(kTexts, 9, 2));
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, ids.sizes().vec()}});
    writer.write("input_ids", ids.contiguous().const_data_ptr());
    writer.commit();
  }
  /// Weights that stay as they are stored: [in, out], or MXFP4.
  bool is_stored_otherwise() const { return GetParam() == "gpt2" || GetParam() == "gpt_oss-mxfp4"; }
};

TEST_P(DamageOfFamilies, InspectSeesTheInputsThatMeasureSees) {
  if (is_stored_otherwise()) return;
  ASSERT_TRUE(
      json_of(args("measure --model {} --data {} --out {}", path("model"), path("ids.safetensors"), path("stats")))
          .is_object());
  const auto nodes = io::read_json(folder / "stats" / "inc_output_hooks_maxabs.json")["Nodes"];
  const auto json = json_of(args("inspect {} --data {}", path("model"), path("ids.safetensors")));
  ASSERT_TRUE(json.is_object());
  std::size_t compared = 0;
  for (const auto& module : json["modules"]) {
    const auto name = module["name"].get<std::string>();
    if (!nodes.contains(name) || module["input"].is_null()) continue;
    ++compared;
    EXPECT_FLOAT_EQ(module["input"]["amax"].get<float>(), nodes[name]["inputs"][0][0][0].get<float>()) << name;
  }
  EXPECT_GE(compared, static_cast<std::size_t>(2 * parse_config(fixture.config, "config.json").values->shape.layers));
}

TEST_P(DamageOfFamilies, BudgetsAreKept) {
  if (is_stored_otherwise()) return;
  const auto json = json_of(args("quantize --model {} --out {} --dynamic --budget kl=0.01 --data {}", path("model"),
                                 path("out"), path("ids.safetensors")));
  ASSERT_TRUE(json.is_object());
  const auto score = json_of(
      args("evaluate --model {} --reference {} --data {}", path("out"), path("model"), path("ids.safetensors")));
  ASSERT_TRUE(score.is_object());
  const double kl = score["kl"];
  EXPECT_LE(kl, 0.01 * (1 + 1e-3));
  EXPECT_NEAR(json["budget"]["kl"].get<double>(), kl, 1e-3 * kl + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(All, DamageOfFamilies, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

}  // namespace
}  // namespace fp8::models
