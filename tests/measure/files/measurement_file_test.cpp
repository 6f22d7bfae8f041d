// SPDX-License-Identifier: Apache-2.0
// Measurement files: what is written, what other tools write, and a message for everything malformed.
#include "fp8/measure/files/measurement_file.h"

#include "fp8/runtime/io/tensors/npz.h"
#include "support/enum_names.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"
#include "support/values.h"

namespace fp8::measure {
namespace {

MeasurementFile example() {
  MeasurementFile file{.num_samples = 12};
  file.modules.push_back({"model.layers.0.mlp.up_proj", {{1.5f}}, std::vector<Amax>{{0.1f}}, Amax{0.25f}});
  file.modules.push_back({"model.layers.0.self_attn.matmul_qk", {{2.0f}, {3.0f}}, std::nullopt, std::nullopt});
  file.modules.push_back({"zero", {{0.0f}}, std::nullopt, Amax{1.0f, 2.0f, 3.0f}});
  file.selected = {"model.layers.0.mlp.up_proj", "never_called"};
  return file;
}

std::string text_of(const fs::path& path) { return io::read_file(path, 1 << 20); }

void expect_equal(const MeasurementFile& a, const MeasurementFile& b) {
  EXPECT_EQ(a.num_samples, b.num_samples);
  EXPECT_EQ(a.selected, b.selected);
  ASSERT_EQ(a.modules.size(), b.modules.size());
  for (std::size_t i = 0; i < a.modules.size(); ++i) {
    EXPECT_EQ(a.modules[i].module, b.modules[i].module);
    EXPECT_EQ(a.modules[i].inputs, b.modules[i].inputs);
    EXPECT_EQ(a.modules[i].outputs, b.modules[i].outputs);
    EXPECT_EQ(a.modules[i].weight, b.modules[i].weight);
  }
}

/// Reads `json` as PREFIX_hooks_maxabs.json.
MeasurementFile read_text(const std::string& json) {
  const test::TempDir dir;
  std::ofstream(dir / "p_hooks_maxabs.json") << json;
  return read_measurements((dir / "p").string());
}

TEST(MeasurementFile, ModesHaveNames) { test::check_names<MeasurementMode>(); }

TEST(MeasurementFile, RoundTripsThroughEitherFile) {
  for (const char* removed : {"p_hooks_maxabs.npz", "p_hooks_maxabs.json"}) {
    const test::TempDir dir;
    write_measurements((dir / "p").string(), example());
    fs::remove(dir / removed);
    expect_equal(read_measurements((dir / "p").string()), example());
    expect_equal(read_measurements(dir.path().string()), example());
  }
}

TEST(MeasurementFile, OfFewerSamplesThanPlannedSaysSo) {
  auto file = example();
  EXPECT_EQ(file.shortage(), "");
  file.planned_samples = 400;
  EXPECT_EQ(file.fingerprint(), example().fingerprint()) << "the values are the same";
  for (const char* removed : {"p_hooks_maxabs.npz", "p_hooks_maxabs.json"}) {
    const test::TempDir dir;
    write_measurements((dir / "p").string(), file);
    fs::remove(dir / removed);
    EXPECT_EQ(read_measurements((dir / "p").string()).shortage(), "12 of 400 samples");
  }
  EXPECT_REFUSED(read_text(R"({"PlannedSamples": "all", "Nodes": {}})"), "PlannedSamples");
}

TEST(MeasurementFile, IsWrittenInTheFormOtherToolsRead) {
  const test::TempDir dir;
  auto file = example();
  file.modules.resize(1);
  const auto paths = write_measurements((dir / "p").string(), file);
  EXPECT_EQ(paths, (std::vector<fs::path>{dir / "p_hooks_maxabs.json", dir / "p_hooks_maxabs.npz",
                                          dir / "p_hooks_maxabs_mod_list.json"}));
  const auto json = io::read_json(paths[0]);
  EXPECT_EQ(json, io::Json::parse(R"({"NumSamples": 12, "GlobalRank": null, "LocalRank": null, "Mode": "DynamicRange",
    "Nodes": {"model.layers.0.mlp.up_proj": {"inputs": [[[1.5]]], "outputs": [[[0.10000000149011612]]],
                                             "params": {"weight": [[0.25]]}}}})"))
      << text_of(paths[0]);
  EXPECT_EQ(text_of(paths[0]).rfind("{\n    \"NumSamples\": 12,\n", 0), 0u);  // indent 4
  EXPECT_EQ(io::read_json(paths[2]), io::Json(file.selected));
  const auto npz = io::read_npz(paths[1]);
  const auto in = [](const io::PyValue& dict, const char* key) {
    return dict.get_if<io::PyDict>()->at(std::string(key));
  };
  const io::PyValue inputs = in(in(in(npz, "Nodes"), "model.layers.0.mlp.up_proj"), "inputs");
  const auto* input = inputs.get_if<io::PyList>()->items.at(0).get_if<io::NdArray>();
  ASSERT_NE(input, nullptr);
  EXPECT_EQ(input->shape, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(input->data, std::vector<float>{1.5f});
}

TEST(MeasurementFile, EqualMeasurementsGiveEqualBytes) {
  const test::TempDir dir;
  write_measurements((dir / "a").string(), example());
  write_measurements((dir / "b").string(), example());
  for (const char* end : {"_hooks_maxabs.json", "_hooks_maxabs.npz", "_hooks_maxabs_mod_list.json"})
    EXPECT_EQ(text_of(dir / (std::string("a") + end)), text_of(dir / (std::string("b") + end)));
}

TEST(MeasurementFile, CachesStandInAFileOfTheirOwn) {
  const test::TempDir dir;
  auto file = example();
  file.kv_cache.push_back({"model.layers.0.self_attn.k_cache", {{2.5f, 0.1f}}, std::nullopt, std::nullopt});
  EXPECT_EQ(file.fingerprint(), example().fingerprint());
  const auto paths = write_measurements((dir / "p").string(), file);
  ASSERT_EQ(paths.size(), 4u);
  EXPECT_EQ(paths[3], dir / "p_hooks_maxabs.kv_cache");
  EXPECT_EQ(io::read_json(paths[0])["Nodes"].size(), 3u);  // not in INC's
  EXPECT_EQ(io::read_json(paths[3])["Nodes"],
            io::Json::parse(R"({"model.layers.0.self_attn.k_cache": {"inputs": [[[2.5], [0.10000000149011612]]]}})"));
  const auto read = read_measurements(dir.path().string());
  expect_equal(read, example());
  ASSERT_EQ(read.kv_cache.size(), 1u);
  EXPECT_EQ(read.kv_cache[0].module, "model.layers.0.self_attn.k_cache");
  EXPECT_EQ(read.kv_cache[0].inputs, (std::vector<Amax>{{2.5f, 0.1f}}));

  const auto with_cache = [&](const std::string& text) {
    std::ofstream(paths[3]) << text;
    return read_measurements((dir / "p").string());
  };
  const std::string digest = "{\"measurement\": \"" + file.fingerprint() + "\", \"Nodes\": ";
  EXPECT_REFUSED(with_cache("[1]"), "p_hooks_maxabs.kv_cache", "'measurement' and 'Nodes'");
  EXPECT_REFUSED(with_cache(digest + "[]}"), "p_hooks_maxabs.kv_cache: Nodes", "expected an object");
  EXPECT_REFUSED(with_cache(digest + R"({"k": {"inputs": [[[-1]]]}}})"), "kv_cache: Nodes.k.inputs[0]", "amax");
  EXPECT_REFUSED(with_cache(digest), "kv_cache");  // cut short
  auto other = example();                          // another tool's measurement in the same place
  other.modules[0].inputs[0][0] = 7.0f;
  const test::TempDir elsewhere;
  write_measurements((elsewhere / "p").string(), other);
  std::ofstream(elsewhere / "p_hooks_maxabs.kv_cache") << digest + R"({"k": {"inputs": [[[1]]]}}})";
  EXPECT_TRUE(read_measurements((elsewhere / "p").string()).kv_cache.empty());
}

TEST(MeasurementFile, FingerprintFollowsNamesAndValues) {
  const auto file = example();
  EXPECT_EQ(file.fingerprint().size(), 16u);
  EXPECT_EQ(file.fingerprint(), example().fingerprint());
  auto other = example();
  other.modules[0].inputs[0][0] = std::nextafter(1.5f, 2.0f);
  EXPECT_NE(other.fingerprint(), file.fingerprint());
  other = example();
  other.modules[0].module += "x";
  EXPECT_NE(other.fingerprint(), file.fingerprint());
  other = example();
  other.num_samples = 13;  // how long it took is no part of it
  EXPECT_EQ(other.fingerprint(), file.fingerprint());
}

TEST(MeasurementFile, ReadsOtherPeoplesForms) {
  const auto file = read_text(R"({"GlobalRank": null, "LocalRank": 3, "Mode": "DynamicRange", "Nodes": {
      "a": {"inputs": [[[4.03125]]], "params": {"weight": [[0.099609375]]}},
      "b": {"inputs": [[[1]], [[2], [3]]], "outputs": [[0.5]]},
      "kv": {"inputs": [[[7.5]]], "outputs": [], "params": {}}}})");
  EXPECT_FALSE(file.num_samples.has_value());
  EXPECT_EQ(file.local_rank, 3);
  EXPECT_EQ(file.find("a")->inputs, (std::vector<Amax>{{4.03125f}}));
  EXPECT_FALSE(file.find("a")->outputs.has_value());
  EXPECT_EQ(file.find("a")->weight, Amax{0.099609375f});
  EXPECT_EQ(file.find("b")->inputs, (std::vector<Amax>{{1.0f}, {2.0f, 3.0f}}));
  EXPECT_EQ(*file.find("b")->outputs, (std::vector<Amax>{{0.5f}}));
  EXPECT_FALSE(file.find("kv")->weight.has_value());
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_TRUE(file.selected.empty());  // no mod_list beside it
}

TEST(MeasurementFile, MalformedFilesAreNamed) {
  EXPECT_GOLDEN(error_of([&] { read_text(text); }));
}

TEST(MeasurementFile, EveryObserverAndRankHasItsFiles) {
  const test::TempDir dir;
  const std::string prefix = (dir / "p").string();
  const auto paths = write_measurements(prefix, example(), {"maxabs_per_channel", configs::Rank{1, 4}});
  EXPECT_EQ(paths[0], dir / "p_hooks_maxabs_per_channel_1_4.json");
  EXPECT_EQ(paths[2], dir / "p_hooks_maxabs_per_channel_1_4_mod_list.json");
  EXPECT_EQ(io::read_json(paths[0])["LocalRank"], 1);
  const auto read = read_measurements(paths[1].string());
  expect_equal(read, example());
  EXPECT_EQ(read.local_rank, 1);
  EXPECT_REFUSED(read_measurements(prefix), prefix, "one rank of 4", "name it if it is meant");
  write_measurements(prefix, example(), {"maxabs_per_channel", configs::Rank{0, 4}});
  EXPECT_REFUSED(read_measurements(prefix), prefix, "found 2 ranks", "p_hooks_maxabs_per_channel_0_4.json", "unify");
  write_measurements(prefix, example());
  EXPECT_FALSE(read_measurements(prefix).local_rank.has_value());
}

TEST(MeasurementFile, ShapesAreSizes) {
  const test::TempDir dir;
  MeasurementFile file{.mode = MeasurementMode::shape};
  file.modules.push_back({"m", {{4, 128, 0}}, std::vector<Amax>{{}}, Amax{256, 128}});
  const auto paths = write_measurements((dir / "p").string(), file, {"shape", std::nullopt});
  EXPECT_EQ(paths[0], dir / "p_hooks_shape.json");
  const auto json = io::read_json(paths[0]);
  EXPECT_EQ(json["Mode"], "Shape");
  EXPECT_EQ(json["Nodes"]["m"]["inputs"], io::Json::parse("[[[4.0, 128.0, 0.0]]]"));
  const auto read = read_measurements((dir / "p").string());
  EXPECT_EQ(read.mode, MeasurementMode::shape);
  EXPECT_EQ(read.modules[0].inputs, file.modules[0].inputs);
  EXPECT_EQ(read.modules[0].weight, file.modules[0].weight);
  const auto fails = [](const std::string& sizes) {
    EXPECT_REFUSED(read_text(R"({"Mode": "Shape", "Nodes": {"m": {"inputs": [)" + sizes + "]}}}"), "Nodes.m.inputs[0]",
                   "expected")
        << sizes;
  };
  fails("[[1.5]]");
  fails("[[-1]]");
  fails("[[16777217]]");
  fails("[[\"4\"]]");
}

TEST(MeasurementFile, OldKeysAndBareArraysAreRead) {
  const auto file = read_text(
      R"({"LocalRank": -1, "GlobalRank": 3, "Nodes": {"m": {"input": [[[2]]], "output": [[1.5]], "params": {}}, )"
      R"("n": {"inputs": [0.5], "outputs": null}}})");
  EXPECT_EQ(file.local_rank, -1);
  EXPECT_EQ(file.global_rank, 3);
  EXPECT_EQ(file.find("m")->inputs, (std::vector<Amax>{{2.0f}}));
  EXPECT_EQ(*file.find("m")->outputs, (std::vector<Amax>{{1.5f}}));
  EXPECT_EQ(file.find("n")->inputs, (std::vector<Amax>{{0.5f}}));
  EXPECT_FALSE(file.find("n")->outputs.has_value());
}

TEST(MeasurementFile, NaNInAnNpzIsNamed) {
  const test::TempDir dir;
  auto file = example();
  file.modules[0].inputs[0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(write_measurements((dir / "p").string(), file), io::Error);  // JSON has no NaN
  io::PyDict nodes, node, top;
  node.insert("inputs", io::PyList{{io::NdArray{{1, 1}, {std::numeric_limits<float>::infinity()}}}});
  nodes.insert("m", node);
  top.insert("Nodes", nodes);
  io::write_npz(dir / "q_hooks_maxabs.npz", top);
  EXPECT_REFUSED(read_measurements((dir / "q").string()), "q_hooks_maxabs.npz: Nodes.m.inputs[0]", "finite");
}

TEST(MeasurementFile, FindsThePrefix) {
  const test::TempDir dir;
  const std::string prefix = (dir / "out/inc_output").string();
  write_measurements(prefix, example());
  for (const std::string& where :
       {prefix, prefix + "_hooks_maxabs.json", prefix + "_hooks_maxabs.npz", (dir / "out").string()}) {
    EXPECT_EQ(find_measurement(where).prefix, prefix) << where;
    EXPECT_EQ(read_measurements(where).modules.size(), 3u);
  }
  std::ofstream(dir / "out/inc_output_hooks_maxabs_MAXABS_HW.json") << "{}";  // scales are no measurements
  EXPECT_EQ(find_measurement((dir / "out").string()).prefix, prefix);
}

TEST(MeasurementFile, OneRankOfASetIsNoMeasurementOfAll) {
  const test::TempDir dir;
  const std::string prefix = (dir / "p").string();
  write_measurements(prefix, example(), {.observer = "maxabs", .rank = configs::Rank{1, 4}});
  for (const std::string& where : {prefix, dir.path().string()})
    EXPECT_REFUSED(find_measurement(where), where, "one rank of 4", "p_hooks_maxabs_1_4.json");
  EXPECT_EQ(find_measurement(prefix + "_hooks_maxabs_1_4.json").rank->index, 1);
  const test::TempDir other;
  write_measurements((other / "p").string(), example(), {.observer = "maxabs", .rank = configs::Rank{0, 1}});
  EXPECT_EQ(find_measurement(other.path().string()).rank->world, 1);
}

TEST(MeasurementFile, SaysWhatIsMissing) {
  const test::TempDir dir;
  EXPECT_REFUSED(read_measurements((dir / "p").string()), (dir / "p").string() + "_hooks_maxabs.json", "no such file",
                 ".npz");
  EXPECT_REFUSED(read_measurements(dir.path().string()), dir.path().string(), "found none");
  write_measurements((dir / "a").string(), example());
  write_measurements((dir / "b").string(), example());
  EXPECT_REFUSED(read_measurements(dir.path().string()), dir.path().string(), "found 2", "prefix");
}

// Names of measurement and scale files, their two forms, and files that appear together.

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
                           "config.json", "p_hooks_.json", "a_hooks_maxabs/x.json", ""})
    EXPECT_FALSE(parse_stats_name(path).has_value()) << path;
}

TEST(StatsName, ListsAFolderWhateverElseIsInIt) {
  const test::TempDir dir;
  for (const char* file :
       {"p_hooks_maxabs_1_2.json", "p_hooks_maxabs_0_2.json", "p_hooks_maxabs_0_2.npz",
        "p_hooks_maxabs_0_2_mod_list.json", "p_hooks_maxabs_MAXABS_HW_0_2.npz", "orig_p_hooks_maxabs_0_2.json",
        "orig_q_hooks_maxabs.json", "notes.json", "p_hooks_maxabs_0_2.fingerprint", "p_hooks_maxabs_0_2.json~"})
    std::ofstream(dir / file) << "{}";
  fs::create_directory(dir / "backup_p_hooks_maxabs.json");
  auto names =
      collected(list_stats(dir.path()), [](const auto& name) { return fs::path(name.base()).filename().string(); });
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
    EXPECT_REFUSED(read_stats(name), "p_hooks_maxabs.json", "p_hooks_maxabs.npz", "disagree", where,
                   "remove the one that is out of date")
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
  fs::create_directory(dir / "late");  // the last can't be made: none appears, and what stood there stays
  std::ofstream(dir / "late/b.json") << "before";
  EXPECT_THROW(
      write_together(
          {{dir / "late/a.json", "1"}, {dir / "late/b.json", "2"}, {dir / "late" / std::string(300, 'c'), "3"}}),
      io::Error);
  EXPECT_EQ(text_of(dir / "late/b.json"), "before");
  EXPECT_EQ(names_in(dir / "late"), (std::vector<std::string>{"b.json"}));
}

// A folder that comes to stand at the place of the second lets its rename fail, when the first has been renamed.
TEST(StatsFiles, WhatWasReplacedStandsAgainWhereALaterOneFails) {
  const test::TempDir dir;
  std::ofstream(dir / "a.json") << "before";
  fs::create_hard_link(dir / "a.json", dir / "same");
  const auto last = [&]() -> FileBytes {
    fs::create_directories(dir / "c.json/full");
    return {dir / "d.json", "4"};
  };
  EXPECT_THROW(write_together({{dir / "a.json", "1"}, {dir / "b.json", "2"}, {dir / "c.json", "3"}}, last), io::Error);
  EXPECT_EQ(text_of(dir / "a.json"), "before");
  EXPECT_TRUE(fs::equivalent(dir / "a.json", dir / "same"));
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"a.json", "c.json", "same"}));
  fs::remove_all(dir / "c.json");
  write_together({{dir / "a.json", "1"}, {dir / "b.json", "2"}, {dir / "c.json", "3"}});
  EXPECT_EQ(text_of(dir / "a.json"), "1");
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"a.json", "b.json", "c.json", "same"}));
}

}  // namespace
}  // namespace fp8::measure
