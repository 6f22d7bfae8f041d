// SPDX-License-Identifier: Apache-2.0
// Scale files: INC's form in both files, what other tools write, and which stored scales may be used.
#include "fp8/quant/scale_file/scale_file.h"

#include "fp8/runtime/io/tensors/npz.h"
#include "support/enum_names.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

measure::StatsName name_in(const test::TempDir& dir, std::optional<configs::Rank> rank = std::nullopt) {
  return {(dir / "p").string(), "maxabs", "MAXABS_HW", rank};
}

/// One number each.
std::vector<StoredScale> numbers(const std::vector<float>& values) {
  return collected(values, [](const float value) { return StoredScale::of(value); });
}

ScaleFile example() {
  constexpr auto channels = &StoredScale::channels;
  ScaleFile file{.modules = {{"up_proj", numbers({0.0625f}), {channels({0.5f, 0.25f}, 0)}, channels({0.5f, 2.0f}, 3)},
                             {"attn", numbers({1.0f, 2.0f, 4.0f, 0.00390625f}), numbers({8.0f}), std::nullopt},
                             {"lm_head", numbers({0.1f}), {}, StoredScale::of(0.001f)},
                             {"one_row", numbers({1.0f}), {channels({3.0f}, 0)}, channels({3.0f}, 1)}}};
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
  const auto in = [](const io::PyDict* dict, const char* key) { return &dict->at(std::string(key)); };
  const auto* node = in(in(npz.get_if<io::PyDict>(), "Nodes")->get_if<io::PyDict>(), "up_proj")->get_if<io::PyDict>();
  const auto* input = in(node, "inputs")->get_if<io::PyList>()->items.at(0).get_if<io::NdArray>();
  ASSERT_NE(input, nullptr);
  EXPECT_TRUE(input->shape.empty());  // 0-dim
  const auto* weight = in(in(node, "params")->get_if<io::PyDict>(), "weight")->get_if<io::PyDict>();
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
  EXPECT_EQ(file.find("softmax")->outputs, numbers({0.00390625f}));
  EXPECT_EQ(file.find("old")->inputs, numbers({0.5f}));
  EXPECT_EQ(file.find("old")->outputs, numbers({0.25f}));
  EXPECT_EQ(file.find("bare")->outputs, numbers({2.0f}));
  EXPECT_EQ(file.find("nobody"), nullptr);
}

TEST(ScaleFile, AScaleOfZeroIsReadAsOne) {
  const test::TempDir dir;
  write_json(dir, R"({"a": {"inputs": [0.0]}, "b": {"inputs": [0.5, 0.0]}})");
  const auto file = read_scales(name_in(dir));
  EXPECT_EQ(file.find("a")->inputs[0].values, std::vector<float>{1.0f});
  EXPECT_EQ(file.find("b")->inputs[0].values, std::vector<float>{0.5f});
  EXPECT_THAT(file.warnings, ElementsAre(HasSubstr("2 scales are 0 (the first in 'a')")));
}

TEST(ScaleFile, MalformedFilesAreNamed) {
  const auto error = [](const std::string& nodes) {
    const test::TempDir dir;
    write_json(dir, nodes);
    return error_of([&] { read_scales(name_in(dir)); });
  };
  EXPECT_GOLDEN(error(text));
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
  EXPECT_REFUSED(read_scales(name_in(dir)), "MAXABS_HW.json", "MAXABS_HW.npz", "disagree",
                 "Nodes.up_proj.params.weight.0[1]: 2.0 and 3.0");
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
    EXPECT_THAT(choice.warning, HasSubstr("p_hooks_maxabs_MAXABS_HW.json: made of another " + word));
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
  EXPECT_THAT(choice.warning, HasSubstr("p_hooks_maxabs_MAXABS_HW.json"));
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

// Scale files of several ranks: the larger scale_inv, per channel element by element, experts by their inputs.

const std::string kMoe = "mlp.moe_op";

ScaleFile rank_file(float base) {
  ScaleFile file;
  file.modules = {
      {"q", numbers({base}), {StoredScale::channels({base, 4 - base})}, StoredScale::channels({9 - base, base}, 3)},
      {kMoe, numbers({base, base + 0.25f, base + 0.5f}), numbers({base}), std::nullopt},
      {kMoe + ".w13_list.0", numbers({1}), {}, StoredScale::channels({base}, 2)},
      {kMoe + ".w13_list.1", numbers({1}), {}, StoredScale::channels({base + 1}, 2)}};
  return file;
}

TEST(ScaleRanks, TheLargerScaleInvOfEveryChannelWins) {
  std::vector<std::string> warnings;
  const auto out = unify({rank_file(1), rank_file(2)}, {"a", "b"}, false, warnings);
  EXPECT_EQ(*out.find("q"),
            (ModuleScales{"q", numbers({2}), {StoredScale::channels({2, 3})}, StoredScale::channels({8, 2}, 3)}));
  EXPECT_EQ(out.find(kMoe)->inputs, numbers({2, 2.25f, 2.5f}));
  EXPECT_EQ(out.modules.size(), 4u);
}

TEST(ScaleRanks, ExpertsStandSideBySideAndGoBack) {
  const ScaleFile a = rank_file(1), b = rank_file(2);
  std::vector<std::string> warnings;
  const auto out = unify({a, b}, {"a", "b"}, true, warnings);
  EXPECT_EQ(out.find(kMoe)->inputs, numbers({2, 1.25f, 1.5f, 2.25f, 2.5f}));
  EXPECT_EQ(out.find(kMoe + ".w13_list.3")->weight, StoredScale::channels({3}, 2));  // a list of one stays a list
  const auto back = expand(out, {1, 2}, "out");
  EXPECT_EQ(back.local_rank, 1);
  ASSERT_EQ(back.modules.size(), 4u);
  EXPECT_EQ(back.find(kMoe)->inputs, numbers({2, 2.25f, 2.5f}));
  EXPECT_EQ(back.find(kMoe + ".w13_list.1")->weight, b.find(kMoe + ".w13_list.1")->weight);
  EXPECT_EQ(back.find("q")->weight, out.find("q")->weight);
}

TEST(ScaleRanks, DifferentSizesAreAnError) {
  auto b = rank_file(2);
  b.modules[0].weight->values.push_back(1);
  std::vector<std::string> warnings;
  EXPECT_THROW(unify({rank_file(1), b}, {"a", "b"}, false, warnings), io::Error);
}

TEST(ScaleRanks, CacheRangesReachTheOutputOfTheProduct) {
  ScaleFile file{.modules = {{"l.matmul_qk", numbers({0.5f, 2}), numbers({1}), std::nullopt},
                             {"l.matmul_av", numbers({0.5f, 2}), numbers({7}), std::nullopt},
                             {"l.k_cache", numbers({4}), numbers({4}), std::nullopt},
                             {"l.v_cache", numbers({8}), numbers({8}), std::nullopt}}};
  EXPECT_EQ(apply_cache_ranges(file).size(), 2u);
  EXPECT_EQ(file.modules[0].inputs[1], StoredScale::of(4));
  EXPECT_EQ(file.modules[0].outputs[0], StoredScale::of(2));
  EXPECT_EQ(file.modules[1].inputs[1], StoredScale::of(8));
  EXPECT_EQ(file.modules[1].outputs[0], StoredScale::of(7));  // was not the product
}

}  // namespace
}  // namespace fp8::quant
