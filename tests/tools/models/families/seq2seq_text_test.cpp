// SPDX-License-Identifier: Apache-2.0
// Texts and the answers to them: pairs of any lengths, measured without padding; generate, embed; what is refused.
#include "fp8/tools/models/decoder/decoder.h"
#include "support/values.h"
#include "tools/models/families/answers.h"

namespace fp8::models {
namespace {

using testing::Answers;
using testing::write_pairs;

/// Letters and a space are tokens 3 to 29; what ends a text is 2.
constexpr const char* kTokenizer = R"({
  "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
  "added_tokens": [{"id": 0, "content": "<pad>", "special": true, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false},
                   {"id": 2, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false}],
  "post_processor": {"type": "TemplateProcessing",
                     "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                     "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                     "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}},
  "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "merges": [], "vocab": {VOCABULARY}}
})";

std::string tokenizer_json() {
  std::string vocabulary = R"("<pad>": 0, "<s>": 1, "</s>": 2, " ": 29)";
  for (int i = 0; i < 48; ++i) {
    if (i < 3 || i == 29) continue;
    const std::string token = i < 29 ? std::string(1, static_cast<char>('a' + i - 3)) : "<" + std::to_string(i) + ">";
    vocabulary += ", \"" + token + "\": " + std::to_string(i);
  }
  std::string text = kTokenizer;
  return text.replace(text.find("VOCABULARY"), 10, vocabulary);
}

class AnswersToText : public Answers {
 protected:
  void SetUp() override {
    fixture.config["eos_token_id"] = 2;
    fixture.write(folder / "model");
    std::ofstream(folder / "model" / "tokenizer.json") << tokenizer_json();
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return path(name);
  }
  static std::vector<std::int64_t> ids_of(const std::string& text) {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(c == ' ' ? 29 : c - 'a' + 3);
    ids.push_back(2);
    return ids;
  }
  /// The largest logits one after the other, each from a forward of all that is there. first: given, not chosen.
  std::vector<std::int64_t> greedy(const std::string& source, std::size_t count, std::int64_t first = -1) const {
    const auto loaded = load_model(folder / "model", {.dtype = at::kFloat});
    auto ids = ids_of(source);
    const auto columns = static_cast<std::int64_t>(ids.size());
    ids.push_back(start());
    std::vector<std::int64_t> found;
    while (found.size() < count) {
      const auto logits =
          loaded.model->forward(at::tensor(ids, at::kLong).unsqueeze(0), nullptr, CausalLM::Logits::last, columns);
      const auto next = found.empty() && first >= 0 ? first : logits.argmax().item<std::int64_t>();
      if (next == 2) break;
      found.push_back(next);
      ids.push_back(next);
    }
    return found;
  }
};

TEST_P(AnswersToText, PairsOfAnyLengths) {
  const auto file = write("pairs.jsonl", R"({"input": "a source", "target": "answer"})"
                                         "\n"
                                         R"({"input": "other one", "target": "its answer"})"
                                         "\n");
  const auto json = json_of(args("evaluate --model {} --data {} --device cpu --dtype f32", path("model"), file));
  ASSERT_TRUE(json.is_object());
  expect_values(json, {{"tokens", 7 + 11}, {"source_tokens", 9 + 10}});
  double nll = 0;
  const auto loaded = load_model(folder / "model", {.dtype = at::kFloat});
  for (const auto& [source, answer] : {std::pair{"a source", "answer"}, {"other one", "its answer"}}) {
    auto ids = ids_of(source);
    const auto columns = static_cast<std::int64_t>(ids.size());
    const auto labels = ids_of(answer);
    ids.push_back(start());
    ids.insert(ids.end(), labels.begin(), labels.end() - 1);
    const auto log_p = at::log_softmax(
        loaded.model->forward(at::tensor(ids, at::kLong).unsqueeze(0), nullptr, CausalLM::Logits::all, columns)[0], -1);
    nll -= log_p.gather(1, at::tensor(labels, at::kLong).unsqueeze(1)).sum().item<double>();
  }
  EXPECT_NEAR(std::log(json["perplexity"].get<double>()), nll / 18, 1e-4);
  const auto cut = json_of(args("evaluate --model {} --data {} --device cpu --seq-len 5", path("model"), file));
  expect_values(cut, {{"tokens", 5 + 5}, {"source_tokens", 5 + 5}});
  EXPECT_EQ(json_of(args("evaluate --model {} --data {} --device cpu --skip 1", path("model"), file))["tokens"], 11);
}

TEST_P(AnswersToText, MeasuringSeesNoPadding) {
  const auto both = write("both.jsonl", R"({"input": "a source", "target": "answer"})"
                                        "\n"
                                        R"({"input": "a longer source than that", "target": "an answer too"})"
                                        "\n");
  const auto measure = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments =
        args("measure --model {} --data {} --out {} {}", path("model"), both, path(out), more);
    ASSERT_TRUE(json_of(arguments).is_object());
  };
  measure("whole", {});
  measure("blocks", {"--block-wise"});
  measure("first", {"--samples", "1"});
  measure("second", {"--skip", "1"});
  const std::string name = "inc_output_hooks_maxabs.json";
  const auto whole = io::read_json(folder / "whole" / name);
  EXPECT_EQ(io::read_json(folder / "blocks" / name), whole);
  // The amax of both is the larger one of each alone.
  const auto first = io::read_json(folder / "first" / name), second = io::read_json(folder / "second" / name);
  const auto most = [](const auto& self, const io::Json& a, const io::Json& b) -> io::Json {
    if (a.is_number_float() && b.is_number_float()) return std::max(a.get<double>(), b.get<double>());
    if (!a.is_structured()) return a;
    io::Json all = a;
    for (const auto& item : a.items()) {
      if (a.is_array())
        all[std::stoul(item.key())] = self(self, item.value(), b[std::stoul(item.key())]);
      else
        all[item.key()] = self(self, item.value(), b[item.key()]);
    }
    return all;
  };
  EXPECT_EQ(whole["Nodes"], most(most, first["Nodes"], second["Nodes"]));
}

TEST_P(AnswersToText, GenerateAnswersGreedily) {
  const auto file = write("prompts.jsonl", R"({"text": "a source"})"
                                           "\n"
                                           R"({"text": "a longer source than that"})"
                                           "\n"
                                           R"({"text": "b"})"
                                           "\n");
  const auto json =
      json_of(args("generate --model {} --data {} --tokens 12 --device cpu --dtype f32", path("model"), file));
  ASSERT_TRUE(json.is_object());
  const char* sources[] = {"a source", "a longer source than that", "b"};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto expected = greedy(sources[i], 12);
    EXPECT_EQ(json["results"][i]["ids"].get<std::vector<std::int64_t>>(), expected) << sources[i];
    EXPECT_EQ(json["results"][i]["stopped"], expected.size() < 12 ? "eos" : "tokens");
    EXPECT_EQ(json["results"][i]["prompt_tokens"], ids_of(sources[i]).size());
  }
  const auto plain = test::fp8_in_process("generate --model {} --prompt b --tokens 12 --device cpu --dtype f32 --quiet",
                                          path("model"));
  EXPECT_EQ(plain.out, json["results"][2]["text"].get<std::string>() + "\n");
}

TEST_P(AnswersToText, GenerationConfigsAreTaken) {
  const auto chosen = greedy("a source", 6);
  ASSERT_GE(chosen.size(), 2u);
  std::ofstream(folder / "model" / "generation_config.json")
      << R"({"forced_bos_token_id": 9, "eos_token_id": )" << chosen[1] << "}";
  const auto forced =
      json_of(args("generate --model {} --prompt 'a source' --tokens 6 --device cpu --dtype f32", path("model")));
  auto expected = greedy("a source", 6, 9);
  if (const auto end = std::find(expected.begin(), expected.end(), chosen[1]); end != expected.end())
    expected.erase(end, expected.end());
  EXPECT_EQ(forced["ids"].get<std::vector<std::int64_t>>(), expected);
  std::ofstream(folder / "model" / "generation_config.json") << R"({"eos_token_id": )" << chosen[1] << "}";
  const auto stopped =
      json_of(args("generate --model {} --prompt 'a source' --tokens 6 --device cpu --dtype f32", path("model")));
  EXPECT_EQ(stopped["stopped"], "eos");
}

TEST_P(AnswersToText, OtherDataIsRefused) {
  const auto error = [&](const std::string& file, const std::string& command = "evaluate") {
    std::vector<std::string> arguments = {command, "--model", path("model"), "--data", file};
    if (command == "measure") arguments.insert(arguments.end(), {"--out", path("stats")});
    const auto done = run(arguments);
    EXPECT_EQ(done.code, 1);
    return done.err;
  };
  const auto text = write("text.txt", "a source");
  for (const char* command : {"evaluate", "measure"})
    EXPECT_THAT(error(text, command),
                HasSubstr("text.txt: is text, allowed: .jsonl, .json (fields input and target), .safetensors"));
  EXPECT_THAT(error(write("text.jsonl", R"({"text": "a source"})")),
              HasSubstr("text.jsonl:1: has no field 'input', found 'text'"));
  EXPECT_THAT(error(write("input.jsonl", R"({"input": "a source"})")),
              HasSubstr("input.jsonl:1: has no field 'target', found 'input'"));
  EXPECT_THAT(error(write("number.jsonl", R"({"input": "a", "target": 7})")),
              HasSubstr("number.jsonl:1: field 'target' is a JSON number, expected a string"));
  EXPECT_THAT(error(write("empty.jsonl", "\n")), HasSubstr("empty.jsonl: holds no text"));
  write_pairs(folder / "far.safetensors", tokens(1, 4, 1), at::full({1, 3}, 48, at::kLong));
  EXPECT_THAT(error(path("far.safetensors")),
              HasSubstr("pair 1: found token id 48 in its target, allowed: 0 to 47 (vocab_size)"));
  write_pairs(folder / "rows.safetensors", tokens(2, 4, 1), tokens(3, 4, 1));
  EXPECT_THAT(error(path("rows.safetensors")), HasSubstr("'labels' has 3 rows, expected as many as 'input_ids', 2"));
  if (GetParam() != "bart") return;
  write_pairs(folder / "long.safetensors", tokens(1, 65, 1), tokens(1, 4, 1));
  EXPECT_THAT(error(path("long.safetensors")),
              HasSubstr("pair 1: input of 65 tokens, allowed: up to max_position_embeddings 64"));
}

TEST_P(AnswersToText, TrainingIsRefusedByName) {
  const auto done =
      run(args("train --model {} --data {} --out {}", path("model"), write("text.txt", "a source"), path("out")));
  EXPECT_NE(done.code, 0);
  EXPECT_THAT(done.err, HasSubstr(fixture.config["model_type"].get<std::string>()));
}

TEST_P(AnswersToText, AStartMustBeKnown) {
  fixture.config.erase("decoder_start_token_id");
  fixture.config.erase("bos_token_id");
  fixture.write(folder / "model");
  expect_failed(run(args("generate --model {} --prompt a", path("model"))),
                {"config.json: key 'decoder_start_token_id': missing, allowed: "});
}

/// One vector of a text is of the encoder's hidden states.
TEST_P(AnswersToText, EmbedTakesTheEncoder) {
  const auto file = write("texts.jsonl", R"({"text": "a source"})");
  const auto json = json_of(args("embed --model {} --data {} --out {} --device cpu --dtype f32", path("model"), file,
                                 path("out.safetensors")));
  ASSERT_TRUE(json.is_object());
  const io::SafetensorsFile found(folder / "out.safetensors");
  auto values = at::empty({64}, at::kFloat);
  found.read(*found.find("embeddings"), values.mutable_data_ptr());
  const auto ids = at::tensor(ids_of("a source"), at::kLong).unsqueeze(0);
  const auto hidden = load_model(folder / "model", {.dtype = at::kFloat}).model->hidden(ids);
  EXPECT_LE((values - hidden.mean(1)[0]).abs().max().item<float>(), 1e-5f);
}

INSTANTIATE_TEST_SUITE_P(All, AnswersToText, ::testing::ValuesIn(testing::seq2seq_fixtures()), testing::test_name);

// Models that answer a source text through the commands: measure -> quantize -> evaluate, static, dynamic, weights
// alone and with keys and values in fp8. What is found is recorded as properties (make_table.py).

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
    expect_values(json, {{"tokens", kPairs * kAnswer}, {"source_tokens", kPairs * kSource}});
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
  EXPECT_TRUE(json_of(args("inspect {} --data {} --samples 4", path("model"), path("text.safetensors"))).is_object());
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
