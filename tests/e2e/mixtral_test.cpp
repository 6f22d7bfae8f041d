// SPDX-License-Identifier: Apache-2.0
// A tiny Mixtral from the command line: measured and quantized on load by QUANT_CONFIG, and written as an fp8
// checkpoint and read back. Its weights are noise, so the KL bounds are loose: they tell fp8 (some 1e-3) from a wrong
// scale or expert (1e-1 and more).
#include <set>

#include "e2e/e2e.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::e2e {
namespace {

using models::testing::TinyMixtral;

constexpr std::int64_t kChunks = 6, kLength = 32;

class Mixtral : public ::testing::Test {
 protected:
  void SetUp() override {
    TinyMixtral().write(folder / "model");
    std::vector<std::int64_t> ids(kChunks * kLength);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>((i * i + 5 * i + i / 7) % 32);
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {kChunks, kLength}}});
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
    quantize(model(), out, {scheme});
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
  const auto run = fp8("quantize --model {} --out {} --config {}", model(), out, path);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err.find("matches no module"), std::string::npos) << run.err;
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
  for (const char* kind : {"modules", "nodes"}) {
    for (const auto& m : explained[kind]) selected[m["name"].get<std::string>()] = m["selected"].get<bool>();
  }
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
  ASSERT_FALSE(json["budget"]["kept"].empty());
  EXPECT_LE(promised, all / 2);
  EXPECT_NEAR(found, promised, 1e-2 * promised);
  std::set<std::string> names;
  for (const auto& s : json["modules_skipped"]) EXPECT_TRUE(names.insert(s["name"].get<std::string>()).second) << s;
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

}  // namespace
}  // namespace fp8::e2e
