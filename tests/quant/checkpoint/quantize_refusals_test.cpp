// SPDX-License-Identifier: Apache-2.0
// What stops the work: bad tensors, bad folders, a caller that says stop. Nothing stands under the output's name then.

#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

struct Refusal {
  test::TempDir dir;
  test::NamedTensors tensors = test::small_llama(at::kBFloat16);
  CheckpointOptions options;

  void expect(const std::vector<std::string>& words) {
    test::write_llama(dir / "in", tensors);
    expect_as_it_is(words);
  }
  void expect_as_it_is(const std::vector<std::string>& words) {
    EXPECT_TRUE(throws_with(words, [&] { quantize_checkpoint(dir / "in", dir / "out", options); }));
    for (const auto& entry : fs::directory_iterator(dir.path()))
      EXPECT_EQ(entry.path().filename(), "in");  // no temporary folder, no lock
  }
  at::Tensor tensor(const std::string& name) const { return test::find(tensors, name); }
};

struct CheckpointRefusals : ::testing::Test {
  Refusal r;
};

TEST_F(CheckpointRefusals, NaNInAQuantizedTensor) {
  for (const bool channel : {true, false})
    for (const float bad : {NAN, INFINITY}) {
      Refusal r;
      r.tensor("model.layers.0.mlp.down_proj.weight")[35][52].fill_(bad);
      r.options.plan.weights = channel ? Granularity::channel : Granularity::tensor;
      r.expect({"model.layers.0.mlp.down_proj.weight"});
    }
}

TEST_F(CheckpointRefusals, NaNInAKeptTensor) {
  r.tensor("lm_head.weight")[49][35].fill_(NAN);
  r.expect({(r.dir / "in").string(), "lm_head.weight", "found NaN"});
}

TEST_F(CheckpointRefusals, QuantizedAlready) {
  const char* const said = R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})";
  r.tensors.emplace_back("lm_head.weight_scale", torch::ones({1}));
  test::write_llama(r.dir / "in", r.tensors);
  test::write_text(r.dir / "in/config.json", said);
  r.expect_as_it_is({"config.json", "quantization_config", "quantized already"});
  r.tensors.pop_back();
  test::write_tensors(r.dir / "in", r.tensors);
  r.options.overwrite = true;
  for (const char* config : {R"({"quantization_config": null})", R"({"quantization_config": {}})", said}) {
    test::write_text(r.dir / "in/config.json", config);  // as some tools write it; what a merge leaves over
    const auto warnings = quantize_checkpoint(r.dir / "in", r.dir / "out", r.options).warnings;
    const bool named = std::any_of(warnings.begin(), warnings.end(), [](const std::string& warning) {
      return warning.find("text_config.quantization_config (fp8) is a leftover") != std::string::npos;
    });
    EXPECT_EQ(named, config == said) << config;
    const auto written = io::read_json(r.dir / "out/config.json");
    EXPECT_EQ(written["quantization_config"]["quant_method"], "compressed-tensors");
    EXPECT_FALSE(written.contains("text_config") && written["text_config"].contains("quantization_config"));
  }
}

TEST_F(CheckpointRefusals, Fp8CodesWithoutAConfigThatSaysSo) {
  for (auto& [name, t] : r.tensors)
    if (name == "model.layers.0.mlp.up_proj.weight") t = t.to(at::kFloat8_e4m3fn);
  r.expect({"model.layers.0.mlp.up_proj.weight", "1 weights in codes", "F8_E4M3", "without scales"});
}

TEST_F(CheckpointRefusals, NothingLeftToQuantize) {
  r.options.plan.exclude = {"."};
  r.expect({(r.dir / "in").string(), "no module is left", "'exclude'"});
}

TEST_F(CheckpointRefusals, OnlyConvolutionsLeft) {
  r.tensors = {{"conv.weight", torch::ones({4, 3, 2, 2})}};
  r.expect({"no Linear module is left"});
}

TEST_F(CheckpointRefusals, E5M2HasNoPlaceInTheFormat) {
  r.options.plan.config =
      configs::parse_quant_config(io::Json{{"scale_method", "unit_scale"}, {"fp8_config", "E5M2"}}, "q");
  r.expect({"compressed-tensors holds E4M3, found E5M2"});
}

TEST_F(CheckpointRefusals, MeasurementsThatDoNotFit) {
  r.options.plan.activations = ActivationScaling::static_tensor;
  r.options.plan.measurements = measure::MeasurementFile{};
  r.expect({"no measurement of module 'model.layers.0."});
  auto& modules = r.options.plan.measurements->modules;
  for (const auto& [name, t] : r.tensors) {
    if (t.dim() == 2)
      modules.push_back({name.substr(0, name.size() - 7), {{1.0f}}, std::nullopt, measure::Amax{100.0f}});
  }
  for (const bool channel : {false, true}) {
    r.options.plan.weights = channel ? Granularity::channel : Granularity::tensor;
    r.expect({"was 100 when measured", "another model"});
  }
}

TEST_F(CheckpointRefusals, Folders) {
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "nowhere", r.dir / "out", r.options), "nowhere",
                 "expected a model folder, found nothing");
  test::write_text(r.dir / "file", "");
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "file", r.dir / "out", r.options), "file",
                 "expected a model folder, found a file");
  fs::remove(r.dir / "file");
  fs::create_directories(r.dir / "in");
  r.expect_as_it_is({"config.json"});
  test::write_text(r.dir / "in/config.json", "[]");
  r.expect_as_it_is({"config.json", "expected an object, found array"});
  test::write_text(r.dir / "in/config.json", "{}");
  r.expect_as_it_is({"model.safetensors"});
}

TEST_F(CheckpointRefusals, OutputsThatExistOrAreTheInput) {
  test::write_llama(r.dir / "in", r.tensors);
  r.options.overwrite = true;
  const auto before = folder_bytes(r.dir / "in");
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "in", r.dir / "in", r.options), "is the input itself");
  EXPECT_REFUSED(quantize_checkpoint(r.dir / "in", r.dir / "in/out", r.options), "inside the input");
  EXPECT_EQ(folder_bytes(r.dir / "in"), before);
  r.options.overwrite = false;
  quantize_checkpoint(r.dir / "in", r.dir / "out", r.options);
  const auto first = folder_bytes(r.dir / "out");
  EXPECT_THROW(quantize_checkpoint(r.dir / "in", r.dir / "out", r.options), io::Error);
  r.options.overwrite = true;
  quantize_checkpoint(r.dir / "in", r.dir / "out", r.options);
  EXPECT_EQ(folder_bytes(r.dir / "out"), first);
  // A run that fails leaves the older output as it was.
  r.tensor("lm_head.weight")[0][0].fill_(NAN);
  test::write_llama(r.dir / "in", r.tensors);
  EXPECT_THROW(quantize_checkpoint(r.dir / "in", r.dir / "out", r.options), io::Error);
  EXPECT_EQ(folder_bytes(r.dir / "out"), first);
}

TEST_F(CheckpointRefusals, AStopLeavesNothing) {
  for (int at = 0; at < 12; ++at) {
    Refusal r;
    int asked = 0;
    r.options.stop = [&] { return asked++ == at; };
    r.expect({"interrupted"});
    EXPECT_EQ(asked, at + 1);
  }
}

// What a form's readers can't take stays as it is and is listed: ragged blocks with their siblings, transposed weights,
// stacked experts. Names that other engines fuse or number are quantized under their own.

struct Folder {
  test::TempDir dir;
  test::NamedTensors tensors;
  CheckpointOptions options;

  void add(const std::string& name, std::vector<std::int64_t> shape) {
    tensors.emplace_back(name, torch::randn(shape).to(at::kBFloat16));
  }
  CheckpointReport run(const std::string& config = "{\"model_type\": \"llama\"}") {
    test::write_tensors(dir / "in", tensors);
    test::write_text(dir / "in/config.json", config);
    return quantize_checkpoint(dir / "in", dir / "out", options);
  }
  void expect_kept(const std::string& name) {
    EXPECT_TRUE(same_bits(read_tensor(dir / "out", name), test::find(tensors, name))) << name;
  }
};

/// Codes and scales of blocks by the formula, one block after the other.
void expect_blocks(const at::Tensor& weight, const at::Tensor& codes, const at::Tensor& scales, std::int64_t size) {
  for (std::int64_t r = 0; r < scales.size(0); ++r)
    for (std::int64_t c = 0; c < scales.size(1); ++c) {
      const auto cut = [&](const at::Tensor& t) {
        return t.slice(0, r * size, (r + 1) * size).slice(1, c * size, (c + 1) * size).contiguous();
      };
      const float inv = test::own_scale_inv(cut(weight).to(at::kFloat).abs().max().item<float>(), 448.0f);
      ASSERT_EQ(scales[r][c].item<float>(), inv) << r << " " << c;
      ASSERT_TRUE(same_bits(cut(codes), test::quantize_reference(cut(weight), {inv}, 448.0f).codes)) << r << " " << c;
    }
}

TEST(CheckpointForms, BlocksAndTheirRaggedSiblings) {
  Folder f;
  const std::string layer = "model.layers.0.";
  f.add(layer + "mlp.gate_proj.weight", {64, 48});
  f.add(layer + "mlp.up_proj.weight", {72, 48});  // 72 is no multiple of 16
  f.add(layer + "mlp.down_proj.weight", {48, 64});
  f.add(layer + "self_attn.q_proj.weight", {48, 48});
  f.tensors[2].second.slice(0, 16, 32).zero_();
  f.options.plan.weights = Granularity::block;
  f.options.plan.block = {16, 16};
  f.options.form = "fp8";
  const auto report = f.run();
  EXPECT_EQ(quantized_by(report), (std::set<std::string>{layer + "mlp.down_proj", layer + "self_attn.q_proj"}));
  EXPECT_THAT(reasons(report)[layer + "mlp.up_proj"], HasSubstr("[72, 48] is no multiple of the block 16x16"));
  EXPECT_THAT(reasons(report)[layer + "mlp.gate_proj"], HasSubstr("one product with " + layer + "mlp.up_proj"));
  f.expect_kept(layer + "mlp.gate_proj.weight");
  f.expect_kept(layer + "mlp.up_proj.weight");
  for (const std::string name : {"mlp.down_proj", "self_attn.q_proj"}) {
    const auto scales = read_tensor(f.dir / "out", layer + name + ".weight_scale_inv");
    expect_blocks(test::find(f.tensors, layer + name + ".weight"), read_tensor(f.dir / "out", layer + name + ".weight"),
                  scales, 16);
  }
  const auto config = io::read_json(f.dir / "out/config.json")["quantization_config"];
  expect_values(config, {{"quant_method", "fp8"}, {"weight_block_size", io::Json{16, 16}}});
  EXPECT_THAT(config.dump(),
              ::testing::AllOf(HasSubstr("\"" + layer + "mlp.up_proj\""), HasSubstr("\"" + layer + "mlp.gate_proj\"")));
}

TEST(CheckpointForms, NothingFitsTheBlocks) {
  Folder f;
  f.add("a.weight", {15, 16});
  f.options.plan.weights = Granularity::block;
  f.options.plan.block = {16, 16};
  f.options.form = "fp8";
  EXPECT_REFUSED(f.run(), "no Linear module is left", "a: ", "no multiple of the block");
  f.options.plan.weights = Granularity::channel;
  EXPECT_REFUSED(f.run(), "fp8 holds per tensor or block weights, found channel");
}

TEST(CheckpointForms, TransposedWeightsAreKept) {
  for (const bool named : {true, false}) {
    Folder f;
    f.add("h.0.attn.c_attn.weight", {12, 36});
    f.add("h.0.attn.c_proj.weight", {12, 12});
    f.add("h.0.mlp.c_fc.weight", {12, 48});
    f.add("h.0.extra.weight", {8, 12});
    const auto report = f.run(named ? "{\"model_type\": \"gpt2\"}" : "{}");
    EXPECT_EQ(quantized_by(report), std::set<std::string>{"h.0.extra"});
    for (const std::string name : {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc"}) {
      EXPECT_THAT(reasons(report)[name], HasSubstr("stored transposed")) << name;
      f.expect_kept(name + ".weight");
    }
    // vLLM builds Linear modules of them.
    const auto ignore =
        io::read_json(f.dir / "out/config.json")["quantization_config"]["ignore"].get<std::set<std::string>>();
    for (const char* name : {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc"})
      EXPECT_EQ(ignore.count(name), 1u) << name;
  }
  Folder upright;  // Linear weights of the same names
  upright.add("h.0.attn.c_attn.weight", {36, 12});
  upright.add("h.0.mlp.c_fc.weight", {48, 12});
  EXPECT_EQ(quantized_by(upright.run("{\"model_type\": \"gpt_bigcode\"}")).size(), 2u);
}

TEST(CheckpointForms, ExpertsRoutersAndFusedNames) {
  Folder f;
  const std::string mlp = "model.layers.0.mlp.", attn = "model.layers.0.self_attn.";
  for (const char* name :
       {"experts.0.gate_proj", "experts.0.up_proj", "experts.1.down_proj", "shared_experts.gate_up_proj"})
    f.add(mlp + name + ".weight", {12, 20});
  f.add(mlp + "gate.weight", {2, 20});
  f.add(mlp + "shared_expert_gate.weight", {1, 20});
  f.add(mlp + "experts.gate_up_proj", {2, 20, 24});
  f.add(mlp + "experts.down_proj.weight", {2, 12, 20});
  f.add("model.layers.0.block_sparse_moe.experts.3.w1.weight", {12, 20});
  for (const char* name : {"qkv_proj", "query_key_value", "W_pack"}) f.add(attn + name + ".weight", {36, 20});
  f.add("model.visual.blocks.0.attn.qkv.weight", {12, 20});
  const auto report = f.run();
  EXPECT_EQ(quantized_by(report),
            (std::set<std::string>{mlp + "experts.0.gate_proj", mlp + "experts.0.up_proj", mlp + "experts.1.down_proj",
                                   mlp + "shared_experts.gate_up_proj", "model.layers.0.block_sparse_moe.experts.3.w1",
                                   attn + "qkv_proj", attn + "query_key_value", attn + "W_pack"}));
  auto kept = reasons(report);
  EXPECT_THAT(kept[mlp + "experts.gate_up_proj"], HasSubstr("stacked"));
  EXPECT_THAT(kept[mlp + "experts.down_proj"], HasSubstr("stacked"));
  EXPECT_THAT(kept[mlp + "gate"], HasSubstr("router"));
  EXPECT_THAT(kept[mlp + "shared_expert_gate"], HasSubstr("router"));
  EXPECT_THAT(kept["model.visual.blocks.0.attn.qkv"], HasSubstr("vision tower"));
  EXPECT_EQ(kept.size(), 5u);
  f.expect_kept(mlp + "experts.gate_up_proj");
  f.expect_kept(mlp + "experts.down_proj.weight");
  const auto ignore =
      io::read_json(f.dir / "out/config.json")["quantization_config"]["ignore"].get<std::set<std::string>>();
  EXPECT_EQ(ignore, (std::set<std::string>{mlp + "gate", mlp + "shared_expert_gate", mlp + "experts",
                                           "model.visual.blocks.0.attn.qkv"}));
}

TEST(CheckpointForms, CacheScalesArePutWhereTheFormHasThem) {
  Folder f;
  f.add("model.layers.0.self_attn.k_proj.weight", {12, 20});
  f.options.kv = {{"model.layers.0.self_attn", {0.25f}, {0.5f}}};
  f.run();
  EXPECT_EQ(read_tensor(f.dir / "out", "model.layers.0.self_attn.k_scale").item<float>(), 0.25f);
  EXPECT_EQ(read_tensor(f.dir / "out", "model.layers.0.self_attn.v_scale").item<float>(), 0.5f);
  EXPECT_TRUE(io::read_json(f.dir / "out/config.json")["quantization_config"]["kv_cache_scheme"].is_object());
  f.options.form = "modelopt";
  f.options.kv[0].k = {0.25f, 0.5f};
  f.options.overwrite = true;
  EXPECT_REFUSED(f.run(), "modelopt", "model.layers.0.self_attn");
}

TEST(CheckpointForms, WeightsCutIntoPartsAreTheSame) {
  Folder f;  // 80 MB of f32: two parts
  f.tensors.emplace_back("a.weight", torch::randn({5000, 4096}));
  f.run();
  const auto& w = f.tensors[0].second;
  const at::Tensor inv = w.abs().amax(1, true) / 448.0f;
  EXPECT_TRUE(same_bits(read_tensor(f.dir / "out", "a.weight_scale"), inv));
  const at::Tensor codes = (w * (1.0f / inv)).clamp(-448.0f, 448.0f).to(at::kFloat8_e4m3fn).view(at::kByte);
  EXPECT_TRUE(same_bits(read_tensor(f.dir / "out", "a.weight"), codes));
}

}  // namespace
}  // namespace fp8::quant
