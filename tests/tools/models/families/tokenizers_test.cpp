// SPDX-License-Identifier: Apache-2.0
// Model folders that have no tokenizer.json but other files of one (vocab.txt; vocab.json and merges.txt; sentencepiece
// models; ranks; tekken.json): every command that takes text runs on them, and what quantize and convert write has all
// of these files, byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/tokenizer.h"
#include "support/in_process.h"
#include "support/temp_dir.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

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
  static std::string bytes_of(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
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
    run({"measure", "--model", model, "--data", data, "--seq-len", "32", "--out", path("stats" + end)});
    run({"quantize", "--model", model, "--measurements", path("stats" + end), "--out", fp8});
    run({"quantize", "--model", model, "--dynamic", "--out", dynamic});
    run({"convert", "--model", dynamic, "--to", "bf16", "--out", bf16});
    for (const auto& out : {fp8, dynamic, bf16}) {
      for (const auto& file : files)
        EXPECT_EQ(bytes_of(std::filesystem::path(out) / file), bytes_of(std::filesystem::path(model) / file))
            << out << file;
      run({"evaluate", "--model", out, "--reference", model, "--data", data, "--seq-len", "32"});
      run({"generate", "--model", out, "--prompt", "In the", "--tokens", "3"});
    }
    run({"inspect", model, "--data", data, "--samples", "1"});
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
