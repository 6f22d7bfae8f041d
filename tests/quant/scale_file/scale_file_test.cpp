// SPDX-License-Identifier: Apache-2.0
// Scale files: INC's form in both files, what other tools write, and which stored scales may be used.
#include "fp8/quant/scale_file/scale_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "support/enum_names.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::throws_with;

measure::StatsName name_in(const test::TempDir& dir, std::optional<configs::Rank> rank = std::nullopt) {
  return {(dir / "p").string(), "maxabs", "MAXABS_HW", rank};
}

ScaleFile example() {
  ScaleFile file;
  file.modules.push_back({"up_proj",
                          {StoredScale::of(0.0625f)},
                          {StoredScale::channels({0.5f, 0.25f})},
                          StoredScale::channels({0.5f, 2.0f}, 3)});
  file.modules.push_back(
      {"attn",
       {StoredScale::of(1.0f), StoredScale::of(2.0f), StoredScale::of(4.0f), StoredScale::of(0.00390625f)},
       {StoredScale::of(8.0f)},
       std::nullopt});
  file.modules.push_back({"lm_head", {StoredScale::of(0.1f)}, {}, StoredScale::of(0.001f)});
  file.modules.push_back(
      {"one_row", {StoredScale::of(1.0f)}, {StoredScale::channels({3.0f})}, StoredScale::channels({3.0f}, 1)});
  return file;
}

void write_json(const test::TempDir& dir, const std::string& nodes) {
  std::ofstream(dir / "p_hooks_maxabs_MAXABS_HW.json")
      << R"({"GlobalRank": null, "LocalRank": null, "Mode": "Scale", "Nodes": )" << nodes << "}";
}

TEST(ScaleFile, RoundTripsThroughEitherFile) {
  for (const char* removed : {".json", ".npz", ".none"}) {
    const test::TempDir dir;
    const auto name = name_in(dir, configs::Rank{2, 8});
    const auto paths = write_scales(name, example());
    EXPECT_EQ(paths, (std::vector<fs::path>{dir / "p_hooks_maxabs_MAXABS_HW_2_8.json",
                                            dir / "p_hooks_maxabs_MAXABS_HW_2_8.npz"}));
    fs::remove(name.base() + removed);
    const auto read = read_scales(name);
    EXPECT_EQ(read.modules, example().modules) << removed;
    EXPECT_EQ(read.local_rank, 2);
    EXPECT_TRUE(read.warnings.empty());
  }
}

TEST(ScaleFile, IsWrittenInIncsForm) {
  const test::TempDir dir;
  auto file = example();
  file.modules.resize(1);
  write_scales(name_in(dir), file);
  EXPECT_EQ(io::read_json(name_in(dir).json()),
            io::Json::parse(R"({"GlobalRank": null, "LocalRank": null, "Mode": "Scale", "Nodes":
    {"up_proj": {"inputs": [0.0625], "outputs": [[0.5, 0.25]],
                 "params": {"weight": {"0": [0.5, 2.0], "1": [1.0, 1.0, 1.0]}}}}})"));
  const auto npz = io::read_npz(name_in(dir).npz());
  const auto& node = *npz.get_if<io::PyDict>()
                          ->at(std::string("Nodes"))
                          .get_if<io::PyDict>()
                          ->at(std::string("up_proj"))
                          .get_if<io::PyDict>();
  const auto* input = node.at(std::string("inputs")).get_if<io::PyList>()->items.at(0).get_if<io::NdArray>();
  ASSERT_NE(input, nullptr);
  EXPECT_TRUE(input->shape.empty());  // 0-dim
  const auto* weight =
      node.at(std::string("params")).get_if<io::PyDict>()->at(std::string("weight")).get_if<io::PyDict>();
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->at(std::int64_t{0}).get_if<io::NdArray>()->data, (std::vector<float>{0.5f, 2.0f}));
  EXPECT_EQ(weight->at(std::int64_t{1}).get_if<io::NdArray>()->shape, std::vector<std::int64_t>{3});
}

TEST(ScaleFile, ReadsOtherPeoplesForms) {
  const test::TempDir dir;
  write_json(dir, R"({"softmax": {"inputs": [], "outputs": [0.00390625], "params": {}},
                      "old": {"input": [0.5], "output": [0.25]}, "bare": {"inputs": [1.0], "outputs": 2.0}})");
  const auto file = read_scales(name_in(dir));
  EXPECT_TRUE(file.find("softmax")->inputs.empty());
  EXPECT_EQ(file.find("softmax")->outputs, std::vector<StoredScale>{StoredScale::of(0.00390625f)});
  EXPECT_EQ(file.find("old")->inputs, std::vector<StoredScale>{StoredScale::of(0.5f)});
  EXPECT_EQ(file.find("old")->outputs, std::vector<StoredScale>{StoredScale::of(0.25f)});
  EXPECT_EQ(file.find("bare")->outputs, std::vector<StoredScale>{StoredScale::of(2.0f)});
  EXPECT_EQ(file.find("nobody"), nullptr);
}

TEST(ScaleFile, AScaleOfZeroIsReadAsOne) {
  const test::TempDir dir;
  write_json(dir, R"({"a": {"inputs": [0.0]}, "b": {"inputs": [0.5, 0.0]}})");
  const auto file = read_scales(name_in(dir));
  EXPECT_EQ(file.find("a")->inputs[0].values, std::vector<float>{1.0f});
  EXPECT_EQ(file.find("b")->inputs[0].values, std::vector<float>{0.5f});
  ASSERT_EQ(file.warnings.size(), 1u);
  EXPECT_NE(file.warnings[0].find("2 scales are 0 (the first in 'a')"), std::string::npos) << file.warnings[0];
}

TEST(ScaleFile, MalformedFilesAreNamed) {
  const auto fails = [](const std::vector<std::string>& words, const std::string& nodes) {
    const test::TempDir dir;
    write_json(dir, nodes);
    EXPECT_TRUE(throws_with(words, [&] { read_scales(name_in(dir)); })) << nodes;
  };
  fails({"p_hooks_maxabs_MAXABS_HW.json", "'Nodes'"}, "[]");
  fails({"Nodes.m", "expected an object", "number"}, R"({"m": 1})");
  fails({"Nodes.m.inputs", "list of scales", "string"}, R"({"m": {"inputs": "x"}})");
  fails({"Nodes.m.inputs[1]", "finite scale > 0", "-0.5"}, R"({"m": {"inputs": [1, -0.5]}})");
  fails({"Nodes.m.inputs[0]", "finite scale > 0"}, R"({"m": {"inputs": [1e39]}})");
  fails({"Nodes.m.inputs[0]", "expected a scale", "[]"}, R"({"m": {"inputs": [[]]}})");
  fails({"Nodes.m.params.weight", "per output channel"}, R"({"m": {"params": {"weight": {"0": [1]}}}})");
  fails({"Nodes.m.params.weight.1", "expected a scale", "true"},
        R"({"m": {"params": {"weight": {"0": [1], "1": [true]}}}})");
}

TEST(ScaleFile, WhatCannotBeWrittenIsNamed) {
  const test::TempDir dir;
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    ScaleFile file;
    file.modules.push_back({"m", {StoredScale::of(bad)}, {}, std::nullopt});
    EXPECT_THROW(write_scales(name_in(dir), file), std::invalid_argument);
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(ScaleFile, DisagreeingFilesAreAnError) {
  const test::TempDir dir;
  write_scales(name_in(dir), example());
  auto other = example();
  other.modules[0].weight->values[1] = 3.0f;
  const test::TempDir elsewhere;
  write_scales(name_in(elsewhere), other);
  fs::copy_file(name_in(elsewhere).npz(), name_in(dir).npz(), fs::copy_options::overwrite_existing);
  EXPECT_TRUE(
      throws_with({"MAXABS_HW.json", "MAXABS_HW.npz", "disagree", "Nodes.up_proj.params.weight.0[1]: 2.0 and 3.0"},
                  [&] { read_scales(name_in(dir)); }));
}

TEST(ScaleChoice, StatesHaveNames) { test::check_names<ScaleState>(); }

TEST(ScaleChoice, FreshScalesAreUsedInSilence) {
  const test::TempDir dir;
  EXPECT_EQ(choose_scales(name_in(dir), {"m", "c", "x"}, false).state, ScaleState::missing);
  write_scales(name_in(dir), example(), ScaleOrigin{"m", "c", "x"});
  const auto choice = choose_scales(name_in(dir), {"m", "c", "x"}, false);
  EXPECT_EQ(choice.state, ScaleState::fresh);
  EXPECT_EQ(choice.warning, "");
  ASSERT_TRUE(choice.scales.has_value());
  EXPECT_EQ(choice.scales->modules, example().modules);
  EXPECT_FALSE(choose_scales(name_in(dir), {"m", "c", "x"}, true).scales.has_value());
}

TEST(ScaleChoice, StaleScalesNeverWin) {
  const test::TempDir dir;
  write_scales(name_in(dir), example(), ScaleOrigin{"m", "c", "x"});
  const auto changed = [&](const ScaleOrigin& wanted, const std::string& word) {
    const auto choice = choose_scales(name_in(dir), wanted, false);
    EXPECT_EQ(choice.state, ScaleState::stale);
    EXPECT_FALSE(choice.scales.has_value());
    EXPECT_NE(choice.warning.find("p_hooks_maxabs_MAXABS_HW.json: made of another " + word), std::string::npos)
        << choice.warning;
  };
  changed({"M", "c", "x"}, "model");
  changed({"m", "C", "x"}, "measurement");
  changed({"m", "c", "X"}, "scale method");
  changed({"M", "C", "x"}, "model, measurement");
}

TEST(ScaleChoice, ForeignScalesAreUsedWithAWarningUnlessRecalculated) {
  const test::TempDir dir;
  write_scales(name_in(dir), example());
  auto choice = choose_scales(name_in(dir), {"m", "c", "x"}, false);
  EXPECT_EQ(choice.state, ScaleState::foreign);
  EXPECT_TRUE(choice.scales.has_value());
  EXPECT_NE(choice.warning.find("p_hooks_maxabs_MAXABS_HW.json"), std::string::npos) << choice.warning;
  choice = choose_scales(name_in(dir), {"m", "c", "x"}, true);
  EXPECT_FALSE(choice.scales.has_value());
  EXPECT_EQ(choice.warning, "");

  // Another tool's files in the place of ours: the fingerprint beside them is not theirs.
  write_scales(name_in(dir), example(), ScaleOrigin{"m", "c", "x"});
  auto other = example();
  other.modules[0].inputs[0] = StoredScale::of(7.0f);
  write_scales(name_in(dir), other);
  EXPECT_EQ(choose_scales(name_in(dir), {"m", "c", "x"}, false).state, ScaleState::foreign);
}

}  // namespace
}  // namespace fp8::quant
