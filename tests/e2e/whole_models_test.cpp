// SPDX-License-Identifier: Apache-2.0
// Language models with attention, softmax and the key/value cache in fp8 as well as the projections, by QUANT_CONFIG as
// a user of Intel Neural Compressor sets it: one run measures, the next quantizes on load. Gated on the KL divergence
// to the high precision model, which bounds simulated on these models and texts give with room for the rounding grid's
// luck (1.25 times the worst measured).
#include <random>

#include "e2e/e2e.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::e2e {
namespace {

using models::testing::TinyMixtral;

struct Language {
  std::string model, calibration, text, skip, samples;
  double kl, kl_of_projections;  ///< bound with everything in fp8; below it, what projections alone give
};

Language kjv() { return {demo_model(), calibration_text(), heldout_text(), "0", "32", 4.8e-3, 2.6e-3}; }

Language stories(const std::filesystem::path& data) {
  const std::string text = (data / "text" / "ts_calib.txt").string();
  return {(data / "models" / "stories260K").string(), text, text, "40", "24", 5.5e-2, 1.9e-2};
}

std::string config(const test::TempDir& folder, const std::string& mode, const std::string& method) {
  const auto keys = R"("observer": "maxabs", "hp_dtype": "fp32", "mode": ")" + mode + R"(", "scale_method": ")" +
                    method + R"(", "blocklist": {"names": ["lm_head"], "types": ["Embedding"]})";
  return write_config(folder / (mode + ".json"), keys, folder / "stats/s");
}

/// Measured nodes whose name ends in `suffix`.
std::size_t measured(const std::filesystem::path& file, const std::string& suffix) {
  std::size_t count = 0;
  const auto json = io::read_json(file);
  for (const auto& item : json.at("Nodes").items()) {
    const std::string& name = item.key();
    count +=
        name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0 ? 1 : 0;
  }
  return count;
}

/// KL of the model quantized with everything in fp8 after a calibration on the first 32 chunks.
io::Json measure_and_quantize(const Language& l, const std::string& attention, const std::string& method,
                              const std::string& device, std::size_t layers) {
  const test::TempDir folder;
  const Arguments common = args("--model {} --seq-len 256 --attention {} --dtype f32", l.model, attention);
  Arguments measure = args("evaluate --data {} --samples 32 {}", l.calibration, common),
            quantize = args("evaluate --json --data {} --skip {} --samples {} --reference {} {}", l.text, l.skip,
                            l.samples, l.model, common);
  expect_success(fp8(measure, {{"QUANT_CONFIG", config(folder, "MEASURE", method)}, {"FP8_HPU_DEVICE", device}}));
  const auto stats = folder / "stats" / "s_hooks_maxabs.json";
  const std::vector<std::string> nodes =
      attention == "fused" ? std::vector<std::string>{"self_attn.fused_scaled_dot_product_attention",
                                                      "self_attn.k_cache", "self_attn.v_cache"}
                           : std::vector<std::string>{"self_attn.matmul_qk", "self_attn.softmax", "self_attn.matmul_av",
                                                      "self_attn.k_cache", "self_attn.v_cache"};
  for (const auto& node : nodes) EXPECT_EQ(measured(stats, node), layers) << node;
  return json_of(fp8(quantize, {{"QUANT_CONFIG", config(folder, "QUANTIZE", method)}, {"FP8_HPU_DEVICE", device}}));
}

using Parameters = std::tuple<const char*, const char*, const char*>;  // attention, scale method, device

class Attention : public ::testing::TestWithParam<Parameters> {};

TEST_P(Attention, KjvByteWithEverythingInFp8) {
  const auto [attention, method, device] = GetParam();
  const auto l = kjv();
  const auto json = measure_and_quantize(l, attention, method, device, 4);
  EXPECT_LE(json.at("kl").get<double>(), l.kl);
  EXPECT_GT(json.at("kl").get<double>(), l.kl_of_projections);  // attention is in fp8 too
}

TEST_P(Attention, Stories260KWithEverythingInFp8) {
  FP8_NEED_TEST_DATA(data);
  const auto [attention, method, device] = GetParam();
  const auto l = stories(data);
  const auto json = measure_and_quantize(l, attention, method, device, 5);
  EXPECT_LE(json.at("kl").get<double>(), l.kl);
  EXPECT_GT(json.at("kl").get<double>(), l.kl_of_projections);
}

INSTANTIATE_TEST_SUITE_P(All, Attention,
                         ::testing::Combine(::testing::Values("fused", "eager"),
                                            ::testing::Values("maxabs_hw", "maxabs_arbitrary"),
                                            ::testing::Values("gaudi2", "gaudi3")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) + "_" +
                                  std::get<2>(info.param);
                         });

TEST(AttentionKinds, InHighPrecisionBothGiveTheSameDistribution) {
  const auto evaluate = [](const std::string& attention) {
    const test::TempDir folder;
    expect_success(fp8(
        "evaluate --model $DEMO --data $HELDOUT --seq-len 256 --samples 2 --dtype f32 --attention {} --dump-logits {}",
        attention, folder / "logits"));
    const std::string bytes = Tensors::read(folder / "logits").bytes_of("logits");
    std::vector<float> logits(bytes.size() / sizeof(float));
    std::memcpy(logits.data(), bytes.data(), bytes.size());
    return logits;
  };
  const auto fused = evaluate("fused"), eager = evaluate("eager");
  ASSERT_EQ(fused.size(), eager.size());
  ASSERT_EQ(fused.size(), 2u * 256 * 256);
  for (std::size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], eager[i], 2e-3f) << i;
}

TEST(AttentionKinds, GenerateKeepsItsCacheInFp8) {
  const test::TempDir folder;
  const Arguments generate =
      args("generate --json --model $DEMO --prompt 'And the LORD said unto Moses, ' --tokens 60");
  expect_success(fp8(args("evaluate --model $DEMO --data $CALIB --samples 8"),
                     {{"QUANT_CONFIG", config(folder, "MEASURE", "maxabs_hw")}}));
  const auto text =
      json_of(fp8(generate, {{"QUANT_CONFIG", config(folder, "QUANTIZE", "maxabs_hw")}})).at("text").get<std::string>();
  const auto plain = json_of(fp8(generate)).at("text").get<std::string>();
  EXPECT_EQ(text.size(), plain.size());
  std::size_t same = 0;  // greedy text from fp8 follows the high precision one at first
  while (same < text.size() && text[same] == plain[same]) ++same;
  EXPECT_GE(same, 4u) << text << "\n" << plain;
}

// A tiny Mixtral from the command line: measured and quantized on load by QUANT_CONFIG, and written as an fp8
// checkpoint and read back. Its weights are noise, so the KL bounds are loose: they tell fp8 (some 1e-3) from a wrong
// scale or expert (1e-1 and more).

constexpr std::int64_t kChunks = 6, kLength = 32;

struct Mixtral : ::testing::Test {
  void SetUp() override {
    TinyMixtral().write(folder / "model");
    write_ids("ids", kChunks, [](std::size_t i) { return (i * i + 5 * i + i / 7) % 32; });
  }
  template <class Id>
  void write_ids(const std::string& name, std::int64_t chunks, Id id) const {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(chunks * kLength));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(id(i));
    io::SafetensorsWriter writer(folder / (name + ".safetensors"), {{"input_ids", io::DType::I64, {chunks, kLength}}});
    writer.write("input_ids", ids.data());
    writer.commit();
  }
  std::string model() const { return (folder / "model").string(); }
  std::string data() const { return (folder / "ids.safetensors").string(); }
  double kl(const std::string& of, const Environment& environment = {}) const {
    return json_of(fp8(args("evaluate --json --model {} --data {} --reference {}", of, data(), model()), environment))
        .value("kl", 1e9);
  }
  test::TempDir folder;
};

TEST_F(Mixtral, QuantConfigMeasuresAndQuantizesItsExperts) {
  const auto config = [&](const std::string& mode) {
    const auto keys = R"("observer": "maxabs", "scale_method": "maxabs_hw", "mode": ")" + mode +
                      R"(", "blocklist": {"names": ["lm_head", "gate"], "types": ["Embedding"]})";
    return Environment{{"QUANT_CONFIG", write_config(folder / (mode + ".json"), keys, folder / "stats/s")}};
  };
  expect_success(fp8(args("evaluate --model {} --data {}", model(), data()), config("MEASURE")));
  const auto nodes = io::read_json(folder / "stats" / "s_hooks_maxabs.json").at("Nodes");
  const std::string op = "model.layers.1.block_sparse_moe.experts.moe_op";
  ASSERT_TRUE(nodes.contains(op));
  EXPECT_EQ(nodes.at(op).at("inputs").size(), 1u);
  EXPECT_EQ(nodes.at(op).at("outputs").size(), 1u + TinyMixtral::kExperts);
  EXPECT_TRUE(nodes.contains(op + ".w13_list.3"));
  EXPECT_TRUE(nodes.contains(op + ".w2_list.0"));
  const double distance = kl(model(), config("QUANTIZE"));
  EXPECT_LE(distance, 2e-2);
  EXPECT_GT(distance, 1e-5);
}

TEST_F(Mixtral, AnFp8CheckpointRunsWithItsExperts) {
  for (const std::string scheme : {"--dynamic", "--weights-only"}) {
    const auto out = folder / ("fp8" + scheme);
    const auto run = fp8("quantize --model {} --out {} {}", model(), out, scheme);
    EXPECT_EQ(run.error(), "");  // vLLM has no such experts with weights alone, and a warning says so
    const auto tensors = Tensors::read(out / "model.safetensors");
    EXPECT_EQ(tensors.header.at("model.layers.0.block_sparse_moe.experts.2.w3.weight").at("dtype"), "F8_E4M3");
    EXPECT_NE(tensors.header.at("model.layers.0.block_sparse_moe.gate.weight").at("dtype"), "F8_E4M3");  // the router
    const double distance = kl(out.string());
    EXPECT_LE(distance, 2e-2) << scheme;
    EXPECT_GT(distance, 1e-5) << scheme;
  }
}

TEST_F(Mixtral, AConfigMeansItsExpertsByTheirNamesInMemory) {
  const auto out = (folder / "q").string();
  const auto path = write_config(folder / "q.json", R"("mode": "QUANTIZE", "scale_method": "unit_scale",
      "blocklist": {"names": ["lm_head", "gate", "layers.0.*moe_op.w2_list.1", "_cache"],
                    "types": ["ModuleFusedSDPA", "Matmul", "Softmax"]},
      "allowlist": {"types": ["MoeMatmul", "VllmMixtureOfExpertsOp"]})",
                                 folder / "x/s");
  const auto run = succeeded(fp8("quantize --model {} --out {} --config {}", model(), out, path));
  EXPECT_THAT(run.err, Not(HasSubstr("matches no module")));
  const auto tensors = Tensors::read(folder / "q" / "model.safetensors");
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  EXPECT_EQ(tensors.header.at("model.layers.1.block_sparse_moe.experts.1.w2.weight").at("dtype"), "F8_E4M3");
  EXPECT_NE(tensors.header.at(experts + "1.w2.weight").at("dtype"), "F8_E4M3");
  EXPECT_NE(tensors.header.at(experts + "0.w2.weight").at("dtype"), "F8_E4M3")
      << "readers run all experts of a layer as one product";
  EXPECT_NE(tensors.header.at(experts + "1.w3.weight").at("dtype"), "F8_E4M3");
  const auto explained = json_of(fp8("config explain {} --model {} --json", path, model()))["model"];
  EXPECT_TRUE(explained["unused"].empty()) << explained["unused"];
  std::map<std::string, bool> selected;
  for (const char* kind : {"modules", "nodes"})
    for (const auto& m : explained[kind]) selected[m["name"].get<std::string>()] = m["selected"].get<bool>();
  EXPECT_TRUE(selected.at(experts + "moe_op"));
  EXPECT_TRUE(selected.at(experts + "moe_op.w13_list.1"));
  EXPECT_FALSE(selected.at(experts + "moe_op.w2_list.1"));
}

TEST_F(Mixtral, ABudgetIsMetByTheCheckpointThatIsWritten) {
  const std::vector<std::string> arguments =
      args("quantize --json --model {} --dynamic --data {} --seq-len 32 --out", model(), data());
  const auto with = [&](const std::string& out, const std::string& budget) {
    auto all = arguments;
    all.insert(all.end(), {(folder / out).string(), "--budget", budget});
    return json_of(fp8(all));
  };
  const double all = with("all", "kl=1")["budget"]["kl_of_all"];
  const auto json = with("some", "kl=" + std::to_string(all / 2));
  const double promised = json["budget"]["kl"], found = kl((folder / "some").string());
  ASSERT_FALSE(json["budget"]["kept"].empty() && json["budget"]["weights_only"].empty());
  EXPECT_LE(promised, all / 2);
  EXPECT_NEAR(found, promised, 1e-2 * promised);
  std::set<std::string> names;
  for (const auto& s : json["modules_skipped"]) EXPECT_TRUE(names.insert(s["name"].get<std::string>()).second) << s;
}

TEST_F(Mixtral, ExpertsAreRoundedWithTheTokensRoutedToThem) {
  std::mt19937 random(5);
  write_ids("many", 64, [&](std::size_t) { return random() % 32; });
  const auto json =
      json_of(fp8("quantize --json --model {} --weights-only --rounding gptq --data {} --seq-len 32 --out {}", model(),
                  (folder / "many.safetensors").string(), folder / "gptq"));
  std::map<std::string, std::int64_t> tokens;
  for (const auto& m : json["rounding"]["modules"])
    tokens[m["name"]] = m["tokens"].get<int>() + m["held_back"].get<int>();
  const std::string layer = "model.layers.0.";
  std::int64_t routed = 0;
  for (int expert = 0; tokens.contains(layer + "block_sparse_moe.experts." + std::to_string(expert) + ".w1");
       ++expert) {
    const auto of = [&](const std::string& weight) {
      return tokens.at(layer + "block_sparse_moe.experts." + std::to_string(expert) + "." + weight);
    };
    EXPECT_EQ(of("w1"), of("w2")) << expert;
    EXPECT_EQ(of("w3"), of("w2")) << expert;
    routed += of("w2");
  }
  EXPECT_EQ(routed, 2 * tokens.at(layer + "self_attn.q_proj")) << "two experts a token";
  for (const auto& m : json["rounding"]["modules"]) {
    if (m["held_back"] == 0) continue;
    EXPECT_FALSE(m.contains("nearest_because")) << m;
    EXPECT_GT(m["db"].get<double>(), m["nearest_db"].get<double>() + 1) << m;
  }
  EXPECT_LT(kl((folder / "gptq").string()), 1e-3) << "each expert has its own codes";
  const auto kept =
      json_of(fp8("quantize --json --model {} --weights-only --experts keep --exclude v_proj --rounding gptq "
                  "--data {} --seq-len 32 --out {}",
                  model(), (folder / "many.safetensors").string(), folder / "kept"));
  EXPECT_EQ(kept["rounding"]["modules"].size(), kept["modules_quantized"]) << "only what the file has in fp8";
}

TEST_F(Mixtral, MeasuredExpertsGetStaticScalesInTheCheckpoint) {
  expect_success(fp8("measure --model {} --data {} --out {}", model(), data(), folder / "stats"));
  const auto out = folder / "static";
  quantize(model(), out, {"--measurements", (folder / "stats").string()});
  const auto nodes = io::read_json(folder / "stats" / "inc_output_hooks_maxabs.json").at("Nodes");
  const auto tensors = Tensors::read(out / "model.safetensors");
  const auto scale = [&](const std::string& tensor) {
    float value = 0;
    std::memcpy(&value, tensors.bytes_of(tensor).data(), sizeof value);
    return value;
  };
  const std::string experts = "model.layers.1.block_sparse_moe.experts.";
  const auto& mixture = nodes.at(experts + "moe_op");
  const float hidden = mixture.at("inputs")[0][0][0],
              inner = mixture.at("outputs")[3][0][0];  // y, then experts 0, 1, 2
  EXPECT_FLOAT_EQ(scale(experts + "2.w1.input_scale"), hidden / 448.0f);
  EXPECT_FLOAT_EQ(scale(experts + "2.w3.input_scale"), hidden / 448.0f);
  EXPECT_FLOAT_EQ(scale(experts + "2.w2.input_scale"), inner / 448.0f);
  const double distance = kl(out.string());
  EXPECT_LE(distance, 2e-2);
  EXPECT_GT(distance, 1e-5);
}

// silero_vad.jit, a real stateful TorchScript model, from the command line: its f32 run against the reference made by
// the original code, and its fp8 run (convolutions and LSTM products; STFT and the last 1x1 in f32) within the bounds
// that simulated fp8 leaves.

std::filesystem::path silero() { return test::test_data() / "models" / "silero-vad-16k"; }
std::string model() { return (silero() / "silero_vad.jit").string(); }
std::string sound() { return (silero() / "test.wav").string(); }

constexpr std::size_t kVadChunks = 1875, kCalibrated = 300;

std::vector<float> values(const std::filesystem::path& file, const std::string& tensor) {
  const std::string bytes = Tensors::read(file).bytes_of(tensor);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

struct Silero : ::testing::Test {
  void SetUp() override {
    if (test::test_data().empty()) GTEST_SKIP() << "FP8_TEST_DATA is not set";
    reference = values(silero() / "reference.safetensors", "prob_jit_fp32");
    ASSERT_EQ(reference.size(), kVadChunks);
  }
  std::vector<float> run(const Arguments& more, io::Json* json = nullptr) {
    Arguments arguments =
        args("run {} --data {} --out {} --overwrite --json {}", model(), sound(), folder / "out.safetensors", more);
    const auto result = json_of(fp8(arguments));
    if (json != nullptr) *json = result;
    return values(folder / "out.safetensors", "output");
  }
  void measure() {
    expect_success(fp8("measure --model {} --data {} --samples {} --exclude decoder\\.decoder --out {}", model(),
                       sound(), kCalibrated, folder / "stats"));
  }
  std::vector<float> reference;
  test::TempDir folder;
};

TEST_F(Silero, InF32ItGivesTheReference) {
  io::Json json;
  const auto p = run({}, &json);
  ASSERT_EQ(p.size(), kVadChunks);
  for (std::size_t i = 0; i < kVadChunks; ++i) ASSERT_NEAR(p[i], reference[i], 1e-4) << "chunk " << i;
  EXPECT_EQ(json.at("chunks"), kVadChunks);
  EXPECT_EQ(json.at("modules_quantized").size(), 0u);
}

TEST_F(Silero, InFp8ItStaysWithinTheBounds) {
  measure();
  io::Json json;
  const auto p = run(args("--measurements {} --exclude decoder\\.decoder", folder / "stats"), &json);
  ASSERT_EQ(p.size(), kVadChunks);
  double sum = 0;
  int flips = 0;
  for (std::size_t i = kCalibrated; i < kVadChunks; ++i) {
    sum += std::abs(static_cast<double>(p[i]) - reference[i]);
    flips += (p[i] > 0.5f) != (reference[i] > 0.5f) ? 1 : 0;
  }
  EXPECT_LE(sum / static_cast<double>(kVadChunks - kCalibrated), 0.007);
  EXPECT_GT(sum, 0.1);  // it did run in fp8
  EXPECT_LE(flips, 12);
  std::vector<std::string> quantized, never;
  for (const auto& m : json.at("modules_quantized")) quantized.push_back(m.at("name"));
  for (const auto& m : json.at("modules_kept"))
    if (m.at("reason").get<std::string>().find("never called") != std::string::npos) never.push_back(m.at("name"));
  EXPECT_THAT(quantized, ElementsAre("_model.encoder.0.reparam_conv", "_model.encoder.1.reparam_conv",
                                     "_model.encoder.2.reparam_conv", "_model.encoder.3.reparam_conv",
                                     "_model.decoder.rnn.weight_ih", "_model.decoder.rnn.weight_hh"));
  EXPECT_THAT(never, Each(StartsWith("_model_8k.")));
  EXPECT_EQ(never.size(), 6u);
}

TEST_F(Silero, AQuantConfigSaysTheSame) {
  const auto config = [&](const std::string& mode) {
    const auto keys = R"("observer": "maxabs", "scale_method": "maxabs_arbitrary", "hp_dtype": "fp32",
      "blocklist": {"names": ["decoder\\.decoder"], "types": []}, "ignore_modules_wo_measures": true, "mode": ")" +
                      mode + "\"";
    return write_config(folder / (mode + ".json"), keys, folder / "stats/s");
  };
  expect_success(fp8("measure --model {} --data {} --samples {} --out {} --config {}", model(), sound(), kCalibrated,
                     folder / "stats", config("MEASURE")));
  const auto p = run({"--config", config("QUANTIZE")});
  ASSERT_EQ(p.size(), kVadChunks);
  double sum = 0;
  for (std::size_t i = kCalibrated; i < kVadChunks; ++i) sum += std::abs(static_cast<double>(p[i]) - reference[i]);
  EXPECT_LE(sum / static_cast<double>(kVadChunks - kCalibrated), 0.007);
  EXPECT_GT(sum, 0.1);
}

TEST_F(Silero, AnEarlierRunIsTheReferenceOfALaterOne) {
  run({"--samples", "40"});
  std::filesystem::rename(folder / "out.safetensors", folder / "first.safetensors");
  io::Json json;
  run(args("--samples 40 --reference {}", folder / "first.safetensors"), &json);
  EXPECT_EQ(json.at("outputs").at("output").at("max_difference"), 0.0);
  expect_refused(fp8("run {} --data {} --samples 41 --reference {} --out {} --json", model(), sound(),
                     folder / "first.safetensors", folder / "x"),
                 {"expected a tensor 'output' of shape [41,1], found [40,1]"});
}

}  // namespace
}  // namespace fp8::e2e
