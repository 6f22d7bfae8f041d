// SPDX-License-Identifier: Apache-2.0
// fp8 embed: vectors are what pooling makes of the model's hidden states; what lies beside a model decides how.
#include <ATen/Functions.h>

#include "support/golden.h"
#include "support/in_process.h"
#include "tools/models/families/calm.h"

namespace fp8::models {
namespace {

class Embed : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::Fixture fixture("bert");
    fixture.config["architectures"] = {"BertModel"};
    fixture.write(folder / "model");
    testing::write_ids(folder / "ids.safetensors", ids);
  }

  test::Run embed(const std::vector<std::string>& more = {}, const std::string& model = "model",
                  const std::string& data = "ids.safetensors") const {
    return test::fp8_in_process("embed --json --quiet --model {} --data {} --out {} --overwrite --device hpu {}",
                                folder / model, folder / data, folder / "out.safetensors", more);
  }
  at::Tensor vectors() const {
    const io::SafetensorsFile file(folder / "out.safetensors");
    const auto* info = file.find("embeddings");
    auto values = at::empty(info->shape, at::kFloat);
    file.read(*info, values.mutable_data_ptr());
    return values;
  }
  at::Tensor hidden() const { return load_model(folder / "model").model->forward(ids); }
  /// Words of one letter, of which text i has i mod 5 + 1; token ids are [CLS] 1, letters from 3, [SEP] 2.
  void write_texts(std::int64_t count) const {
    io::Json vocabulary = {{"[UNK]", 0}, {"[CLS]", 1}, {"[SEP]", 2}};
    for (char c = 'a'; c <= 'z'; ++c) vocabulary[std::string(1, c)] = c - 'a' + 3;
    const auto special = [](const char* name, int id) {
      return io::Json{{"id", name}, {"ids", io::Json::array({id})}, {"tokens", io::Json::array({name})}};
    };
    const auto piece = [](const char* kind, const char* id) { return io::Json{{kind, {{"id", id}, {"type_id", 0}}}}; };
    const io::Json tokenizer = {
        {"version", "1.0"},
        {"added_tokens", io::Json::array()},
        {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", {piece("SpecialToken", "[CLS]"), piece("Sequence", "A"), piece("SpecialToken", "[SEP]")}},
          {"pair", io::Json::array()},
          {"special_tokens", {{"[CLS]", special("[CLS]", 1)}, {"[SEP]", special("[SEP]", 2)}}}}},
        {"model", {{"type", "WordLevel"}, {"unk_token", "[UNK]"}, {"vocab", vocabulary}}}};
    write("tokenizer.json", tokenizer.dump());
    std::ofstream file(folder / "texts.jsonl");
    for (std::int64_t i = 0; i < count; ++i) file << io::Json{{"text", text(i)}}.dump() << "\n";
  }
  static char letter(std::int64_t text, std::int64_t word) { return static_cast<char>('a' + (7 * text + word) % 26); }
  static std::string text(std::int64_t i) {
    std::string words;
    for (std::int64_t word = 0; word <= i % 5; ++word) words += std::string(word > 0 ? " " : "") + letter(i, word);
    return words;
  }
  /// Its hidden states alone, [L, H], with the letters of `prompt` in front of it, cut behind `length` tokens.
  at::Tensor hidden_of_text(std::int64_t i, const std::string& prompt = "", std::size_t length = 64) const {
    std::vector<std::int64_t> tokens = {1};
    for (const char c : prompt) tokens.push_back(c - 'a' + 3);
    for (std::int64_t word = 0; word <= i % 5; ++word) tokens.push_back(letter(i, word) - 'a' + 3);
    if (tokens.size() + 1 > length) tokens.resize(length - 1);
    tokens.push_back(2);
    return load_model(folder / "model").model->forward(at::tensor(tokens, at::kLong).unsqueeze(0))[0];
  }
  test::Run embed_texts(const std::vector<std::string>& more = {}) const { return embed(more, "model", "texts.jsonl"); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder / "model" / name).parent_path());
    std::ofstream(folder / "model" / name) << text;
  }
  static void expect_near(const at::Tensor& a, const at::Tensor& b) {
    ASSERT_EQ(a.sizes(), b.sizes());
    EXPECT_LE((a - b).abs().max().item<float>(), 1e-4f);
  }

  const at::NoGradGuard no_grad;
  const at::Tensor ids = (at::arange(60, at::kLong) * 17 + 5).remainder(45).view({5, 12}) + 3;
  const test::TempDir folder;
};

TEST_F(Embed, TheMeanOfHiddenStates) {
  const auto json = json_of(embed());
  EXPECT_EQ(json["texts"], 5);
  EXPECT_EQ(json["width"], 64);
  EXPECT_EQ(json["pooling"], "mean");
  expect_near(vectors(), hidden().mean(1));
}

TEST_F(Embed, OptionsSayHow) {
  ASSERT_EQ(embed({"--pooling", "cls"}).code, 0);
  expect_near(vectors(), hidden().select(1, 0));
  ASSERT_EQ(embed({"--pooling", "last", "--normalize"}).code, 0);
  const auto last = hidden().select(1, 11);
  expect_near(vectors(), last / last.norm(2, -1, /*keepdim=*/true));
}

TEST_F(Embed, FilesOfSentenceTransformersSayHow) {
  write("modules.json", R"([{"type": "sentence_transformers.models.Transformer"},
                            {"type": "sentence_transformers.models.Pooling"},
                            {"type": "sentence_transformers.models.Normalize"}])");
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  ASSERT_EQ(embed().code, 0);
  const auto first = hidden().select(1, 0);
  expect_near(vectors(), first / first.norm(2, -1, /*keepdim=*/true));
  ASSERT_EQ(embed({"--pooling", "mean"}).code, 0);
  const auto mean = hidden().mean(1);
  expect_near(vectors(), mean / mean.norm(2, -1, /*keepdim=*/true));
}

/// Texts of one length share a forward: each is what it is alone, in the order of the file.
TEST_F(Embed, TextsOfOtherLengthsChangeNothing) {
  constexpr std::int64_t kTexts = 23;
  write_texts(kTexts);
  for (const char* batch : {"1", "4", "64"}) {
    const auto run = embed_texts({"--batch", batch});
    ASSERT_EQ(run.code, 0) << run.err;
    const auto found = vectors();
    ASSERT_EQ(found.size(0), kTexts);
    for (std::int64_t i = 0; i < kTexts; ++i) expect_near(found[i], hidden_of_text(i).mean(0));
  }
}

/// As sentence-transformers cuts texts: what ends them (a separator) stays.
TEST_F(Embed, LongTextsAreCutAndPromptsComeFirst) {
  write_texts(5);
  write("config_sentence_transformers.json",
        R"({"prompts": {"query": "x y ", "document": ""}, "default_prompt_name": "query"})");
  write("sentence_bert_config.json", R"({"max_seq_length": 6, "do_lower_case": false})");
  write("modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
                            {"type": "sentence_transformers.models.Pooling", "path": "pool/first"}])");
  write("pool/first/config.json", R"({"embedding_dimension": 64, "pooling_mode": "cls", "include_prompt": true})");
  const auto run = embed_texts();
  ASSERT_EQ(run.code, 0) << run.err;
  for (std::int64_t i = 0; i < 5; ++i) expect_near(vectors()[i], hidden_of_text(i, "xy", 6)[0]);

  write("tokenizer_config.json", R"({"model_max_length": 5})");  // says less than sentence_bert_config.json
  ASSERT_EQ(embed_texts().code, 0);
  expect_near(vectors()[4], hidden_of_text(4, "xy", 6)[0]);
  write("sentence_bert_config.json", "{}");
  ASSERT_EQ(embed_texts().code, 0);
  for (std::int64_t i = 0; i < 5; ++i) expect_near(vectors()[i], hidden_of_text(i, "xy", 5)[0]);
  write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  ASSERT_EQ(embed_texts().code, 0);
  expect_near(vectors()[4], hidden_of_text(4, "xy")[0]);
}

TEST_F(Embed, FilesThatContradictAreRefusedByKey) {
  const auto error = [&](const std::string& text) {  // "NAME CONTENT"
    const auto name = text.substr(0, text.find(' '));
    write(name, text.substr(name.size() + 1));
    const auto run = embed();
    EXPECT_EQ(run.code, 1) << text;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1);
    std::filesystem::remove(folder / "model" / name);
    return run.err;
  };
  EXPECT_GOLDEN(error(text));
}

TEST_F(Embed, WhatWouldChangeTheNumbersIsRefused) {
  write("modules.json", R"([{"type": "sentence_transformers.models.Dense"}])");
  auto run = embed();
  expect_failed(run, {"found module \"sentence_transformers.models.Dense\", allowed: Transformer"});
  write("modules.json", "[]");
  write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  run = embed();
  expect_failed(run, {"1_Pooling/config.json: key 'pooling_mode_max_tokens': found true, allowed: false"});
  write("1_Pooling/config.json", "{}");
  write("sentence_bert_config.json", R"({"max_seq_length": 8})");
  run = embed();
  expect_failed(run, {"rows of 12 tokens, allowed: up to 8"});
  EXPECT_EQ(embed({"--seq-len", "65"}).code, 2);
}

TEST_F(Embed, InFp8VectorsPointWhereTheyDid) {
  const std::string model = (folder / "model").string(), fp8 = (folder / "fp8").string();
  ASSERT_EQ(test::fp8_in_process("quantize --quiet --model {} --dynamic --out {}", model, fp8).code, 0);
  ASSERT_EQ(embed({"--normalize"}, "fp8").code, 0);
  const auto mean = hidden().mean(1);
  const auto cosine = (vectors() * mean).sum(-1) / mean.norm(2, -1);
  EXPECT_GE(cosine.min().item<float>(), 0.99f);
  const auto json = json_of(test::fp8_in_process("evaluate --json --quiet --model {} --reference {} --data {}", fp8,
                                                 model, folder / "ids.safetensors"));
  EXPECT_TRUE(json["perplexity"].is_null());
  EXPECT_NEAR(json["cosine"].get<double>(), cosine.mean().item<double>(), 1e-5);
}

/// The base model of each family of encoders.
class EmbedInFp8 : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    testing::Fixture fixture(GetParam());
    testing::calm(fixture);
    std::string type = fixture.config["architectures"][0];
    fixture.config["architectures"] = {type.replace(type.find("ForMaskedLM"), std::string::npos, "Model")};
    fixture.write(folder / "model");
    const auto ids = (at::arange(16 * 24, at::kLong).square() * 17 + 5).remainder(45).view({16, 24}) + 3;
    testing::write_ids(folder / "ids.safetensors", ids);
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  static void run(std::vector<std::string> arguments) {
    arguments.emplace_back("--quiet");
    const auto done = test::fp8_in_process(arguments);
    ASSERT_EQ(done.code, 0) << done.err;
  }
  at::Tensor vectors_of(const std::string& model) const {
    run(args("embed --model {} --data {} --out {} --overwrite --normalize", path(model), path("ids.safetensors"),
             path("out.safetensors")));
    const io::SafetensorsFile file(folder / "out.safetensors");
    auto values = at::empty({16, 64}, at::kFloat);
    file.read(*file.find("embeddings"), values.mutable_data_ptr());
    return values;
  }

  const test::TempDir folder;
};

TEST_P(EmbedInFp8, VectorsPointWhereTheyDid) {
  const auto expected = vectors_of("model");
  run(args("measure --model {} --data {} --seq-len 24 --out {}", path("model"), path("ids.safetensors"),
           path("stats")));
  run(args("quantize --model {} --measurements {} --out {}", path("model"), path("stats"), path("static")));
  run(args("quantize --model {} --dynamic --out {}", path("model"), path("dynamic")));
  for (const char* name : {"static", "dynamic"}) {
    const auto cosine = (vectors_of(name) * expected).sum(-1);
    EXPECT_GE(cosine.min().item<float>(), 0.99f) << name;
    EXPECT_LT(cosine.min().item<float>(), 1 - 1e-6f) << name << ": nothing is in fp8";
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmbedInFp8,
                         ::testing::ValuesIn(testing::fixtures_of([](Task task) { return task == Task::masked; })),
                         testing::test_name);

TEST_F(Embed, EncodersContinueNoText) {
  write("tokenizer.json", "{}");
  expect_failed(test::fp8_in_process("generate --model {} --prompt a", folder / "model"),
                {"BertModel is an encoder, which continues no text"});
}

}  // namespace
}  // namespace fp8::models
