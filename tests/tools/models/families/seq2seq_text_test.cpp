// SPDX-License-Identifier: Apache-2.0
// Texts and the answers to them: pairs of any lengths, measured without padding; generate, embed; what is refused.
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
  EXPECT_EQ(json["tokens"], 7 + 11);
  EXPECT_EQ(json["source_tokens"], 9 + 10);
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
  EXPECT_EQ(cut["tokens"], 5 + 5);
  EXPECT_EQ(cut["source_tokens"], 5 + 5);
  const auto second = json_of(args("evaluate --model {} --data {} --device cpu --skip 1", path("model"), file));
  EXPECT_EQ(second["tokens"], 11);
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

}  // namespace
}  // namespace fp8::models
