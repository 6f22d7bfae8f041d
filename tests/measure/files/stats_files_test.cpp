// SPDX-License-Identifier: Apache-2.0
// Names of measurement and scale files, their two forms, and files that appear together.
#include "fp8/measure/files/stats_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::measure {
namespace {

namespace fs = std::filesystem;
using test::throws_with;

TEST(StatsName, IsTakenFromPaths) {
  const auto expect = [](const std::string& path, const std::string& prefix, const std::string& observer,
                         const std::string& method, int index, int world) {
    const auto name = parse_stats_name(path);
    ASSERT_TRUE(name.has_value()) << path;
    EXPECT_EQ(name->prefix, prefix);
    EXPECT_EQ(name->observer, observer);
    EXPECT_EQ(name->method, method);
    EXPECT_EQ(name->rank.has_value(), world > 0);
    if (world > 0) {
      EXPECT_EQ(name->rank->index, index);
      EXPECT_EQ(name->rank->world, world);
    }
    EXPECT_EQ(name->base() + fs::path(path).extension().string(), path);
  };
  expect("p_hooks_maxabs.json", "p", "maxabs", "", 0, 0);
  expect("a/b.c/p_hooks_maxabs_3_8.npz", "a/b.c/p", "maxabs", "", 3, 8);
  expect("p_hooks_maxabs_per_channel.json", "p", "maxabs_per_channel", "", 0, 0);
  expect("p_hooks_maxabs_MAXABS_HW.json", "p", "maxabs", "MAXABS_HW", 0, 0);
  expect("p_hooks_maxabs_ACT_MAXABS_POW2_WEIGHTS_PCS_OPT_POW2_0_16.npz", "p", "maxabs",
         "ACT_MAXABS_POW2_WEIGHTS_PCS_OPT_POW2", 0, 16);
  expect("x_hooks_y/p_hooks_mine_8_8.json", "x_hooks_y/p", "mine_8_8", "", 0, 0);  // no rank 8 of 8
  expect("p_hooks_shape_0_1.json", "p", "shape", "", 0, 1);
}

// As Intel Neural Compressor writes them.
TEST(StatsName, IsThatOfItsFiles) {
  const StatsName alone{"out/inc_output"};
  EXPECT_EQ(alone.json(), "out/inc_output_hooks_maxabs.json");
  EXPECT_EQ(alone.npz(), "out/inc_output_hooks_maxabs.npz");
  EXPECT_EQ(alone.mod_list(), "out/inc_output_hooks_maxabs_mod_list.json");
  const StatsName rank = alone.with_rank(configs::Rank{3, 8});
  EXPECT_EQ(rank.json(), "out/inc_output_hooks_maxabs_3_8.json");
  EXPECT_EQ(rank.mod_list(), "out/inc_output_hooks_maxabs_3_8_mod_list.json");
  const StatsName scales{"./hqt/measure", "maxabs", "MAXABS_POW2", configs::Rank{0, 2}};
  EXPECT_EQ(scales.npz(), "./hqt/measure_hooks_maxabs_MAXABS_POW2_0_2.npz");
}

TEST(StatsName, BeginsWithAPrefixNotAFolder) {
  EXPECT_EQ(StatsName{"stats"}.json(), "stats_hooks_maxabs.json");
  EXPECT_EQ(StatsName{"out/v1.5"}.json(), "out/v1.5_hooks_maxabs.json");  // no extension is cut off
  EXPECT_EQ(StatsName{"out/"}.npz(), "out/_hooks_maxabs.npz");
}

TEST(StatsName, EverythingElseIsNone) {
  for (const char* path : {"p_hooks_maxabs_mod_list.json", "p_hooks_maxabs_0_2_mod_list.json", "p_hooks_maxabs.txt",
                           "config.json", "p_hooks_.json", "a_hooks_maxabs/x.json", ""}) {
    EXPECT_FALSE(parse_stats_name(path).has_value()) << path;
  }
}

TEST(StatsName, ListsAFolderWhateverElseIsInIt) {
  const test::TempDir dir;
  for (const char* file :
       {"p_hooks_maxabs_1_2.json", "p_hooks_maxabs_0_2.json", "p_hooks_maxabs_0_2.npz",
        "p_hooks_maxabs_0_2_mod_list.json", "p_hooks_maxabs_MAXABS_HW_0_2.npz", "orig_p_hooks_maxabs_0_2.json",
        "orig_q_hooks_maxabs.json", "notes.json", "p_hooks_maxabs_0_2.fingerprint", "p_hooks_maxabs_0_2.json~"}) {
    std::ofstream(dir / file) << "{}";
  }
  fs::create_directory(dir / "backup_p_hooks_maxabs.json");
  std::vector<std::string> names;
  for (const auto& name : list_stats(dir.path())) names.push_back(fs::path(name.base()).filename());
  EXPECT_EQ(names, (std::vector<std::string>{"orig_q_hooks_maxabs", "p_hooks_maxabs_0_2", "p_hooks_maxabs_1_2",
                                             "p_hooks_maxabs_MAXABS_HW_0_2"}));
  EXPECT_THROW(list_stats(dir / "gone"), io::Error);
}

TEST(StatsFiles, ArraysBecomeNestedLists) {
  io::PyDict dict;
  dict.insert("scalar", io::NdArray{{}, {0.5f}});
  dict.insert("list", io::NdArray{{2}, {1, 2}});
  dict.insert("table", io::NdArray{{2, 2}, {1, 2, 3, 4}});
  dict.insert("none", io::NdArray{{1'000'000'000, 0}, {}});  // no billion empty lists
  dict.insert(std::int64_t{0}, io::PyTuple{{io::PyValue(1), io::PyValue(true), io::PyValue("x"), io::PyValue()}});
  EXPECT_EQ(stats_json(dict),
            io::Json::parse(R"({"scalar": 0.5, "list": [1.0, 2.0], "table": [[1.0, 2.0], [3.0, 4.0]], "none": [], )"
                            R"("0": [1, true, "x", null]})"));
}

TEST(StatsFiles, BothFormsMustAgree) {
  const test::TempDir dir;
  const StatsName name{(dir / "p").string()};
  const auto write = [&](const std::string& json) {
    io::PyDict params, node, nodes, top;
    node.insert("inputs", io::PyList{{io::NdArray{{1, 1}, {0.1f}}}});
    params.insert("weight", io::NdArray{{2, 1}, {1, 2}});
    node.insert("params", params);
    nodes.insert("m", node);
    top.insert("Nodes", nodes);
    io::write_npz(name.npz(), top);
    std::ofstream(name.json()) << R"({"Nodes": )" << json << "}";
  };
  // As double or as float, with or without what is empty: the same.
  for (const char* same :
       {R"({"m": {"inputs": [[[0.1]]], "params": {"weight": [[1], [2]]}}})",
        R"({"m": {"outputs": [], "inputs": [[[0.10000000149011612]]], "params": {"weight": [[1], [2]]}}})"}) {
    write(same);
    EXPECT_EQ(read_stats(name)["Nodes"].size(), 1u);
  }
  const auto disagrees = [&](const std::string& json, const std::string& where) {
    write(json);
    EXPECT_TRUE(throws_with(
        {"p_hooks_maxabs.json", "p_hooks_maxabs.npz", "disagree", where, "remove the one that is out of date"},
        [&] { read_stats(name); }))
        << json;
  };
  disagrees(R"({"m": {"inputs": [[[0.2]]], "params": {"weight": [[1], [2]]}}})",
            "Nodes.m.inputs[0][0][0]: 0.2 and 0.1");
  disagrees(R"({"m": {"inputs": [[[0.1]]], "params": {"weight": [[1]]}}})", "Nodes.m.params.weight: 1 and 2 values");
  disagrees(R"({"m": {"inputs": [[[0.1]]]}})", "'params' is in the second only");
  disagrees(R"({"n": {}, "m": {"inputs": [[[0.1]]], "params": {"weight": [[1], [2]]}, "x": 1}})",
            "'x' is in the first only");
}

TEST(StatsFiles, NothingAppearsUnlessAllCanBeWritten) {
  const test::TempDir dir;
  std::ofstream(dir / "file") << "x";
  EXPECT_THROW(write_together({{dir / "new/a.json", "1"}, {dir / "file/b.json", "2"}}), io::Error);
  EXPECT_FALSE(fs::exists(dir / "new"));
  EXPECT_EQ(write_together({{dir / "new/a.json", "1"}, {dir / "new/b.json", "2"}}),
            (std::vector<fs::path>{dir / "new/a.json", dir / "new/b.json"}));
}

}  // namespace
}  // namespace fp8::measure
