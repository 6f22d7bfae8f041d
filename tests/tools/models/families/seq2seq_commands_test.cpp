// SPDX-License-Identifier: Apache-2.0
// Models that answer a source text through the commands: measure -> quantize -> evaluate, static, dynamic, weights
// alone and with keys and values in fp8. What is found is recorded as properties (make_table.py).
#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/models/decoder/decoder.h"
#include "tools/models/families/answers.h"

namespace fp8::models {
namespace {

using testing::Answers;
using testing::write_pairs;

constexpr std::int64_t kPairs = 16, kSource = 24, kAnswer = 16;
constexpr double kMostStatic = 2e-2, kMostWithCache = 6e-2;  // the largest mean KL

at::Tensor read_logits(const std::filesystem::path& path) {
  const io::SafetensorsFile file(path);
  const auto* info = file.find("logits");
  auto values = at::empty(info->shape, at::kFloat);
  file.read(*info, values.mutable_data_ptr());
  return values;
}

/// The model that commands quantize: see FamiliesInFp8.
class AnswersInFp8 : public Answers {
 protected:
  void SetUp() override {
    const auto parsed = parse_config(fixture.config, "config.json");
    const auto& config = dynamic_cast<const EncoderDecoderConfig&>(*parsed.values);
    const auto& names = config.decoder.names;
    // T5 adds to its words thrice a layer and norms no sum: what it adds is an eighth, to words as large as others'.
    const bool sums = config.decoder.norm_sums;
    fixture.scale(sums ? 0.25 : 0.125, [&](const std::string& tensor) {
      const auto leaf = leaf_of(parent_of(tensor));
      return leaf == names.out || leaf == names.down;
    });
    if (!sums) fixture.scale(4, [&](const std::string& tensor) { return tensor == names.words + ".weight"; });
    write_pairs(folder / "calibration.safetensors", tokens(kPairs, kSource, 1), tokens(kPairs, kAnswer, 2));
    write_pairs(folder / "text.safetensors", tokens(kPairs, kSource, 3), tokens(kPairs, kAnswer, 4));
    sharpen();
  }
  /// The head's weight, and what takes it as it is: the last norm of a tied one.
  bool scales_logits(const std::string& tensor) const {
    if (tensor == "lm_head.weight") return true;
    if (GetParam() == "t5") return tensor == "decoder.final_layer_norm.weight";
    return GetParam() == "bart" && tensor.starts_with("model.decoder.layers.1.final_layer_norm.");
  }
  void sharpen() {
    testing::sharpen([&](double factor) {
      fixture.scale(factor, [&](const std::string& name) { return scales_logits(name); });
      fixture.write(folder / "model");
      return entropy();
    });
  }
  double entropy() const {
    const auto loaded = load_model(folder / "model");
    const auto ids = at::cat({tokens(kPairs, kSource, 3), at::full({kPairs, 1}, start(), at::kLong),
                              tokens(kPairs, kAnswer, 4).narrow(1, 0, kAnswer - 1)},
                             1);
    return testing::entropy_of(loaded.model->forward(ids, nullptr, CausalLM::Logits::all, kSource));
  }
  io::Json measure(const std::string& out, const std::vector<std::string>& more = {}) const {
    return json_of(args("measure --model {} --data {} --out {} {}", path("model"), path("calibration.safetensors"),
                        path(out), more));
  }
  void quantize(const std::string& out, const std::vector<std::string>& how) const {
    std::vector<std::string> arguments = args("quantize --model {} --out {} {}", path("model"), path(out), how);
    EXPECT_TRUE(json_of(arguments).is_object());
  }
  double kl_of(const std::string& name, const std::string& cache) const {
    const auto json = json_of(args("evaluate --model {} --reference {} --data {} --kv-cache {}", path(name),
                                   path("model"), path("text.safetensors"), cache));
    if (!json.is_object()) return std::nan("");
    EXPECT_EQ(json["tokens"], kPairs * kAnswer);
    EXPECT_EQ(json["source_tokens"], kPairs * kSource);
    EXPECT_GE(json["top1_agreement"].get<double>(), 0.8);
    EXPECT_NEAR(std::log(json["perplexity"].get<double>() / json["reference_perplexity"].get<double>()), 0, 0.2);
    return json["kl"].get<double>();
  }
  void expect_small(const std::string& key, double kl, double most) {
    if (!key.empty()) RecordProperty(key, testing::number_text(kl));
    EXPECT_GT(kl, 0) << "nothing is in fp8";
    EXPECT_LE(kl, most) << key;
  }
};

TEST_P(AnswersInFp8, MeasureQuantizeEvaluate) {
  EXPECT_LE(entropy(), 0.5) << "nearly uniform logits say nothing of the damage";
  const auto measured = measure("stats");
  ASSERT_TRUE(measured.is_object());
  RecordProperty("modules", measured["modules"].get<int>());
  EXPECT_EQ(measured["samples"], kPairs);
  EXPECT_EQ(measure("blocks", {"--block-wise"})["modules"], measured["modules"]);
  for (const char* name : {"inc_output_hooks_maxabs.json", "inc_output_hooks_maxabs.kv_cache"})
    EXPECT_EQ(io::read_json(folder / "blocks" / name), io::read_json(folder / "stats" / name)) << name;
  quantize("static", {"--measurements", path("stats")});
  quantize("dynamic", {"--dynamic"});
  quantize("weights", {"--weights-only"});
  quantize("cache", args("--measurements {} --kv-cache fp8", path("stats")));
  expect_small("kl_static", kl_of("static", "off"), kMostStatic);
  expect_small("kl_dynamic", kl_of("dynamic", "off"), kMostStatic);
  expect_small("", kl_of("weights", "off"), kMostStatic);
  expect_small("kl_cache", kl_of("cache", "auto"), kMostWithCache);
}

/// All weights of products but a tied head, and the caches of a decoder's two attentions.
TEST_P(AnswersInFp8, NamesAreThoseOfCheckpoints) {
  ASSERT_TRUE(measure("stats").is_object());
  quantize("cache", args("--measurements {} --kv-cache fp8", path("stats")));
  const io::Checkpoint checkpoint(folder / "cache");
  const bool bart = GetParam() == "bart";
  for (const auto& attention :
       bart ? std::vector<std::string>{"model.decoder.layers.0.self_attn", "model.decoder.layers.1.encoder_attn"}
            : std::vector<std::string>{"decoder.block.0.layer.0.SelfAttention",
                                       "decoder.block.2.layer.1.EncDecAttention"})
    EXPECT_TRUE(checkpoint.contains(attention + ".k_scale")) << attention;
  EXPECT_FALSE(checkpoint.contains(bart ? "model.encoder.layers.0.self_attn.k_scale"
                                        : "encoder.block.0.layer.0.SelfAttention.k_scale"));
  const auto weight =
      bart ? "model.encoder.layers.0.self_attn.q_proj.weight" : "encoder.block.0.layer.0.SelfAttention.q.weight";
  EXPECT_EQ(checkpoint.info(weight).dtype, io::DType::F8_E4M3);
  EXPECT_EQ(checkpoint.info(bart ? "model.shared.weight" : "shared.weight").dtype, io::DType::F32);
  if (bart) return;
  const auto* biases = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
  EXPECT_EQ(checkpoint.info(biases).dtype, io::DType::F32);
}

TEST_P(AnswersInFp8, BudgetAndDamageSeeAnswers) {
  const auto json = json_of(args("quantize --model {} --out {} --dynamic --budget kl=0.5 --data {} --samples 4",
                                 path("model"), path("budget"), path("text.safetensors")));
  EXPECT_TRUE(json.is_object());
  const auto damage = json_of(args("inspect {} --data {} --samples 4", path("model"), path("text.safetensors")));
  EXPECT_TRUE(damage.is_object());
}

/// One token that answers a source of a fixture, padded ones too: what transformers' logits make of it.
TEST_P(Answers, PerplexityIsThatOfTransformersLogits) {
  const auto& run = fixture.runs.front();
  for (std::int64_t row = 0; row < 3; ++row) {
    fixture.config["decoder_start_token_id"] = run.answers[row][0].item<std::int64_t>();
    fixture.write(folder / "model");
    const auto source = run.ids.narrow(0, row, 1).narrow(1, 0, run.lengths[static_cast<std::size_t>(row)]);
    write_pairs(folder / "one.safetensors", source, at::full({1, 1}, 7, at::kLong));
    const auto json =
        json_of(args("evaluate --model {} --data {} --device cpu --dtype f32", path("model"), path("one.safetensors")));
    ASSERT_TRUE(json.is_object());
    const auto expected = -at::log_softmax(run.logits[row][0].to(at::kDouble), -1)[7].item<double>();
    EXPECT_NEAR(std::log(json["perplexity"].get<double>()), expected, 3e-4) << row;
  }
}

/// Answers are shifted: column i predicts token i, after what the config says they begin with.
TEST_P(Answers, LogitsAreThoseOfTransformers) {
  const auto& run = fixture.runs.front();
  fixture.config["decoder_start_token_id"] = run.answers[0][0].item<std::int64_t>();
  fixture.write(folder / "model");
  const auto labels = at::cat({run.answers.narrow(0, 0, 1).narrow(1, 1, 9), at::full({1, 1}, 5, at::kLong)}, 1);
  write_pairs(folder / "pairs.safetensors", run.ids.narrow(0, 0, 1).expand({3, 10}), labels.expand({3, 10}));
  const auto json = json_of(args("evaluate --model {} --data {} --device cpu --dtype f32 --batch 2 --dump-logits {}",
                                 path("model"), path("pairs.safetensors"), path("logits.safetensors")));
  ASSERT_TRUE(json.is_object());
  const auto logits = read_logits(folder / "logits.safetensors");
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{30, 48}));
  for (std::int64_t pair = 0; pair < 3; ++pair) {
    EXPECT_LE((logits[pair * 10] - run.logits[0][0]).abs().max().item<float>(), 3e-4f);
    EXPECT_LE((logits[pair * 10 + 9] - run.logits[0][1]).abs().max().item<float>(), 3e-4f);
  }
  const auto log_p = at::log_softmax(logits.narrow(0, 0, 10).to(at::kDouble), -1);
  EXPECT_NEAR(std::log(json["perplexity"].get<double>()), -log_p.gather(1, labels.view({10, 1})).mean().item<double>(),
              1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, AnswersInFp8, ::testing::ValuesIn(testing::seq2seq_fixtures()), testing::test_name);
INSTANTIATE_TEST_SUITE_P(All, Answers, ::testing::ValuesIn(testing::seq2seq_fixtures()), testing::test_name);

}  // namespace
}  // namespace fp8::models
