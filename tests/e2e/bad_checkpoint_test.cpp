// SPDX-License-Identifier: Apache-2.0
// Source checkpoints that are broken or lie: quantize and evaluate name the file and leave nothing behind. Each rule of
// the safetensors format has its test in runtime/io/tensors, each key of a config in quant/forms.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

constexpr char kWeight[] = "model.layers.0.mlp.up_proj.weight";
constexpr char kFile[] = "model.safetensors";

/// Both commands refuse the model.
void expect_both_refuse(const Model& model, const std::vector<std::string>& words) {
  expect_quantize_refused(model.name(), {"--dynamic"}, words);
  expect_evaluate_refused(model.name(), words);
}

void expect_file_refused(const std::string& bytes, const std::vector<std::string>& words = {kFile}) {
  const Model model;
  model.write(kFile, bytes);
  expect_both_refuse(model, words);
}

TEST(BadCheckpoint, FilesThatLieAreNamedWithTheirTensor) {
  const Tensors good = Tensors::read(std::filesystem::path(demo_model()) / kFile);
  const std::string bytes = good.bytes();
  expect_file_refused(bytes.substr(0, bytes.size() - 1));
  Tensors bad = good;
  bad.header[kWeight]["data_offsets"] = {good.end(kWeight), good.begin(kWeight)};
  expect_file_refused(bad.bytes(), {kFile, kWeight});
}

TEST(BadCheckpoint, ConfigErrorsNameFileAndPlace) {
  const Model model;
  model.edit("config.json", [](io::Json& json) { json["tie_word_embeddings"] = "yes"; });
  expect_both_refuse(model, {"config.json", "tie_word_embeddings"});
  model.write("config.json", "");
  expect_both_refuse(model, {"config.json:1:1"});
}

TEST(BadCheckpoint, MissingFilesAreNamed) {
  for (const char* name : {"config.json", kFile}) {
    const Model model;
    std::filesystem::remove(model.path() / name);
    expect_evaluate_refused(model.name(), {name});
  }
  const test::TempDir folder;
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", folder / "none", folder / "out"), {"none"});
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", folder / "none.pt", folder / "out"), {"none.pt"});
  write_file(folder / "junk.pt", "not a TorchScript file");
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", folder / "junk.pt", folder / "out"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("junk.pt"));
}

TEST(BadCheckpoint, ScaleOfThatNameInTheSourceIsRefused) {
  Tensors bad = Tensors::read(std::filesystem::path(demo_model()) / kFile);
  bad.header[std::string(kWeight) + "_scale"] = {
      {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {bad.data.size(), bad.data.size() + 4}}};
  bad.data += std::string(4, '\0');
  const Model model;
  model.write(kFile, bad.bytes());
  expect_quantize_refused(model.name(), {"--dynamic"}, {model.name(), std::string(kWeight) + "_scale"});
}

TEST(BadCheckpoint, HugeHeadersEndSoonInLittleMemory) {
  const std::string header = "{" + std::string(99'999'999, ' ');
  std::string many = "{";
  for (int i = 0; i < 200000; ++i)
    many +=
        (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
  std::string dimensions = "{\"a\":{\"dtype\":\"F32\",\"shape\":[";
  for (int i = 0; i < 2'000'000; ++i) dimensions += "1,";
  const Model model;
  for (const std::string& bytes : {Tensors::with_length(header.size(), header), Tensors::file(many + "}", ""),
                                   Tensors::file(dimensions + "1],\"data_offsets\":[0,4]}}", "1234")}) {
    model.write(kFile, bytes);
    const auto start = std::chrono::steady_clock::now();
    expect_refused(
        fp8_limited(RLIMIT_AS, rlim_t{4} << 30, args("evaluate --threads 2 --model {} --data $HELDOUT", model.name())),
        {model.name()});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

// Our checkpoints, edited afterwards: impossible values in fp8.json, quantization_config, scales and codes.

class BadFp8Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    measure(demo_model(), calibration_text(), folder_ / "stats", "2");
    quantize(demo_model(), good(), {"--measurements", (folder_ / "stats").string()});
  }
  std::filesystem::path good() const { return folder_ / "fp8"; }

  test::TempDir folder_;
};

TEST_F(BadFp8Checkpoint, EditsAreRefusedByFileKeyAndTensor) {
  const auto expect_edit_refused = [&](const std::string& file, const std::function<void(io::Json&)>& change,
                                       const std::vector<std::string>& words) {
    const Model model(good());
    model.edit(file, change);
    expect_evaluate_refused(model.name(), words);
  };
  expect_edit_refused("fp8.json", [](io::Json& j) { j = io::Json::array(); }, {"fp8.json", "expected an object"});
  expect_edit_refused("fp8.json", [](io::Json& j) { j = nullptr; }, {"fp8.json", "expected an object"});
  expect_edit_refused("fp8.json", [](io::Json& j) { j["dialect"] = 3; }, {"fp8.json", "dialect"});
  expect_edit_refused("config.json", [](io::Json& j) { j["quantization_config"]["quant_method"] = "awq"; },
                      {"config.json", "quant_method"});
  const Model model(good());
  Tensors bad = Tensors::read(model.path() / kFile);
  const std::string input = "model.layers.0.mlp.up_proj.input_scale";
  bad.poke(input, 1e-45f);  // its reciprocal is infinite
  model.write(kFile, bad.bytes());
  expect_evaluate_refused(model.name(), {model.name(), input});
}

TEST_F(BadFp8Checkpoint, AnFp8ModelIsNeitherMeasuredNorQuantizedAgain) {
  expect_quantize_refused(good().string(), {"--dynamic"}, {"quantization_config"});
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", good(), folder_ / "more"), {"high precision"});
  const auto config = write_config(folder_ / "config.json", R"("mode": "MEASURE")", folder_ / "more/s");
  expect_evaluate_refused(good().string(), {"fp8 already"}, {{"QUANT_CONFIG", config}});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "more"));
}

}  // namespace
}  // namespace fp8::e2e
