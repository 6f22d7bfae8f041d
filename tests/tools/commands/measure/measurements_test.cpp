// SPDX-License-Identifier: Apache-2.0
// fp8 measurements, run as processes: each command once, and its messages.
#include <regex>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "support/throws_with.h"
#include "support/values.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

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

io::Json json_of(const std::vector<std::string>& arguments) { return test::json_of(run_fp8(arguments)); }

std::string command_error(const std::vector<std::string>& arguments, int code = 1) {
  const auto run = run_fp8(arguments);
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_EQ(run.error_lines(), 1) << run.err;
  return run.err;
}

struct Measurements : ::testing::Test {
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
  EXPECT_EQ(json_of(args("measurements expand {} --ranks 8 --out {} --json", dir / "one", eight))["sets"], 2);
  EXPECT_EQ(names_in(eight).size(), 8u * 5);
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
  EXPECT_THAT(command_error(args("measurements expand {} --ranks 2 --out {}", in, out)), HasSubstr("unify them first"));
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

TEST_F(Measurements, WhatIsThereIsReplacedOnRequestAlone) {
  for (const char* folder : {"a", "b"}) write_measurement(dir, "", 3, folder);
  for (int r = 0; r < 2; ++r) write_measurement(dir, "_" + std::to_string(r) + "_2", 7, "ranks");
  const std::vector<std::vector<std::string>> commands = {
      args("measurements merge {} {} --out {}", dir / "a", dir / "b", dir / "merged"),
      args("measurements unify {} --out {}", dir / "ranks", dir / "unified"),
      args("measurements expand {} --world-size 2 --out {}", dir / "a", dir / "expanded"),
      args("measurements postprocess {} --out {}", dir / "a", dir / "post")};
  for (auto command : commands) {
    SCOPED_TRACE(command[1]);
    command.push_back("--quiet");
    ASSERT_EQ(run_fp8(command).code, 0);
    const fs::path out = command[command.size() - 2];
    for (const auto& name : names_in(out)) std::ofstream(out / name) << "mine";
    EXPECT_THAT(command_error(command), HasSubstr("exists (a file of a measurement, 4 B), allowed: another path, or "
                                                  "--overwrite to replace it"));
    for (const auto& name : names_in(out)) EXPECT_EQ(read_file(out / name), "mine") << name;
    command.push_back("--overwrite");
    EXPECT_EQ(run_fp8(command).code, 0);
  }
}

TEST_F(Measurements, MergeAddsWhatWasPlanned) {
  write_measurement(dir, "", 3, "a");
  write_measurement(dir, "", 5, "b");
  auto json = io::read_json(dir / "b/p_hooks_maxabs.json");
  json["PlannedSamples"] = 12;
  io::write_json(dir / "b/p_hooks_maxabs.json", json);
  json_of(args("measurements merge {} {} --out {} --json", dir / "a", dir / "b", dir / "c"));
  EXPECT_EQ(io::read_json(dir / "c/p_hooks_maxabs.json")["PlannedSamples"], 14) << "2 of 2, and 2 of 12";
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
  const auto run = run_fp8("measurements merge {} {} --out {} --overwrite", dir / "a", dir / "b", dir / "ab");
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
  EXPECT_THAT(names_in(dir / "in"), ElementsAre("orig_p_hooks_maxabs.json", "p_hooks_maxabs.json", "p_hooks_maxabs.npz",
                                                "p_hooks_maxabs_mod_list.json"));
  EXPECT_EQ(io::read_json(dir / "in/p_hooks_maxabs.json")["Nodes"]["l.impl.matmul_qk"]["inputs"][1][0][0], 9);
  EXPECT_EQ(io::read_json(dir / "in/orig_p_hooks_maxabs.json")["Nodes"]["l.impl.matmul_qk"]["inputs"][1][0][0], 2);
  EXPECT_THAT(command_error(args("measurements postprocess {} -k", dir / "in")),
              HasSubstr("orig_p_hooks_maxabs.json: exists"));
  EXPECT_THAT(command_error(args("measurements postprocess {}", dir / "in"), 2),
              HasSubstr("one of --out, --keep-orig, --overwrite is required"));
  const auto again = succeeded(run_fp8("measurements postprocess {} --overwrite", dir / "in"));
  EXPECT_THAT(again.err, HasSubstr("nothing changes"));
}

TEST_F(Measurements, OfFarFewerSamplesThanAskedForSayIt) {
  std::ofstream(dir / "short.txt") << std::string(700, 'a');
  const auto run =
      run_fp8("measure --model $DEMO --data {} --samples 64 --seq-len 64 --out {}", dir / "short.txt", dir / "stats");
  EXPECT_THAT(run.err, HasSubstr("--samples: found 64, but the data gives 10; "));
  EXPECT_THAT(run.out, HasSubstr("10 of 64 samples asked for, of 64 tokens"));
  const auto json = io::read_json(dir / "stats/inc_output_hooks_maxabs.json");
  expect_values(json, {{"NumSamples", 10}, {"PlannedSamples", 64}});
  EXPECT_THAT(run_fp8("measurements show {}", dir / "stats").out, HasSubstr("10 of 64 samples"));
  const std::string partial = "fp8: warning: measurements: 10 of 64 samples were measured: ";
  EXPECT_THAT(run_fp8("quantize --model $DEMO --measurements {} --out {}", dir / "stats", dir / "fp8").err,
              HasSubstr(partial));
  const auto enough = run_fp8("measure --model $DEMO --data {} --samples 11 --seq-len 64 --out {} --json",
                              dir / "short.txt", dir / "enough");
  EXPECT_EQ(json_of(enough)["samples"], 10);
  EXPECT_EQ(enough.err, "") << "one of eleven is no matter";
}

/// fp8 evaluate under a QUANT_CONFIG says what it did, as nothing else on its command line does.
TEST_F(Measurements, ByQuantConfigAreSaid) {
  const auto stats = (dir / "stats/inc").string();
  const auto run = [&](const char* keys, const std::vector<std::string>& more = {}) {
    const auto path = (dir / "q.json").string();
    std::ofstream(path) << R"({"dump_stats_path": ")" << stats << R"(", "blocklist": {"names": ["lm_head"]}, )" << keys
                        << "}";
    const auto done = run_fp8(args("evaluate --model $DEMO --data $HELDOUT --samples 2 --seq-len 64 {}", more),
                              {.environment = {{"QUANT_CONFIG", path}}});
    EXPECT_EQ(done.code, 0) << done.err;
    return std::regex_replace(done.err, std::regex("fp8: note: QUANT_CONFIG [^:]*/q.json: "), "");
  };
  const std::string measured =
      "measured 29 modules and 12 nodes on 2 samples\nwrote " + stats + "_hooks_maxabs.json and 3 files beside it\n";
  EXPECT_EQ(run(R"("mode": "MEASURE")"), measured);
  const std::string again = run(R"("mode": "MEASURE")"),
                    moved = "fp8: note: the measurement that stood there before is in ";
  ASSERT_THAT(again, StartsWith(measured + moved));
  const fs::path backup =
      again.substr(measured.size() + moved.size(), again.size() - measured.size() - moved.size() - 1);
  EXPECT_TRUE(fs::exists(backup / "inc_hooks_maxabs.json")) << backup;
  EXPECT_EQ(backup.filename().string().find(':'), std::string::npos) << "not every file system takes colons";
  EXPECT_EQ(run(R"("mode": "QUANTIZE")"),
            "28 modules and 12 nodes run in fp8, 2 stay in high precision\nstatic scales of " + stats +
                "_hooks_maxabs.json\n");
  EXPECT_EQ(run(R"("mode": "QUANTIZE", "scale_method": "unit_scale")"),
            "28 modules and 12 nodes run in fp8, 2 stay in high precision\nno measurement is read: the scales need "
            "none\n");
  EXPECT_EQ(run(R"("mode": "QUANTIZE")", {"--quiet"}), "");
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
    const auto help = succeeded(run_fp8("measurements {} --help", name));
    EXPECT_THAT(help.out, HasSubstr(std::string("Example:\n  fp8 measurements ") + name));
  }
}

// fp8 measure, evaluate and generate with keys and values in fp8, against the same done with transformers: its cache
// stored qdq(x) = e4m3(clamp(x / s)) * s with s = amax / 448 of 16 chunks of the calibration text, in f32.

/// Largest |key| and |value| of each layer.
constexpr double kAmax[4][2] = {{12.964309692382812, 9.120369911193848},
                                {27.592872619628906, 15.58865737915039},
                                {27.80001449584961, 20.51727867126465},
                                {34.279972076416016, 26.537565231323242}};
struct Expected {
  double perplexity, kl;
};
constexpr Expected kTensor = {2.6526926, 0.00128947}, kHead = {2.6533164, 0.00144915};

class KvCache : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TempDir();
    const auto run =
        run_fp8("measure --json --model $DEMO --data $CALIB --out {} --samples 16 --seq-len 256 --dtype f32", stats());
    EXPECT_EQ(json_of(run)["kv_caches"], 8);
    EXPECT_EQ(io::parse_json(run.out, "stdout")["modules"], 29) << "what other tools find stays as it was";
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string stats() { return (*folder_ / "stats").string(); }

  static test::Run run(const std::string& command, std::vector<std::string> more) {
    std::vector<std::string> arguments = {command, "--model", test::demo_model()};
    if (command != "quantize") arguments.insert(arguments.end(), {"--dtype", "f32"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_fp8(arguments);
  }

 private:
  static inline test::TempDir* folder_ = nullptr;
};

TEST_F(KvCache, KeysAreMeasuredAfterTheRotaryEmbedding) {
  const auto nodes = io::read_json(stats() + "/inc_output_hooks_maxabs.kv_cache")["Nodes"];
  ASSERT_EQ(nodes.size(), 8u);
  for (int layer = 0; layer < 4; ++layer)
    for (int i = 0; i < 2; ++i) {
      const auto name = "model.layers." + std::to_string(layer) + ".self_attn." + (i == 0 ? "k_cache" : "v_cache");
      const auto& heads = nodes[name]["inputs"][0];
      ASSERT_EQ(heads.size(), 2u) << name;
      EXPECT_NEAR(std::max(heads[0][0].get<double>(), heads[1][0].get<double>()) / kAmax[layer][i], 1, 1e-5) << name;
    }
  EXPECT_FALSE(
      io::read_json(stats() + "/inc_output_hooks_maxabs.json")["Nodes"].contains("model.layers.0.self_attn.k_cache"));
}

TEST_F(KvCache, EvaluateShowsTheEffect) {
  for (const bool head : {false, true}) {
    const auto json = json_of(
        run("evaluate", args("--json --data $HELDOUT --seq-len 256 --reference $DEMO --kv-cache {} --measurements {}",
                             head ? "fp8:head" : "fp8", stats())));
    const Expected& expected = head ? kHead : kTensor;
    EXPECT_NEAR(json["perplexity"].get<double>() / expected.perplexity, 1, 2e-4);
    EXPECT_NEAR(json["kl"].get<double>() / expected.kl, 1, 0.05);
    expect_values(json, {{"kv_cache", "fp8"}, {"kv_cache_scales", head ? "head" : "tensor"}});
  }
  const auto plain = json_of(run("evaluate", args("--json --data $HELDOUT --samples 2")));
  EXPECT_EQ(plain["kv_cache"], "f32");
  EXPECT_FALSE(plain.contains("kv_cache_scales"));
  EXPECT_EQ(json_of(run("evaluate", args("--json --data $HELDOUT --samples 2 --kv-cache off")))["perplexity"],
            plain["perplexity"]);
}

TEST_F(KvCache, EverySchemeOfWeightsTakesThem) {
  const std::vector<std::vector<std::string>> schemes = {
      {},
      {"--dynamic"},
      {"--weights-only"},
      {"--dynamic", "--scheme", "block", "--block", "64"},
      {"--dynamic", "--scheme", "block", "--block", "64", "--format", "fp8"},
      {"--format", "modelopt"}};
  for (const auto& scheme : schemes) {
    SCOPED_TRACE(::testing::PrintToString(scheme));
    const test::TempDir folder;
    const std::string out = (folder / "out").string();
    std::vector<std::string> arguments =
        args("--json --measurements {} --kv-cache fp8 --out {} {}", stats(), out, scheme);
    EXPECT_EQ(json_of(run("quantize", arguments))["modules_quantized"], 28);
    EXPECT_EQ(io::read_json(folder / "out/config.json")["quantization_config"]["kv_cache_scheme"]["num_bits"], 8);
    const auto evaluated = json_of(run_fp8("evaluate --json --model {} --data $HELDOUT --samples 2", out));
    expect_values(evaluated, {{"kv_cache", "fp8"}, {"kv_cache_scales", "tensor"}});
  }
}

TEST_F(KvCache, TokenByTokenSeesWhatTheWholeSequenceSees) {
  const auto generated = json_of(
      run("generate",
          args("--json --prompt 'And the LORD said unto' --tokens 40 --kv-cache fp8 --measurements {}", stats())));
  EXPECT_EQ(generated["kv_cache"], "fp8");
  std::vector<std::int64_t> ids;
  for (const char c : std::string("And the LORD said unto"))
    ids.push_back(static_cast<unsigned char>(c));  // this model's tokens are bytes
  const std::size_t prompt = ids.size();
  ASSERT_EQ(generated["prompt_tokens"], prompt);
  for (const auto& id : generated["ids"]) ids.push_back(id.get<std::int64_t>());
  const test::TempDir folder;
  const auto length = static_cast<std::int64_t>(ids.size());
  io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {1, length}}});
  writer.write("input_ids", ids.data());
  writer.commit();
  const auto file = folder / "logits.safetensors";
  json_of(run("evaluate", args("--json --data {} --dump-logits {} --kv-cache fp8 --measurements {}",
                               folder / "ids.safetensors", file, stats())));
  const io::SafetensorsFile logits(file);
  std::vector<float> values(ids.size() * 256);
  logits.read(*logits.find("logits"), values.data());
  for (std::size_t i = prompt; i < ids.size(); ++i) {
    const auto* row = values.data() + (i - 1) * 256;
    EXPECT_EQ(std::max_element(row, row + 256) - row, ids[i]) << i;
  }
}

TEST_F(KvCache, WithoutScalesItIsRefused) {
  const std::vector<std::string> data = args("--data $HELDOUT --samples 1");
  const auto evaluate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), data.begin(), data.end());
    return run("evaluate", more);
  };
  expect_failed(evaluate({"--kv-cache", "fp8"}), {"kjv-byte-1.7M", "--measurements", "fp8 quantize --kv-cache fp8"});
  expect_failed(run("generate", args("--prompt x --kv-cache fp8")), {"--measurements"});
  expect_failed(evaluate({"--measurements", stats()}), {"--kv-cache fp8", "found --kv-cache auto"}, 2);
  expect_failed(evaluate(args("--kv-cache fp8:head")), {"--kv-cache fp8:head", "--measurements"}, 2);
  expect_failed(evaluate(args("--kv-cache fp8 --measurements {} --device cpu", stats())), {"--device cpu", "hpu"}, 2);

  const test::TempDir folder;  // a layer without data
  std::filesystem::copy(stats(), folder / "m");
  const auto path = folder / "m/inc_output_hooks_maxabs.kv_cache";
  const auto whole = io::read_json(path);
  auto part = whole;
  part["Nodes"].erase("model.layers.2.self_attn.v_cache");
  io::write_json(path, part);
  expect_failed(evaluate(args("--kv-cache fp8 --measurements {}", folder / "m")),
                {"'model.layers.2.self_attn.v_cache'"});
  part = whole;
  part["Nodes"]["model.layers.1.self_attn.k_cache"]["inputs"][0] = {{0.0}, {0.0}};
  io::write_json(path, part);
  expect_failed(evaluate(args("--kv-cache fp8 --measurements {}", folder / "m")),
                {"model.layers.1.self_attn.k_cache", "only zeros"});
}

}  // namespace
}  // namespace fp8
