// SPDX-License-Identifier: Apache-2.0
// Measurements, QUANT_CONFIG files and texts that can't be used: refused by quantize --measurements and by QUANT_CONFIG
// on load.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

constexpr char kModule[] = "model.layers.0.mlp.up_proj";
constexpr char kFile[] = "inc_output_hooks_maxabs.json";

class BadMeasurement : public ::testing::Test {
 protected:
  void SetUp() override {
    measure(demo_model(), calibration_text(), stats(), "1");
    write_config(folder_ / "quantize.json", R"("mode": "QUANTIZE")", stats() / "inc_output");
  }
  std::filesystem::path stats() const { return folder_ / "stats"; }
  /// By quantize and by evaluate in turn: both read it with the same code.
  void expect_text_refused(const std::string& text, const std::vector<std::string>& words) {
    write_file(stats() / kFile, text);
    std::filesystem::remove(stats() / "inc_output_hooks_maxabs.npz");  // which would say something else
    if ((quantize_next_ = !quantize_next_))
      return expect_quantize_refused(demo_model(), {"--measurements", stats().string()}, words);
    expect_evaluate_refused(demo_model(), words, {{"QUANT_CONFIG", (folder_ / "quantize.json").string()}});
  }
  test::TempDir folder_;
  bool quantize_next_ = false;
};

TEST_F(BadMeasurement, MalformedFilesNameTheModule) {
  const io::Json good = io::read_json(stats() / kFile);
  expect_text_refused("{", {kFile});
  expect_text_refused("[]", {kFile});
  expect_text_refused(R"({"Nodes": {}, "Nodes": {}})", {kFile, "duplicate key 'Nodes'"});
  expect_text_refused(R"({"Nodes": {}})", {"no measurement"});
  const std::vector<std::pair<const char*, io::Json>> edits = {
      {"inputs", {{{-1.0}}}},          {"inputs", {{{"3"}}}},         {"inputs", {{{1.0}, {2.0}}}},
      {"inputs", {io::Json::array()}}, {"inputs", io::Json::array()}, {"inputs", 3}};
  for (const auto& [key, value] : edits) {
    SCOPED_TRACE(value.dump());
    io::Json bad = good;
    bad["Nodes"][kModule][key] = value;
    expect_text_refused(bad.dump(), {kModule});
  }
  io::Json bad = good;
  bad["NumSamples"] = "many";
  expect_text_refused(bad.dump(), {kFile, "NumSamples"});
  bad = good;
  bad["Nodes"][kModule]["inputs"][0][0][0] = 12345.5;
  std::string text = bad.dump();
  text.replace(text.find("12345.5"), 7, "1e999  ");
  expect_text_refused(text, {kFile});
}

TEST_F(BadMeasurement, MeasurementOfAnotherModelIsRefused) {
  const io::Json good = io::read_json(stats() / kFile);
  io::Json bad = good;
  bad["Nodes"][kModule]["params"]["weight"][0][0] = 123.0;  // another weight
  expect_text_refused(bad.dump(), {kModule, "another model"});
  bad = good;
  bad["Nodes"]["model.layers.9.mlp.up_proj"] = good["Nodes"][kModule];  // a module too many
  expect_text_refused(bad.dump(), {"model.layers.9.mlp.up_proj", "another model"});
  bad = good;
  bad["Nodes"].erase(kModule);  // one too few
  expect_text_refused(bad.dump(), {"no measurement of module", kModule});
}

TEST(QuantConfigFile, ErrorsNameTheKeyInEveryCommand) {
  const test::TempDir folder;
  const std::string config = (folder / "config.json").string();
  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"({"mode": "MEASURE",})", "config.json:1:"},
      {R"({"mod": "MEASURE"})", "unknown key 'mod', did you mean 'mode'?"},
      {R"({"mode": "MEASURE", "mode": "MEASURE"})", "duplicate key 'mode'"},
      {R"({"mode": 3})", "key 'mode'"},
      {R"({"scale_method": "max_abs"})", "scale_method"},
      {R"({"blocklist": {"names": ["("]}})", "blocklist"},
      {"[]", "config.json"}};
  for (const auto& [text, word] : bad) {
    SCOPED_TRACE(text);
    write_file(config, text);
    expect_evaluate_refused(demo_model(), {"config.json", word}, {{"QUANT_CONFIG", config}});
    if (text != bad.back().first) continue;
    expect_quantize_refused(demo_model(), {"--config", config}, {"config.json", word});
    expect_refused(fp8("measure --model $DEMO --data $CALIB --out {} --config {}", folder / "out", config),
                   {"config.json", word});
  }
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
  for (const std::string name : {"empty.txt", "short.txt", "type.jsonl", "cut.jsonl", "text.docx", "missing.txt"}) {
    SCOPED_TRACE(name);
    const std::string data = (folder / name).string();
    expect_refused(fp8("measure --json --model $DEMO --data {} --seq-len 256 --out {}", data, out), {name});
    expect_refused(fp8(args("evaluate --json --model $DEMO --data {}", data), {{"QUANT_CONFIG", config}}), {name});
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  expect_refused(fp8("measure --model $DEMO --data $CALIB --skip 100000 --out {}", out), {"--skip"});
  expect_refused(fp8("measure --model $DEMO --data $CALIB --seq-len 100000 --out {}", out), {"--seq-len"});
  write_file(config, R"({"mode": "MEASURE", "allowlist": {"names": ["no such module"], "types": []}})");
  const auto nothing = fp8("measure --quiet --model $DEMO --data $CALIB --config {} --out {}", config, out);
  expect_refused(nothing, {"no module is selected"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace fp8::e2e
