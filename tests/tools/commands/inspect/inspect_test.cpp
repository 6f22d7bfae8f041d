// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "support/throws_with.h"
#include "support/values.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

io::Json inspect(const std::filesystem::path& path) { return json_of(run_fp8("inspect {} --json", path)); }

std::string inspect_error(const std::filesystem::path& path) {
  const auto run = run_fp8({"inspect", path.string()});
  expect_failed(run);
  return run.err;
}

struct Inspect : ::testing::Test {
  const test::TempDir dir;
};

/// No measurement of time: what is quadratic in the number of modules takes a quarter of an hour here and is ended by
/// the system.
TEST_F(Inspect, AMeasurementOfManyModulesIsReadInOnePass) {
  constexpr int kModules = 200000;
  {
    std::ofstream out(dir / "many_hooks_maxabs.json");
    out << R"({"GlobalRank": null, "LocalRank": null, "Mode": "DynamicRange", "Nodes": {)";
    for (int i = 0; i < kModules; ++i)
      out << (i > 0 ? "," : "") << "\"model.layers." << i
          << R"(.fc": {"inputs": [[[1.5]]], "params": {"weight": [[2]]}})";
    out << "}}";
  }
  rlimit before{};
  getrlimit(RLIMIT_CPU, &before);
  rlimit limit = before;
  limit.rlim_cur = 120;  // seconds of the child's own time
  setrlimit(RLIMIT_CPU, &limit);
  const auto json = inspect(dir / "many_hooks_maxabs.json");
  setrlimit(RLIMIT_CPU, &before);
  EXPECT_EQ(json["modules"].size(), static_cast<std::size_t>(kModules));
}

TEST_F(Inspect, CheckpointFolderAndFile) {
  const auto folder = test::demo_data() / "kjv-byte-1.7M";
  for (const auto& path : {folder, folder / "model.safetensors"}) {
    const auto json = inspect(path);
    EXPECT_EQ(json["kind"], "checkpoint");
    EXPECT_EQ(json["tensors"].size(), 39u);
    expect_values(json, {{"total_bytes", 2 * 1672896}, {"weights_bytes", json["total_bytes"]}});
    EXPECT_EQ(json["dtypes"]["BF16"]["tensors"], 39);
  }
  const auto run = run_fp8("inspect {}", folder);
  EXPECT_EQ(run.out.rfind("size    3.3 MB in 39 tensors: BF16 3.3 MB (39)\nform    high precision\nas fp8  E4M3 ", 0),
            0u)
      << run.out;
  EXPECT_THAT(run.out, AllOf(HasSubstr("The worst five of 28 modules"), Not(HasSubstr("down_proj.weight"))));
  const auto all = run_fp8("inspect {} --all", folder);
  EXPECT_THAT(all.out, AllOf(HasSubstr("All of 28 modules"), HasSubstr("model.layers.0.mlp.down_proj.weight"),
                             HasSubstr("BF16   [192, 512]")));
}

TEST_F(Inspect, WhatStaysInHighPrecisionIsFoldedWithItsReason) {
  const auto out = (dir / "fp8").string();
  ASSERT_EQ(run_fp8("quantize --model $DEMO --out {} --dynamic --exclude down_proj", out).code, 0);
  const auto run = run_fp8({"inspect", out});
  EXPECT_THAT(run.out, HasSubstr("form    compressed-tensors\nscheme  24 weights: E4M3 channel weights"));
  EXPECT_THAT(run.out, HasSubstr("model.layers.*.mlp.down_proj        4  excluded by"));
  EXPECT_THAT(run.out, HasSubstr("kept in high precision by default (--include quantizes it)"));
  EXPECT_THAT(run.out, HasSubstr("24 modules; SQNR needs the original: --reference DIR; none saturates\n"));
  const auto json = json_of(run_fp8("inspect {} --reference $DEMO --json", out));
  EXPECT_THAT(json["summary"].get<std::string>(), HasSubstr("nothing to exclude"));
  EXPECT_EQ(json["modules"][0]["weight"]["saturation"], 0.0);
  EXPECT_THAT(run_fp8("inspect $DEMO --reference {}", out).out, HasSubstr("nothing to exclude"));
  EXPECT_EQ(run_fp8("inspect $DEMO --reference {} --dialect ocp", out).code, 2);
}

TEST_F(Inspect, PlotsAHeatMapAndAHistogram) {
  const auto svg = (dir / "map.svg").string(), bars = (dir / "bars.svg").string();
  EXPECT_EQ(run_fp8("inspect $DEMO --plot {}", svg).code, 0);
  EXPECT_THAT(read_file(svg), HasSubstr("self_attn.q_proj"));
  EXPECT_EQ(run_fp8("inspect $DEMO --plot {} --module model.layers.0.mlp.up_proj", bars).code, 0);
  EXPECT_THAT(read_file(bars), HasSubstr("<rect"));
  expect_failed(run_fp8("inspect $DEMO --plot {}", dir / "x.png"), {"allowed: a name ending in .svg"}, 2);
  EXPECT_EQ(run_fp8("inspect $DEMO --module model.layers.0.mlp.up_proj").code, 2);
  EXPECT_EQ(run_fp8("inspect $DEMO --overwrite --plot {} --module gone", bars).code, 1);
  // In high precision beside itself: no scale, so no range of one.
  EXPECT_EQ(
      run_fp8("inspect $DEMO --reference $DEMO --overwrite --plot {} --module model.layers.0.mlp.up_proj", svg).code,
      0);
  EXPECT_THAT(read_file(svg), Not(::testing::ContainsRegex("nan|inf\"")));
  for (const char* more : {"--plan --plot x.svg", "--plan --reference $DEMO", "--reference $DEMO --weights-only",
                           "--tensors-only --reference $DEMO", "--with $DEMO"})
    EXPECT_EQ(run_fp8("inspect $DEMO {}", args(more)).code, 2) << more;
}

TEST_F(Inspect, AMeasurementWithBadAmaxSaysSo) {
  const test::TempDir folder;
  std::ofstream(folder / "m_hooks_maxabs.json") << R"({"Mode": "DynamicRange", "Nodes": {
    "l.0.fc": {"inputs": [[[NaN]]], "params": {"weight": [[1.5]]}}, "l.1.fc": {"inputs": [[[-Infinity], [2.0]]]},
    "NaN \"Infinity": {"inputs": [[[0.0]]]}, "l.2.fc": {"inputs": [[[-3.0]]]}, "l.3.fc": {"inputs": [[[4.0]]]}}})";
  const auto json = inspect(folder / "m_hooks_maxabs.json");
  ASSERT_EQ(json["problems"].size(), 4u) << json["problems"];
  EXPECT_THAT(json["problems"][0]["problem"].get<std::string>(), HasSubstr("NaN or Inf in 1 of 1"));
  EXPECT_EQ(json["modules"]["l.3.fc"]["inputs"][0]["max"], 4.0);
  EXPECT_TRUE(json["modules"]["l.0.fc"]["inputs"][0]["max"].is_null());
  const auto run = run_fp8("inspect {}", folder.path());
  EXPECT_THAT(run.out, HasSubstr("measurement: 5 modules; 4 bad tensors\nbad: "));
  EXPECT_THAT(run.out, HasSubstr("l.*.fc               4  BAD -inf .. 4 (5)"));
  EXPECT_THAT(run_fp8("inspect {} --all", folder.path()).out, AllOf(HasSubstr("BAD nan"), HasSubstr("BAD -3")));
}

TEST_F(Inspect, ThePlanIsWhatADryRunOfQuantizeSays) {
  const auto folder = (test::demo_data() / "kjv-byte-1.7M").string();
  const auto plan = json_of(run_fp8("inspect {} --plan --json", folder));
  const auto dry = io::parse_json(
      run_fp8("quantize --model {} --out {} --dynamic --dry-run --json", folder, dir / "out").out, "stdout");
  EXPECT_EQ(plan["kind"], "plan");
  EXPECT_EQ(plan["modules_quantized"], dry["modules_quantized"]);
  EXPECT_EQ(plan["weights_bytes"], dry["weights_bytes"]);
  std::set<std::string> modules;
  for (const auto& line : plan["lines"]) {
    if (line["scheme"].is_null()) continue;
    for (const auto& m : line["modules"]) modules.insert(m.get<std::string>());
  }
  EXPECT_EQ(modules, dry["modules"].get<std::set<std::string>>());
  const auto text = run_fp8("inspect {} --plan", folder);
  EXPECT_THAT(text.out, AllOf(HasSubstr("model.layers.*.self_attn.q_proj"), HasSubstr("--include quantizes it")));
}

TEST_F(Inspect, DamageOfACheckpointByModule) {
  const auto folder = test::demo_data() / "kjv-byte-1.7M";
  const auto json = json_of(run_fp8("inspect {} --data $HELDOUT --samples 2 --html {} --json", folder, dir / "r.html"));
  ASSERT_EQ(json["modules"].size(), 28u);
  double last = 0;
  for (const auto& m : json["modules"]) {
    EXPECT_GE(m["sqnr_db"].get<double>(), last);  // the most damaged first
    last = m["sqnr_db"];
    for (const char* part : {"weight", "input"}) {
      EXPECT_GT(m[part]["sqnr_db"].get<double>(), 25);  // 3 bits of mantissa: about 31 dB
      EXPECT_LT(m[part]["sqnr_db"].get<double>(), 40);
      EXPECT_EQ(m[part]["saturation"], 0.0);
    }
  }
  EXPECT_TRUE(std::filesystem::exists(dir / "r.html"));
  EXPECT_THAT(json["order"].get<std::string>(), HasSubstr("not the order of KL divergence"));
  EXPECT_THAT(run_fp8("inspect {}", folder).out,
              HasSubstr("(sorted by SQNR; fp8 quantize --budget ranks by KL divergence)"));
  EXPECT_FALSE(io::parse_json(run_fp8("inspect {} --tensors-only --json", folder).out, "stdout").contains("modules"));
}

TEST_F(Inspect, ScalesOfFp8Weights) {
  const test::TempDir folder;
  const std::vector<std::uint8_t> codes(8 * 6, 0x38);
  const std::vector<float> scales = {0.5f, 0.25f, 2, 1, 1, 1, 1, 0.125f};
  io::SafetensorsWriter writer(folder / "model.safetensors", {{"a.weight", io::DType::F8_E4M3, {8, 6}},
                                                              {"a.weight_scale", io::DType::F32, {8, 1}},
                                                              {"b.weight", io::DType::F8_E4M3, {8, 6}},
                                                              {"b.weight_scale", io::DType::F32, {1}},
                                                              {"c.weight", io::DType::F8_E5M2, {8, 6}},
                                                              {"c.weight_scale_inv", io::DType::F32, {2, 3}},
                                                              {"d.weight", io::DType::F8_E4M3, {8, 6}}});
  for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"}) writer.write(name, codes.data());
  for (const char* name : {"a.weight_scale", "b.weight_scale", "c.weight_scale_inv"}) writer.write(name, scales.data());
  writer.commit();
  io::Json by_name;
  const auto json = inspect(folder.path());
  for (const auto& tensor : json["tensors"]) by_name[tensor["name"].get<std::string>()] = tensor;
  EXPECT_EQ(by_name["a.weight"]["scale"],
            (io::Json{{"name", "weight_scale"}, {"granularity", "channel"}, {"min", 0.125}, {"max", 2.0}}));
  EXPECT_EQ(by_name["b.weight"]["scale"],
            (io::Json{{"name", "weight_scale"}, {"granularity", "tensor"}, {"min", 0.5}, {"max", 0.5}}));
  EXPECT_EQ(by_name["c.weight"]["scale"],
            (io::Json{{"name", "weight_scale_inv"}, {"granularity", "block 4x2"}, {"min", 0.25}, {"max", 2.0}}));
  EXPECT_FALSE(by_name["d.weight"].contains("scale"));
}

TEST_F(Inspect, TheFormOfAnFp8Checkpoint) {
  const test::TempDir folder;
  const std::vector<std::uint8_t> codes(6 * 4, 0x38), exponents = {127, 128, 126, 127};
  const float k = 0.5f, v = 0.25f;
  io::SafetensorsWriter writer(folder / "model.safetensors", {{"l.q_proj.weight", io::DType::F8_E4M3, {6, 4}},
                                                              {"l.q_proj.weight_scale_inv", io::DType::F8_E8M0, {2, 2}},
                                                              {"l.k_scale", io::DType::F32, {}},
                                                              {"l.v_scale", io::DType::F32, {1}}});
  writer.write("l.q_proj.weight", codes.data());
  writer.write("l.q_proj.weight_scale_inv", exponents.data());
  writer.write("l.k_scale", &k);
  writer.write("l.v_scale", &v);
  writer.commit();
  io::write_json(folder / "config.json",
                 {{"quantization_config",
                   {{"quant_method", "fp8"}, {"weight_block_size", {4, 2}}, {"kv_cache_scheme", "static"}}}});
  const auto json = inspect(folder.path());
  EXPECT_EQ(json["quantization"], "fp8");
  EXPECT_EQ(json["schemes"], (io::Json{{"E4M3 block 4x2 E8M0 weights, dynamic group activations, ocp", 1}}));
  EXPECT_EQ(json["kv_scales"], io::Json::parse(R"([{"attention": "l", "k": [0.5], "v": [0.25]}])"));
  for (const auto& tensor : json["tensors"]) {
    if (tensor["name"] != "l.q_proj.weight") continue;
    EXPECT_EQ(
        tensor["scale"],
        (io::Json{
            {"name", "weight_scale_inv"}, {"granularity", "block 4x2"}, {"min", 0.5}, {"max", 2.0}}));  // rows: 4 and 2
  }
  EXPECT_THAT(run_fp8("inspect {}", folder.path()).out,
              HasSubstr("key-value scales: 1 layers, per tensor, keys 0.5, values 0.25"));
  io::write_json(folder / "config.json", {{"quantization_config", {{"quant_method", "gptq"}}}});
  EXPECT_THAT(inspect(folder.path())["problem"].get<std::string>(), HasSubstr("'quant_method'"));
}

TEST_F(Inspect, MeasurementAsJsonAndNpz) {
  const test::TempDir folder;
  const auto name = [&](const char* end) { return folder / (std::string("inc_output_hooks_maxabs") + end); };
  io::write_json(name(".json"), {{"GlobalRank", nullptr},
                                 {"LocalRank", nullptr},
                                 {"Mode", "DynamicRange"},
                                 {"NumSamples", 24},
                                 {"Nodes",
                                  {{"lm_head", {{"inputs", {{{2.5}}}}, {"params", {{"weight", {{0.75}}}}}}},
                                   {"matmul", {{"inputs", {{{1.0}}, {{3.0}, {0.5}}}}, {"outputs", {{{9.0}}}}}}}}});
  io::write_json(name("_mod_list.json"), {"lm_head", "matmul"});
  io::PyDict weight, head, nodes, file;
  weight.insert("weight", io::NdArray{{1, 1}, {0.75f}});
  io::PyList inputs;
  inputs.items.push_back(io::NdArray{{1, 1}, {2.5f}});
  head.insert("inputs", inputs);
  head.insert("params", weight);
  nodes.insert("lm_head", head);
  file.insert("Mode", "DynamicRange");
  file.insert("Nodes", nodes);
  io::write_npz(name(".npz"), file);
  for (const auto& path : {name(".json"), name(".npz"), folder.path()}) {
    const auto json = inspect(path);
    EXPECT_EQ(json["kind"], "measurement") << path;
    const auto& module = json["modules"]["lm_head"];
    EXPECT_EQ(module["inputs"], io::Json::parse(R"([{"count":1,"min":2.5,"max":2.5}])"));
    EXPECT_EQ(module["params"]["weight"], io::Json::parse(R"({"count":1,"min":0.75,"max":0.75})"));
  }
  EXPECT_EQ(inspect(folder.path())["modules"]["matmul"]["inputs"][1],
            io::Json::parse(R"({"count":2,"min":0.5,"max":3.0})"));
  const auto run = run_fp8("inspect {}", folder.path());
  EXPECT_THAT(run.out, AllOf(HasSubstr("measurement: 2 modules, 24 samples"), HasSubstr("1, 0.5 .. 3 (2)")));
}

TEST_F(Inspect, WhatItIsNot) {
  const test::TempDir folder;
  EXPECT_THAT(inspect_error(folder.path()), HasSubstr("found neither model.safetensors"));
  EXPECT_THAT(inspect_error(folder / "gone"), HasSubstr("no such file or folder"));
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return folder / name;
  };
  EXPECT_THAT(
      inspect_error(write("a.txt", "x")),
      HasSubstr("found a file ending in '.txt', allowed: a folder, .safetensors, .bin, .pth, .pt, .json, .npz"));
  EXPECT_THAT(inspect_error(write("a.json", "[]")), HasSubstr("a.json: found a array"));
  EXPECT_THAT(inspect_error(write("b.json", "{}")), HasSubstr("key 'Nodes': missing"));
  EXPECT_THAT(inspect_error(write("c.json", R"({"Nodes":{}})")),
              HasSubstr("key 'Mode': found nothing, allowed: DynamicRange, Scale, Shape"));
  EXPECT_THAT(inspect_error(write("d.json", R"({"Mode":"Scale","Nodes":{"m":{"inputs":["x"]}}})")),
              HasSubstr("m.inputs.0: found \"x\""));
  EXPECT_THAT(inspect_error(write("e.safetensors", "short")), HasSubstr("e.safetensors"));
  EXPECT_THAT(inspect_error(write("f.npz", "short")), HasSubstr("f.npz"));
}

}  // namespace
}  // namespace fp8
