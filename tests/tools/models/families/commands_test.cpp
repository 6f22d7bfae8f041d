// SPDX-License-Identifier: Apache-2.0
// Each family through the commands: measure -> quantize -> evaluate, static, dynamic and with keys and values in fp8.
// Results are recorded as properties, from which make_table.py makes the table in tools/pages/families.md.
#include <ATen/Functions.h>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/tokenizer.h"
#include "support/in_process.h"
#include "tools/models/families/calm.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

constexpr std::int64_t kSamples = 16, kLength = 40;
constexpr double kStatic = 2e-2, kWithCache = 6e-2;  // the largest mean KL
constexpr double kEncoder = 4e-2;                    // whose heads have a product in fp8 too

class FamiliesInFp8 : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    sharpen(testing::calm(fixture));
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

class TokenizersOfModels : public ::testing::TestWithParam<std::string> {
 protected:
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

}  // namespace
}  // namespace fp8::models
