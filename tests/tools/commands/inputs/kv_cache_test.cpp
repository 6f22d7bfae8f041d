// SPDX-License-Identifier: Apache-2.0
// fp8 measure, evaluate and generate with keys and values in fp8, against the same done with transformers: its cache
// stored qdq(x) = e4m3(clamp(x / s)) * s with s = amax / 448 of 16 chunks of the calibration text, in f32.
#include "fp8/runtime/io/tensors/safetensors.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

std::string model() { return (test::demo_data() / "kjv-byte-1.7M").string(); }

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
    std::vector<std::string> arguments = {command, "--model", model()};
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
  for (int layer = 0; layer < 4; ++layer) {
    for (int i = 0; i < 2; ++i) {
      const auto name = "model.layers." + std::to_string(layer) + ".self_attn." + (i == 0 ? "k_cache" : "v_cache");
      const auto& heads = nodes[name]["inputs"][0];
      ASSERT_EQ(heads.size(), 2u) << name;
      EXPECT_NEAR(std::max(heads[0][0].get<double>(), heads[1][0].get<double>()) / kAmax[layer][i], 1, 1e-5) << name;
    }
  }
  EXPECT_FALSE(
      io::read_json(stats() + "/inc_output_hooks_maxabs.json")["Nodes"].contains("model.layers.0.self_attn.k_cache"));
}

TEST_F(KvCache, EvaluateShowsTheEffect) {
  for (const bool head : {false, true}) {
    const auto json = json_of(
        run("evaluate",
            args("--json --data $HELDOUT --reference $DEMO --kv-cache fp8 --measurements {} --kv-cache-scales {}",
                 stats(), head ? "head" : "tensor")));
    const Expected& expected = head ? kHead : kTensor;
    EXPECT_NEAR(json["perplexity"].get<double>() / expected.perplexity, 1, 2e-4);
    EXPECT_NEAR(json["kl"].get<double>() / expected.kl, 1, 0.05);
    EXPECT_EQ(json["kv_cache"], "fp8");
    EXPECT_EQ(json["kv_cache_scales"], head ? "head" : "tensor");
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
    const auto config = io::read_json(folder / "out/config.json")["quantization_config"];
    EXPECT_EQ(config["kv_cache_scheme"]["num_bits"], 8);
    const auto evaluated = json_of(run_fp8("evaluate --json --model {} --data $HELDOUT --samples 2", out));
    EXPECT_EQ(evaluated["kv_cache"], "fp8");
    EXPECT_EQ(evaluated["kv_cache_scales"], "tensor");
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
  expect_failed(evaluate(args("--kv-cache fp8 --kv-cache-scales head")), {"--kv-cache-scales", "--measurements"}, 2);
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
