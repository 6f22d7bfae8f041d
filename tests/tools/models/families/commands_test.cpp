// SPDX-License-Identifier: Apache-2.0
// Each family through the commands: measure -> quantize -> evaluate, static, dynamic and with keys and values in fp8.
// Results are recorded as properties, from which make_table.py makes the table in tools/pages/families.md.
#include <ATen/Functions.h>

#include "fp8/tools/models/decoder/description.h"
#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/tokenizer.h"
#include "support/golden.h"
#include "support/in_process.h"
#include "support/values.h"
#include "tools/models/fixture.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

/// Each layer adds a quarter of what it added, as those of trained models add little to what is there: random ones
/// that add as much as there is double their own errors. Gives back the config, a DecoderConfig.
DecoderConfig calm(testing::Fixture& fixture) {
  const auto parsed = parse_config(fixture.config, "config.json");
  const auto& config = dynamic_cast<const DecoderConfig&>(*parsed.values);
  const auto& names = config.names;
  const bool after = !names.after_attention.empty() && !config.norm_sums;  // norms of what is added scale it
  const auto adds = [&](const std::string& tensor) {
    const std::string module = "." + parent_of(tensor), leaf = "." + leaf_of(tensor);
    if (tensor.find(leaf_of(names.layers) + ".") == std::string::npos) return false;
    if (after)
      return leaf == ".weight" &&
             (module.ends_with("." + names.after_attention) || module.ends_with("." + names.after_mlp));
    for (const std::string& known : {"." + names.out, "." + names.down, std::string(".w2"),
                                     std::string(".output_linear"), std::string(".down_proj")})
      if (module.ends_with(known) || leaf == known || leaf == known + "_bias") return true;
    return false;
  };
  // A router that is near to another choice takes it for less than that.
  fixture.scale(config.moe.experts > 0 ? 0.125 : 0.25, adds, after && config.norm.plus_one);
  return config;
}

constexpr std::int64_t kSamples = 16, kLength = 40;
constexpr double kStatic = 2e-2, kWithCache = 6e-2;  // the largest mean KL
constexpr double kEncoder = 4e-2;                    // whose heads have a product in fp8 too

struct FamiliesInFp8 : ::testing::TestWithParam<std::string> {
  void SetUp() override {
    sharpen(calm(fixture));
    testing::write_ids(folder / "calibration.safetensors", ids(1));
    testing::write_ids(folder / "text.safetensors", ids(2));
  }

  /// Writes the checkpoint with logits as large as it takes for an entropy of nearly half of log V.
  void sharpen(const DecoderConfig& config) {
    const std::string scaled = leaf_of(config.tied ? config.names.norm : config.head()) + ".weight";
    const auto is_last = [&](const std::string& name) { return name.ends_with("." + scaled) || name == scaled; };
    testing::sharpen([&](double factor) {
      fixture.scale(factor, is_last, config.tied && config.norm.plus_one);
      fixture.write(folder / "model");
      return entropy();
    });
  }
  double entropy() const { return testing::entropy_of(load_model(folder / "model").model->forward(ids(2))); }

  /// Tokens that no one knows the order of.
  at::Tensor ids(std::int64_t seed) const {
    const auto vocabulary = load_model(folder / "model").model->shape().vocab;
    return (at::arange(kSamples * kLength, at::kLong) * 7919 + seed * 104729)
        .square()
        .remainder(65521)
        .remainder(vocabulary)
        .view({kSamples, kLength});
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  io::Json json_of(const std::vector<std::string>& arguments) const {
    return test::json_of(test::fp8_in_process("{} --json --quiet", arguments));
  }
  bool is_causal() const { return parse_config(fixture.config, "config.json").values->shape.task == Task::causal; }
  static void expect_small(const std::vector<double>& divergences, double most = kStatic) {
    for (const double kl : divergences) {
      EXPECT_GT(kl, 0) << "nothing is in fp8";
      EXPECT_LE(kl, most);
    }
  }

  struct Kl {
    double with_static, with_dynamic, with_cache;
  };
  Kl in_files() const {
    const auto quantize = [&](const std::string& name, const std::vector<std::string>& how) {
      std::vector<std::string> arguments = args("quantize --model {} --out {} {}", path("model"), path(name), how);
      // Experts that are MXFP4 already have a place in this form alone.
      if (GetParam() == "gpt_oss-mxfp4") arguments.insert(arguments.end(), {"--format", "quark"});
      EXPECT_TRUE(json_of(arguments).is_object());
    };
    quantize("static", {"--measurements", path("stats")});
    quantize("dynamic", {"--dynamic"});
    if (!is_causal()) return {kl_of("static", "auto"), kl_of("dynamic", "auto"), 0};
    if (GetParam() == "gpt_oss-mxfp4")  // whose form has no place for the cache's scales
      return {kl_of("static", "off"), kl_of("dynamic", "off"),
              kl_of("static", "fp8", {"--measurements", path("stats")})};
    quantize("cache", args("--measurements {} --kv-cache fp8", path("stats")));
    return {kl_of("static", "off"), kl_of("dynamic", "off"), kl_of("cache", "auto")};
  }

  /// Where no form of checkpoint has a place for the weights: Conv1D's, which readers do not take for Linear.
  Kl in_memory() const {
    const auto kl = [&](const std::string& types, const std::string& how) {
      const std::string config = path("config.json"),
                        common = R"("dump_stats_path": ")" + path("inc") +
                                 R"(", "blocklist": {"names": ["lm_head"]}, "allowlist": {"types": [)" + types + "]}, ";
      const auto with = [&](const std::string& mode, const std::vector<std::string>& arguments) {
        std::ofstream(config) << "{" << common << mode << "}";
        setenv("QUANT_CONFIG", config.c_str(), 1);
        const auto json = json_of(arguments);
        unsetenv("QUANT_CONFIG");
        return json;
      };
      const auto evaluate = [&](const std::string& data) {
        return args("evaluate --model {} --data {} --seq-len {}", path("model"), path(data), kLength);
      };
      with(R"("mode": "MEASURE")", evaluate("calibration.safetensors"));
      auto compared = evaluate("text.safetensors");
      compared.insert(compared.end(), {"--reference", path("model")});
      const auto json = with(R"("mode": "QUANTIZE")" + how, compared);
      return json.is_object() ? json["kl"].get<double>() : std::nan("");
    };
    return {kl(R"("Linear")", ""),
            kl(R"("Linear")", R"(, "dynamic_quantization": true, "scale_method": "maxabs_arbitrary")"),
            kl(R"("Linear", "KVCache")", "")};
  }

  /// The mean KL of a quantized folder to the model.
  double kl_of(const std::string& name, const std::string& cache, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments =
        args("evaluate --model {} --reference {} --data {} --seq-len {} --kv-cache {} {}", path(name), path("model"),
             path("text.safetensors"), kLength, cache, more);
    const auto json = json_of(arguments);
    if (!json.is_object()) return std::nan("");
    EXPECT_GE(json["top1_agreement"].get<double>(), 0.8);
    EXPECT_EQ(json["perplexity"].is_null(), !is_causal());
    return json["kl"].get<double>();
  }
  void record(const std::string& key, double value) { RecordProperty(key, testing::number_text(value)); }

  const at::NoGradGuard no_grad;
  Fixture fixture{GetParam()};
  const test::TempDir folder;
};

TEST_P(FamiliesInFp8, MeasureQuantizeEvaluate) {
  EXPECT_LE(entropy(), 0.5) << "nearly uniform logits say nothing of the damage";
  const auto measured = json_of(args("measure --model {} --data {} --seq-len {} --out {}", path("model"),
                                     path("calibration.safetensors"), kLength, path("stats")));
  ASSERT_TRUE(measured.is_object());
  RecordProperty("modules", measured["modules"].get<int>());
  const auto blocks = json_of(args("measure --model {} --data {} --seq-len {} --out {} --block-wise", path("model"),
                                   path("calibration.safetensors"), kLength, path("blocks")));
  EXPECT_EQ(blocks["modules"], measured["modules"]);
  std::vector<std::string> files = {"inc_output_hooks_maxabs.json"};
  if (is_causal()) files.emplace_back("inc_output_hooks_maxabs.kv_cache");
  for (const auto& name : files)
    EXPECT_EQ(io::read_json(folder / "blocks" / name), io::read_json(folder / "stats" / name)) << name;
  const Kl kl = GetParam() == "gpt2" ? in_memory() : in_files();
  record("kl_static", kl.with_static);
  record("kl_dynamic", kl.with_dynamic);
  if (!is_causal()) return expect_small({kl.with_static, kl.with_dynamic}, kEncoder);
  record("kl_cache", kl.with_cache);
  expect_small({kl.with_static, kl.with_dynamic});
  expect_small({kl.with_cache}, kWithCache);
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesInFp8, ::testing::ValuesIn(testing::runnable_fixtures()), testing::test_name);

// Model folders that have no tokenizer.json but other files of one (vocab.txt; vocab.json and merges.txt; sentencepiece
// models; ranks; tekken.json): every command that takes text runs on them, and what quantize and convert write has all
// of these files, byte for byte.

const io::Json& kinds() {
  static const io::Json json =
      io::read_json(std::filesystem::path(FP8_SOURCE_DIR) / "tests/tools/text/fixtures/files.json").at("kinds");
  return json;
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& [name, kind] : kinds().items()) result.push_back(name);
  return result;
}

struct TokenizersOfModels : ::testing::TestWithParam<std::string> {
  std::string path(const std::string& name) const { return (folder / name).string(); }
  /// A model of as many words as its tokenizer has.
  void write_model(const std::string& model, bool settings) {
    std::filesystem::create_directories(folder / model);
    files.clear();
    for (const auto& [name, content] : kinds().at(GetParam()).at("files").items()) {
      if (!settings && name == "tokenizer_config.json") continue;
      files.push_back(name);
      std::ofstream(folder / model / name, std::ios::binary) << *text::from_base64(content.get<std::string>());
    }
    testing::TinyCheckpoint checkpoint;
    const std::int64_t words = text::Tokenizer(folder / model).vocab_size();
    checkpoint.config["vocab_size"] = words;
    checkpoint.config["max_position_embeddings"] = 512;
    checkpoint.add("model.embed_tokens.weight", {words, 16});
    checkpoint.add("lm_head.weight", {words, 16});
    checkpoint.write(folder / model);
    std::ofstream data(folder / "text.txt");
    for (int i = 0; i < 12; ++i) data << "In the beginning God created the heaven and the earth.\n";
  }
  void run(std::vector<std::string> arguments) const {
    arguments.emplace_back("--quiet");
    const auto run = test::fp8_in_process(arguments);
    EXPECT_EQ(run.code, 0) << arguments[0] << ": " << run.err;
  }

  const test::TempDir folder;
  std::vector<std::string> files;
};

TEST_P(TokenizersOfModels, AreReadByAllCommandsAndCarriedAlong) {
  for (const bool settings : {true, false}) {
    SCOPED_TRACE(settings);
    const std::string data = path("text.txt"), end = settings ? "1" : "2", model = path("model" + end);
    write_model("model" + end, settings);
    const std::string fp8 = path("fp8" + end), dynamic = path("dynamic" + end), bf16 = path("bf16" + end);
    run(args("measure --model {} --data {} --seq-len 32 --out {}", model, data, path("stats" + end)));
    run(args("quantize --model {} --measurements {} --out {}", model, path("stats" + end), fp8));
    run(args("quantize --model {} --dynamic --out {}", model, dynamic));
    run(args("convert --model {} --format bf16 --out {}", dynamic, bf16));
    for (const auto& out : {fp8, dynamic, bf16}) {
      for (const auto& file : files)
        EXPECT_EQ(read_file(std::filesystem::path(out) / file), read_file(std::filesystem::path(model) / file))
            << out << file;
      run(args("evaluate --model {} --reference {} --data {} --seq-len 32", out, model, data));
      run(args("generate --model {} --prompt 'In the' --tokens 3", out));
    }
    run(args("inspect {} --data {} --samples 1", model, data));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizersOfModels, ::testing::ValuesIn(names()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

// fp8 embed: vectors are what pooling makes of the model's hidden states; what lies beside a model decides how.

struct Embed : ::testing::Test {
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
  expect_values(json_of(embed()), {{"texts", 5}, {"width", 64}, {"pooling", "mean"}});
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
struct EmbedInFp8 : ::testing::TestWithParam<std::string> {
  void SetUp() override {
    testing::Fixture fixture(GetParam());
    calm(fixture);
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
