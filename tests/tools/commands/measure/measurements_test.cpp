// SPDX-License-Identifier: Apache-2.0
// fp8 measurements, run as processes: each command once, and its messages.
#include "support/throws_with.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;

/// FOLDER/p_hooks_maxabs[_R_W].json with one module "m".
void write_measurement(const test::TempDir& dir, const std::string& rank, float input,
                       const std::string& folder = "in") {
  fs::create_directories(dir / folder);
  io::write_json(dir / (folder + "/p_hooks_maxabs" + rank + ".json"),
                 {{"NumSamples", 2},
                  {"GlobalRank", nullptr},
                  {"LocalRank", nullptr},
                  {"Mode", "DynamicRange"},
                  {"Nodes", {{"m", {{"inputs", {{{input}}}}, {"params", {{"weight", {{0.5}}}}}}}}}});
}

void write_scale(const test::TempDir& dir, const std::string& rank, float input) {
  io::write_json(dir / ("in/p_hooks_maxabs_MAXABS_POW2" + rank + ".json"),
                 {{"GlobalRank", nullptr},
                  {"LocalRank", nullptr},
                  {"Mode", "Scale"},
                  {"Nodes", {{"m", {{"inputs", {input}}, {"outputs", {1.0}}, {"params", {{"weight", 0.25}}}}}}}});
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

io::Json json_of(const std::vector<std::string>& arguments) { return test::json_of(run_fp8(arguments)); }

std::string command_error(const std::vector<std::string>& arguments, int code = 1) {
  const auto run = run_fp8(arguments);
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_EQ(run.error_lines(), 1) << run.err;
  return run.err;
}

class Measurements : public ::testing::Test {
 protected:
  const test::TempDir dir;
};

TEST_F(Measurements, UnifyAndExpandWithScales) {
  for (int r = 0; r < 4; ++r) {
    const std::string rank = "_" + std::to_string(r) + "_4";
    write_measurement(dir, rank, static_cast<float>(10 - r));
    write_scale(dir, rank, static_cast<float>(1 << r));
  }
  std::ofstream(dir / "in/notes.json") << "[]";  // other files there are no ranks
  std::ofstream(dir / "in/p_hooks_maxabs_0_4.json.bak") << "x";
  const auto in = (dir / "in").string(), two = (dir / "two").string(), eight = (dir / "eight").string();
  const auto json = json_of(args("measurements unify {} --ranks 2 --out {} --json", in, two));
  EXPECT_EQ(json["source_ranks"], 4);
  EXPECT_EQ(json["out"].size(), 2u * 5);
  EXPECT_EQ(io::read_json(dir / "two/p_hooks_maxabs_1_2.json")["Nodes"]["m"]["inputs"][0][0][0], 8);
  EXPECT_EQ(io::read_json(dir / "two/p_hooks_maxabs_MAXABS_POW2_0_2.json")["Nodes"]["m"]["inputs"][0], 2);
  EXPECT_EQ(io::read_json(dir / "two/p_hooks_maxabs_1_2.json")["LocalRank"], 1);
  EXPECT_EQ(json_of(args("measurements unify {} --out {} --json", two, dir / "one"))["ranks"],
            1);  // again: the mod_list is there
  EXPECT_EQ(io::read_json(dir / "one/p_hooks_maxabs_0_1.json")["LocalRank"], -1);
  EXPECT_EQ(io::read_json(dir / "one/p_hooks_maxabs_0_1.json")["Nodes"]["m"]["inputs"][0][0][0], 10);
  EXPECT_EQ(json_of(args("measurements expand {} --world-size 8 --out {} --json", dir / "one", eight))["sets"], 2);
  EXPECT_EQ(files_in(eight).size(), 8u * 5);
  EXPECT_EQ(io::read_json(dir / "eight/p_hooks_maxabs_MAXABS_POW2_7_8.json")["Nodes"]["m"]["inputs"][0], 8);
}

TEST_F(Measurements, MissingRanksAndWrongNumbersAreNamed) {
  for (int r : {0, 2, 3}) write_measurement(dir, "_" + std::to_string(r) + "_4", 1);
  const auto in = (dir / "in").string(), out = (dir / "out").string();
  EXPECT_THAT(command_error(args("measurements unify {} --out {}", in, out)),
              HasSubstr("1 of 4 ranks are missing: p_hooks_maxabs_1_4.json"));
  EXPECT_THAT(command_error(args("measurements unify {} --ranks 3 --out {}", in, out), 2),
              HasSubstr("--ranks: found 3, allowed: a divisor of the number of ranks (4)"));
  EXPECT_THAT(command_error(args("measurements unify {}", in), 2), HasSubstr("--out is required"));
  EXPECT_FALSE(fs::exists(out));
  write_measurement(dir, "_0_8", 1);
  EXPECT_THAT(command_error(args("measurements unify {} --out {}", in, out), 2),
              HasSubstr("say which with --world-size"));
  EXPECT_THAT(command_error(args("measurements unify {} --world-size 8 --out {}", in, out)),
              HasSubstr("7 of 8 ranks are missing"));
  EXPECT_THAT(command_error(args("measurements expand {} --world-size 2 --out {}", in, out)),
              HasSubstr("unify them first"));
  EXPECT_THAT(command_error(args("measurements show {}", dir / "gone")),
              HasSubstr("gone: expected measurement or scale files"));
}

TEST_F(Measurements, MergeAddsSamples) {
  write_measurement(dir, "", 3, "a");
  write_measurement(dir, "", 5, "b");
  const auto json = json_of(args("measurements merge {} {} --out {} --json", dir / "a", dir / "b", dir / "c/all"));
  EXPECT_EQ(json["samples"], 4);
  EXPECT_EQ(json["out"][0], (dir / "c/all/p_hooks_maxabs.json").string()) << "a folder, as of the other commands";
  EXPECT_EQ(io::read_json(dir / "c/all/p_hooks_maxabs.json")["Nodes"]["m"]["inputs"][0][0][0], 5);
  EXPECT_EQ(io::read_json(dir / "c/all/p_hooks_maxabs.json")["NumSamples"], 4);
  EXPECT_THAT(command_error(args("measurements merge {} --out {}", dir / "a", dir / "c/all"), 2),
              HasSubstr("two or more"));
  EXPECT_THAT(command_error(args("measurements merge {} {} --out {}", dir / "a", dir / "b", dir / "b")),
              HasSubstr("is one of the measurements to merge"));
  EXPECT_EQ(io::read_json(dir / "b/p_hooks_maxabs.json")["Nodes"]["m"]["inputs"][0][0][0], 5);
}

TEST_F(Measurements, MergeAsksTheObserversThatKnowMore) {
  const std::string data = FP8_SOURCE_DIR "/tools/demo_data/kjv_calib.txt",
                    model = FP8_SOURCE_DIR "/tools/demo_data/kjv-byte-1.7M";
  std::ofstream(dir / "config.json") << R"({"mode": "MEASURE", "observer": "percentile", "dump_stats_path": "s/inc", )"
                                        R"("allowlist": {"types": [], "names": ["layers.0.mlp.*proj"]}})";
  const auto measure = [&](const char* out, const char* skip, const char* samples) {
    const auto run = run_fp8("measure --model {} --data {} --config {} --out {} --skip {} --samples {} --seq-len 64",
                             model, data, dir / "config.json", dir / out, skip, samples);
    ASSERT_EQ(run.code, 0) << run.err;
  };
  measure("all", "0", "6");
  measure("a", "0", "2");
  measure("b", "2", "4");
  json_of(args("measurements merge {} {} --out {} --json", dir / "a", dir / "b", dir / "ab"));
  // Percentiles of all the data are no function of the parts' percentiles; of the parts' histograms they are.
  const auto nodes = io::read_json(dir / "all/inc_hooks_percentile.json")["Nodes"];
  EXPECT_EQ(io::read_json(dir / "ab/inc_hooks_percentile.json")["Nodes"], nodes);
  EXPECT_EQ(nodes.size(), 3u);
  fs::remove(dir / "a/inc_hooks_percentile.observers");
  const auto run = run_fp8("measurements merge {} {} --out {}", dir / "a", dir / "b", dir / "ab");
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.err, HasSubstr("only 1 of 2 files have observers' states"));
}

TEST_F(Measurements, PostprocessKeepsOriginalsOnRequest) {
  fs::create_directory(dir / "in");
  io::write_json(dir / "in/p_hooks_maxabs.json",
                 io::Json::parse(R"({"GlobalRank": null, "LocalRank": null, "Mode": "DynamicRange", "Nodes": {
    "l.impl.matmul_qk": {"inputs": [[[1.0]], [[2.0]]]}, "l.impl.k_cache": {"inputs": [[[9.0]]]}}})"));
  const auto json = json_of(args("measurements postprocess {} -k --json", dir / "in"));
  EXPECT_EQ(json["changed"].size(), 1u);
  EXPECT_EQ(json["changed"][0]["module"], "l.impl.matmul_qk");
  EXPECT_THAT(files_in(dir / "in"), ElementsAre("orig_p_hooks_maxabs.json", "p_hooks_maxabs.json", "p_hooks_maxabs.npz",
                                                "p_hooks_maxabs_mod_list.json"));
  EXPECT_EQ(io::read_json(dir / "in/p_hooks_maxabs.json")["Nodes"]["l.impl.matmul_qk"]["inputs"][1][0][0], 9);
  EXPECT_EQ(io::read_json(dir / "in/orig_p_hooks_maxabs.json")["Nodes"]["l.impl.matmul_qk"]["inputs"][1][0][0], 2);
  const auto again = run_fp8("measurements postprocess {}", dir / "in");
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("nothing changes"));
}

TEST_F(Measurements, DiffFailsBeyondItsTolerance) {
  write_measurement(dir, "", 4, "a");
  write_measurement(dir, "", 5, "b");
  const auto a = (dir / "a").string(), b = (dir / "b").string();
  EXPECT_EQ(run_fp8("measurements diff {} {}", a, a).code, 0);
  EXPECT_EQ(run_fp8("measurements diff {} {} --tolerance 0.25", a, b).code, 0);
  const auto run = run_fp8("measurements diff {} {} --tolerance 0.24 --json", a, b);
  expect_failed(run);
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_EQ(json["changes"],
            io::Json::parse(R"([{"module": "m", "tensor": "inputs[0]", "before": 4.0, "after": 5.0, "ratio": 1.25}])"));
  EXPECT_FALSE(json["same"]);
}

TEST_F(Measurements, ShowListsSetsAndValues) {
  write_measurement(dir, "", 4);
  EXPECT_EQ(json_of(args("measurements show {} --json", dir / "in"))["kind"], "measurement");
  write_scale(dir, "", 2);
  const auto json = json_of(args("measurements show {} --json", dir / "in"));
  ASSERT_EQ(json["sets"].size(), 2u);
  EXPECT_EQ(json["sets"][0]["samples"], 2);
  EXPECT_EQ(json["sets"][1]["kind"], "scales");
  EXPECT_EQ(json["sets"][1]["method"], "MAXABS_POW2");
  EXPECT_THAT(run_fp8("measurements show {}", dir / "in/p_hooks_maxabs_MAXABS_POW2.json").out,
              HasSubstr("scales: 1 modules"));
}

TEST_F(Measurements, TheGroupNamesItsCommands) {
  EXPECT_THAT(command_error({"measurements"}, 2),
              HasSubstr("measurements: no command given, allowed: merge, unify, expand, postprocess, diff, show"));
  EXPECT_THAT(command_error({"measurements", "shuffle"}, 2), HasSubstr("measurements: unknown command 'shuffle'"));
  EXPECT_THAT(command_error(args("measurements diff a b show"), 2), HasSubstr("diff: unexpected argument 'show'"));
  for (const char* name : {"merge", "unify", "expand", "postprocess", "diff", "show"}) {
    const auto help = run_fp8("measurements {} --help", name);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr(std::string("Example:\n  fp8 measurements ") + name));
  }
}

}  // namespace
}  // namespace fp8
