// SPDX-License-Identifier: Apache-2.0
// Outputs that can't be written, or must not be: the input, files of the user, full and read-only disks,
// two runs at once.
#include <sys/mount.h>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

class BadOutput : public test::InFolder {};

TEST_F(BadOutput, TheInputIsNeverTouched) {
  const Model model;
  const auto before = contents(model.path());
  const std::string link = (folder / "link").string();
  std::filesystem::create_directory_symlink(model.path(), link);
  for (const auto& [from, to] : {std::pair(link, model.name()), std::pair(model.name(), link)})
    expect_refused(fp8("quantize --dynamic --overwrite --model {} --out {}", from, to),
                   {"which is MODEL, allowed: another path"}, 2);
  expect_refused(fp8("quantize --json --dynamic --model {} --out {}", model.name(), model.name() + "/inside"),
                 {"inside the input"});
  EXPECT_EQ(contents(model.path()), before);
}

TEST_F(BadOutput, FilesInTheWayAreNamed) {
  write_file(folder / "file", "");
  for (const std::string name : {"file", "file/below"})
    expect_refused(fp8("measure --model $DEMO --data $CALIB --samples 1 --out {}", folder / name), {"file"});
  for (const std::string& out : {std::string("/proc/fp8"), folder.path().string(), (folder / "file/below").string()})
    expect_refused(fp8("evaluate --json --model $DEMO --data $HELDOUT --samples 1 --dump-logits {}", out));
  expect_refused(fp8("quantize --dynamic --model $DEMO --out /proc/fp8"), {"/proc/fp8"});
  expect_refused(fp8("quantize --dynamic --model $DEMO --out {}", folder / std::string(300, 'x')));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("file"));
}

TEST_F(BadOutput, AFileSizeLimitIsAFailedWrite) {
  expect_refused(fp8_limited(RLIMIT_FSIZE, 100000, args("quantize --dynamic --model $DEMO --out {}", folder / "out")));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

/// A tmpfs of some bytes, where mounting is allowed.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& options)
      : mounted_(mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return folder_.path(); }
  bool make_read_only() const { return mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0; }

 private:
  test::TempDir folder_;
  bool mounted_;
};

TEST_F(BadOutput, AFullDiskKeepsNothing) {
  for (const std::string size : {"8k", "1m"}) {
    const SmallDisk disk("size=" + size);
    if (!disk.mounted()) GTEST_SKIP() << "a small tmpfs can't be mounted here (not root)";
    const std::string out = (disk.path() / "out").string();
    expect_refused(fp8("quantize --json --dynamic --model $DEMO --out {}", out), {"no space left on device"});
    expect_refused(fp8("evaluate --json --model $DEMO --data $HELDOUT --samples 40 --dump-logits {}", out),
                   {"no space left on device"});
    EXPECT_THAT(names_in(disk.path()), IsEmpty());
  }
  // A measurement is three files of some 15, 6 and 1 kB: the disk fills up at each of them.
  for (const std::string size : {"4k", "16k", "24k"}) {
    const SmallDisk disk("size=" + size);
    ASSERT_TRUE(disk.mounted());
    const std::string out = (disk.path() / "deep/out").string(), config = (folder / "config.json").string();
    expect_refused(fp8("measure --json --model $DEMO --data $CALIB --samples 1 --out {}", out),
                   {"no space left on device"});
    EXPECT_THAT(names_in(disk.path()), IsEmpty()) << size;
    write_config(config, R"("mode": "MEASURE", "measure_exclude": "NONE")", out + "/s");
    expect_evaluate_refused(demo_model(), {"no space left on device"}, {{"QUANT_CONFIG", config}});
    EXPECT_THAT(names_in(disk.path()), IsEmpty()) << size;
  }
}

TEST_F(BadOutput, AReadOnlyDiskIsNoticedBeforeTheWork) {
  const SmallDisk disk("size=1m");
  if (!disk.mounted() || !disk.make_read_only()) GTEST_SKIP() << "a small tmpfs can't be mounted here (not root)";
  const std::string out = (disk.path() / "out").string();
  expect_refused(fp8("quantize --dynamic --model $DEMO --out {}", out), {"ead-only"});
  expect_refused(fp8("measure --model $DEMO --data $CALIB --out {}", out), {"can't be written", "ead-only"});
}

TEST_F(BadOutput, OfTwoRunsOnOneOutputOneSaysSo) {
  test::Run runs[2];
  const auto start = [&](int i) { runs[i] = fp8("quantize --dynamic --model $DEMO --out {}", folder / "out"); };
  for (int round = 0; round < 3; ++round) {
    std::filesystem::remove_all(folder / "out");
    std::thread other(start, 1);
    start(0);
    other.join();
    // Either they overlapped and the second met the lock, or the second came when the first had finished.
    const int failed = runs[0].code == 0 ? 1 : 0;
    EXPECT_EQ(runs[1 - failed].code, 0) << runs[1 - failed].err;
    expect_refused(runs[failed]);
    EXPECT_THAT(runs[failed].err,
                AnyOf(HasSubstr("another run is writing it now"), HasSubstr("exists and is not empty")));
    EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
  }
}

// Measurements, QUANT_CONFIG files and texts that can't be used: refused by quantize --measurements and by QUANT_CONFIG
// on load.

TEST(BadMeasurement, IsRefusedByQuantizeAndOnLoadNamingTheModule) {
  const test::TempDir folder;
  const auto stats = folder / "stats", file = stats / "inc_output_hooks_maxabs.json";
  const std::string config = write_config(folder / "quantize.json", R"("mode": "QUANTIZE")", stats / "inc_output");
  measure(demo_model(), calibration_text(), stats, "1");
  std::filesystem::remove(stats / "inc_output_hooks_maxabs.npz");  // which would say something else
  const io::Json good = io::read_json(file);
  const std::string module = "model.layers.0.mlp.up_proj";
  for (const char* inputs : {"[]", "[[[1.0], [2.0]]]", R"([[["3"]]])"}) {
    SCOPED_TRACE(inputs);
    io::Json bad = good;
    bad["Nodes"][module]["inputs"] = io::Json::parse(inputs);
    write_file(file, bad.dump());
    expect_quantize_refused(demo_model(), {"--measurements", stats.string()}, {module});
  }
  io::Json bad = good;
  bad["NumSamples"] = "many";
  write_file(file, bad.dump());
  expect_evaluate_refused(demo_model(), {file.filename().string(), "NumSamples"}, {{"QUANT_CONFIG", config}});
  bad = good;
  bad["Nodes"][module]["params"]["weight"][0][0] = 123.0;
  write_file(file, bad.dump());
  expect_evaluate_refused(demo_model(), {module, "another model"}, {{"QUANT_CONFIG", config}});
}

TEST(QuantConfigFile, ErrorsNameTheFileInEveryCommand) {
  const test::TempDir folder;
  const std::string config = (folder / "config.json").string();
  write_file(config, "[]");
  expect_evaluate_refused(demo_model(), {"config.json"}, {{"QUANT_CONFIG", config}});
  expect_quantize_refused(demo_model(), {"--config", config}, {"config.json"});
  expect_refused(fp8("measure --model $DEMO --data $CALIB --out {} --config {}", folder / "out", config),
                 {"config.json"});
  expect_refused(fp8(args("generate --model $DEMO --prompt x --tokens 1"), {{"QUANT_CONFIG", config}}),
                 {"config.json"});
  expect_evaluate_refused(demo_model(), {"none.json"}, {{"QUANT_CONFIG", (folder / "none.json").string()}});
  write_config(config, R"("mode": "MEASURE")", folder / "out/s");
  expect_refused(fp8(args("evaluate --model $DEMO --data $HELDOUT --device cpu"), {{"QUANT_CONFIG", config}}),
                 {"--device"}, 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("config.json"));
}

TEST(Texts, UnusableTextsWriteNoMeasurement) {
  const test::TempDir folder;
  const auto out = folder / "out";
  const std::string config = write_config(folder / "config.json", R"("mode": "MEASURE")", out / "s");
  write_file(folder / "empty.txt", "");
  write_file(folder / "short.txt", "abc");
  write_file(folder / "type.jsonl", "{\"text\": 3}\n");
  write_file(folder / "cut.jsonl", "{\"text\": \"a\"\n");
  write_file(folder / "text.docx", std::string(2000, 'a'));
  bool on_load = false;  // in turn: both read texts with the same code
  for (const std::string name : {"empty.txt", "short.txt", "type.jsonl", "cut.jsonl", "text.docx", "missing.txt"}) {
    SCOPED_TRACE(name);
    const auto data = folder / name;
    const auto run =
        (on_load = !on_load)
            ? fp8(args("evaluate --json --model $DEMO --data {} --seq-len 256", data), {{"QUANT_CONFIG", config}})
            : fp8("measure --json --model $DEMO --data {} --seq-len 256 --out {}", data, out);
    expect_refused(run, {name});
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  expect_refused(fp8("measure --model $DEMO --data $CALIB --skip 100000 --out {}", out), {"--skip"});
  expect_refused(fp8("measure --model $DEMO --data $CALIB --seq-len 100000 --out {}", out), {"--seq-len"});
  write_file(config, R"({"mode": "MEASURE", "allowlist": {"names": ["no such module"], "types": []}})");
  const auto nothing = fp8("measure --quiet --model $DEMO --data $CALIB --config {} --out {}", config, out);
  expect_refused(nothing, {"no module is selected"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

// Source checkpoints that are broken or lie: quantize and evaluate name the file and leave nothing behind. Each rule of
// the safetensors format has its test in runtime/io/tensors, each key of a config in quant/forms.

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

struct BadFp8Checkpoint : ::testing::Test {
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
