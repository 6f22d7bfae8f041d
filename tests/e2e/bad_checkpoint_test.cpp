// SPDX-License-Identifier: Apache-2.0
// Source checkpoints that are broken or lie: quantize and evaluate name the file and leave nothing behind. The rules
// are those of the safetensors format (offsets cover the buffer, sizes follow from shapes, a header has at most 100 000
// 000 bytes).
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

using ::testing::IsEmpty;

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
  const std::string whole = test::read_file(std::filesystem::path(demo_model()) / kFile);
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
  const std::vector<std::pair<const char*, io::Json>> lies = {
      {"data_offsets", {begin, std::uint64_t{1} << 62}},
      {"data_offsets", {-1, 5}},
      {"data_offsets", {end, begin}},
      {"data_offsets", {begin + 2, end + 2}},
      {"data_offsets", "all"},
      {"shape", {std::uint64_t{1} << 40, std::uint64_t{1} << 40}},
      {"shape", {-1}},
      {"shape", 3},
      {"dtype", "Q4"},
      {"dtype", 4}};
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
  const std::string good = test::read_file(std::filesystem::path(demo_model()) / "config.json");
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
  expect_refused(fp8({"measure", "--model", (folder / "none").string(), "--data", calibration_text(), "--out",
                      (folder / "out").string()}),
                 {"none"});
  expect_refused(fp8({"measure", "--model", (folder / "none.pt").string(), "--data", calibration_text(), "--out",
                      (folder / "out").string()}),
                 {"none.pt"});
  write_file(folder / "junk.pt", "not a TorchScript file");
  expect_refused(fp8({"measure", "--model", (folder / "junk.pt").string(), "--data", calibration_text(), "--out",
                      (folder / "out").string()}));
  EXPECT_THAT(names_in(folder.path()), ::testing::ElementsAre("junk.pt"));
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
    expect_refused(fp8_limited(RLIMIT_AS, rlim_t{4} << 30,
                               {"evaluate", "--threads", "2", "--model", model.name(), "--data", heldout_text()}),
                   {model.name()});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace fp8::e2e
