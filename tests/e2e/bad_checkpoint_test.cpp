// SPDX-License-Identifier: Apache-2.0
// Source checkpoints that are broken or lie: quantize and evaluate name the file and leave nothing behind. The rules
// are those of the safetensors format (offsets cover the buffer, sizes follow from shapes, a header has at most 100 000
// 000 bytes).
#include <cmath>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

constexpr char kWeight[] = "model.layers.0.mlp.up_proj.weight";
constexpr char kNorm[] = "model.norm.weight";
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

TEST(BadCheckpoint, EveryKindOfTruncationIsRefused) {
  const std::string whole = read_file(std::filesystem::path(demo_model()) / kFile);
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof length);
  const Model model;
  bool quantize_next = false;
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{8}, std::uint64_t{9}, length / 3,
                                   length + 7, length + 8, length + 9, std::uint64_t{whole.size() - 1}}) {
    SCOPED_TRACE(size);
    model.write(kFile, whole.substr(0, size));
    if ((quantize_next = !quantize_next)) {
      expect_quantize_refused(model.name(), {"--dynamic"}, {kFile});
    } else {
      expect_evaluate_refused(model.name(), {kFile});
    }
  }
  expect_file_refused(whole + "x");
}

TEST(BadCheckpoint, HeaderThatLiesAboutItsLengthIsRefused) {
  const Tensors good = Tensors::read(std::filesystem::path(demo_model()) / kFile);
  const std::string text = good.header.dump();
  expect_file_refused(Tensors::with_length(std::uint64_t{1} << 63, text + good.data));
  expect_file_refused(Tensors::with_length(100'000'001, text + good.data));
  expect_file_refused(Tensors::with_length(text.size() - 1, text + good.data));
}

TEST(BadCheckpoint, TensorThatLiesIsNamed) {
  const Tensors good = Tensors::read(std::filesystem::path(demo_model()) / kFile);
  const std::size_t begin = good.begin(kWeight), end = good.end(kWeight);
  const std::vector<std::pair<const char*, io::Json>> lies = {{"data_offsets", {begin, std::uint64_t{1} << 62}},
                                                              {"data_offsets", {end, begin}},
                                                              {"data_offsets", {begin + 2, end + 2}},
                                                              {"data_offsets", "all"}};
  const Model model;
  bool quantize_next = false;
  for (const auto& [key, value] : lies) {
    SCOPED_TRACE(value.dump());
    Tensors bad = good;
    bad.header[kWeight][key] = value;
    model.write(kFile, bad.bytes());
    if ((quantize_next = !quantize_next)) {
      expect_quantize_refused(model.name(), {"--dynamic"}, {kFile, kWeight});
    } else {
      expect_evaluate_refused(model.name(), {kFile, kWeight});
    }
  }
  Tensors missing = good;
  missing.header[kWeight].erase("data_offsets");
  expect_file_refused(missing.bytes(), {kFile, kWeight});
  std::string text = good.header.dump();
  text.insert(1, std::string("\"") + kWeight + "\":" + good.header[kWeight].dump() + ",");
  expect_file_refused(Tensors::file(text, good.data), {kFile, "duplicate", kWeight});
}

TEST(BadCheckpoint, NaNAndInfinityAreNamedWithTheirTensor) {
  const Tensors good = Tensors::read(std::filesystem::path(demo_model()) / kFile);
  ASSERT_EQ(good.header[kWeight]["dtype"], "BF16");
  const std::string nan = "\xC0\x7F", infinity = "\x80\x7F";  // bf16, little-endian
  for (const auto& [tensor, value] :
       std::vector<std::pair<std::string, std::string>>{{kWeight, nan}, {kWeight, infinity}, {kNorm, nan}}) {
    Tensors bad = good;
    bad.poke(tensor, value);
    expect_file_refused(bad.bytes(), {tensor});
  }
  Tensors last = good;  // the last element counts as the first does
  last.data.replace(last.end(kWeight) - 2, 2, nan);
  const Model model;
  model.write(kFile, last.bytes());
  expect_quantize_refused(model.name(), {"--weights-only", "--scheme", "tensor"}, {kWeight, "NaN"});
}

TEST(BadCheckpoint, ConfigErrorsNameFileAndPlace) {
  const std::string good = read_file(std::filesystem::path(demo_model()) / "config.json");
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "config.json:1:1"},
      {"[]", "config.json"},
      {"\x01", "config.json:1:1"},
      {good.substr(0, good.size() / 2), "config.json"},
      {"{\"hidden_size\": 1, " + good.substr(good.find('{') + 1), "duplicate key 'hidden_size'"},
      {std::string(100000, '['), "nested deeper than 64 levels"}};
  for (const auto& [text, word] : bad) {
    SCOPED_TRACE(text.substr(0, 60));
    const Model model;
    model.write("config.json", text);
    expect_both_refuse(model, {"config.json", word});
  }
  const Model model;
  model.edit("config.json", [](io::Json& json) { json["tie_word_embeddings"] = "yes"; });
  expect_both_refuse(model, {"config.json", "tie_word_embeddings"});
}

TEST(BadCheckpoint, MissingFilesAreNamed) {
  for (const char* name : {"config.json", kFile}) {
    const Model model;
    std::filesystem::remove(model.path() / name);
    expect_both_refuse(model, {name});
  }
  const test::TempDir folder;
  expect_quantize_refused((folder / "none").string(), {"--dynamic"}, {"none"});
  expect_quantize_refused(heldout_text(), {"--dynamic"}, {"expected a model folder, found a file"});
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", folder / "none", folder / "out"), {"none"});
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", folder / "none.pt", folder / "out"), {"none.pt"});
  write_file(folder / "junk.pt", "not a TorchScript file");
  expect_refused(fp8("measure --model {} --data $CALIB --out {}", folder / "junk.pt", folder / "out"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("junk.pt"));
}

TEST(BadCheckpoint, IndexMayNotLeaveTheFolder) {
  const Model model;
  std::filesystem::rename(model.path() / kFile, model.path() / "model-00001-of-00001.safetensors");
  const Tensors good = Tensors::read(model.path() / "model-00001-of-00001.safetensors");
  io::Json map = io::Json::object();
  for (const auto& [name, info] : good.header.items()) {
    if (name != "__metadata__") map[name] = "model-00001-of-00001.safetensors";
  }
  const auto with = [&](const io::Json& value) {
    io::Json index = {{"weight_map", map}};
    index["weight_map"][kWeight] = value;
    return index.dump();
  };
  const std::string index = "model.safetensors.index.json";
  for (const std::string& text :
       {std::string("{"), std::string("{\"weight_map\": []}"), with("../model/model-00001-of-00001.safetensors"),
        with("/etc/passwd"), with("nope.safetensors"), with(3)}) {
    SCOPED_TRACE(text.substr(0, 80));
    model.write(index, text);
    expect_both_refuse(model, {index});
  }
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

constexpr char kModule[] = "model.layers.0.mlp.up_proj";

class BadFp8Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    measure(demo_model(), calibration_text(), folder_ / "stats", "2");
    quantize(demo_model(), folder_ / "fp8", {"--measurements", (folder_ / "stats").string()});
  }
  std::filesystem::path good() const { return folder_ / "fp8"; }

  /// evaluate refuses the checkpoint with one JSON file changed.
  void expect_edit_refused(const std::string& file, const std::function<void(io::Json&)>& change,
                           const std::vector<std::string>& words) const {
    const Model model(good());
    model.edit(file, change);
    expect_evaluate_refused(model.name(), words);
  }
  test::TempDir folder_;
};

TEST_F(BadFp8Checkpoint, SidecarErrorsNameTheKey) {
  const std::vector<std::pair<std::function<void(io::Json&)>, std::string>> edits = {
      {[](io::Json& j) { j["dialect"] = 3; }, "dialect"},
      {[](io::Json& j) { j["dialect"] = "gaudi9"; }, "allowed: gaudi2, gaudi3, ocp"},
      {[](io::Json& j) { j.erase("dialect"); }, "dialect"},
      {[](io::Json& j) { j["convention"] = "inc"; }, "hp_dtype"},
      {[](io::Json& j) { j["convention"] = "mine"; }, "convention"},
      {[](io::Json& j) { j = io::Json::array(); }, "expected an object"},
      {[](io::Json& j) { j = nullptr; }, "expected an object"}};
  for (const auto& [change, word] : edits) expect_edit_refused("fp8.json", change, {"fp8.json", word});
  const Model model(good());
  model.write("fp8.json", "{\"dialect\": \"ocp\", \"dialect\": \"gaudi2\"}");
  expect_evaluate_refused(model.name(), {"fp8.json", "duplicate key 'dialect'"});
  // Codes of 240 and more are NaN or infinity to gaudi2.
  expect_edit_refused("fp8.json", [](io::Json& j) { j["dialect"] = "gaudi2"; }, {"gaudi2", "NaN codes"});
}

TEST_F(BadFp8Checkpoint, QuantizationConfigErrorsNameTheKey) {
  const auto quantization = [](auto change) { return [change](io::Json& j) { change(j["quantization_config"]); }; };
  const auto group = [](auto change) {
    return [change](io::Json& j) { change(j["quantization_config"]["config_groups"]["group_0"]); };
  };
  const std::vector<std::pair<std::function<void(io::Json&)>, std::string>> edits = {
      {quantization([](io::Json& q) { q["quant_method"] = "awq"; }), "quant_method"},
      {quantization([](io::Json& q) { q["quant_method"] = 3; }), "quant_method"},
      {quantization([](io::Json& q) { q.erase("config_groups"); }), "config_groups"},
      {quantization([](io::Json& q) { q["config_groups"] = {1}; }), "config_groups"},
      {quantization([](io::Json& q) { q["config_groups"]["group_0"] = 3; }), "config_groups"},
      {quantization([](io::Json& q) {
         q["config_groups"]["group_1"] = q["config_groups"]["group_0"];
         q["config_groups"]["group_1"]["weights"] = 3;
       }),
       "group_1"},
      {quantization([](io::Json& q) { q["format"] = "pack-quantized"; }), "format"},
      {quantization([](io::Json& q) { q["ignore"] = 3; }), "ignore"},
      {quantization([](io::Json& q) { q = io::Json::array(); }), "quant"},
      {group([](io::Json& g) { g["weights"] = "x"; }), "weights"},
      {group([](io::Json& g) { g["weights"]["type"] = "int"; }), "weights.type"},
      {group([](io::Json& g) { g["weights"]["num_bits"] = 4; }), "weights.num_bits"},
      {group([](io::Json& g) { g["weights"]["symmetric"] = false; }), "weights.symmetric"},
      {group([](io::Json& g) { g["weights"]["strategy"] = "block"; }), "weights.block_structure"},
      {group([](io::Json& g) { g["input_activations"] = "x"; }), "input_activations"},
      {group([](io::Json& g) { g["input_activations"]["dynamic"] = 1; }), "input_activations.dynamic"},
      {group([](io::Json& g) { g["input_activations"]["strategy"] = "channel"; }), "input_activations"}};
  for (const auto& [change, word] : edits) {
    SCOPED_TRACE(word);
    expect_edit_refused("config.json", change, {"config.json", word});
  }
}

TEST_F(BadFp8Checkpoint, DroppedQuantizationConfigIsNoHighPrecisionModel) {
  expect_edit_refused("config.json", [](io::Json& j) { j.erase("quantization_config"); }, {"F8_E4M3"});
}

TEST_F(BadFp8Checkpoint, UnusableScalesAndCodesAreNamed) {
  const Tensors good_file = Tensors::read(good() / "model.safetensors");
  const auto expect_poked = [&](const std::string& tensor, auto value) {
    const Model model(good());
    Tensors bad = good_file;
    bad.poke(tensor, value);
    model.write("model.safetensors", bad.bytes());
    expect_evaluate_refused(model.name(), {model.name(), tensor});
  };
  const std::string weight = std::string(kModule) + ".weight", scale = weight + "_scale",
                    input = std::string(kModule) + ".input_scale";
  for (const float value : {NAN, INFINITY, 0.0f, -1.0f}) expect_poked(scale, value);
  expect_poked(input, NAN);
  expect_poked(input, 1e-45f);  // its reciprocal is infinite
  expect_poked(weight, std::string("\x7F"));
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
