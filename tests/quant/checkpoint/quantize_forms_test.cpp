// SPDX-License-Identifier: Apache-2.0
// What a form's readers can't take stays as it is and is listed: ragged blocks with their siblings, transposed weights,
// stacked experts. Names that other engines fuse or number are quantized under their own.
#include <gmock/gmock.h>

#include <set>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/runtime/io/base/file.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::read_tensor;
using test::same_bits;
using ::testing::HasSubstr;

std::map<std::string, std::string> reasons(const CheckpointReport& report) {
  std::map<std::string, std::string> by_name;
  for (const auto& s : report.skipped) by_name[s.name] = s.reason;
  return by_name;
}

std::set<std::string> quantized(const CheckpointReport& report) {
  std::set<std::string> names;
  for (const auto& [name, scheme] : report.quantized) names.insert(name);
  return names;
}

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
  for (std::int64_t r = 0; r < scales.size(0); ++r) {
    for (std::int64_t c = 0; c < scales.size(1); ++c) {
      const auto cut = [&](const at::Tensor& t) {
        return t.slice(0, r * size, (r + 1) * size).slice(1, c * size, (c + 1) * size).contiguous();
      };
      const float inv = test::own_scale_inv(cut(weight).to(at::kFloat).abs().max().item<float>(), 448.0f);
      ASSERT_EQ(scales[r][c].item<float>(), inv) << r << " " << c;
      ASSERT_TRUE(same_bits(cut(codes), test::quantize_reference(cut(weight), {inv}, 448.0f).codes)) << r << " " << c;
    }
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
  f.options.plan.weights = WeightGranularity::block;
  f.options.plan.block = {16, 16};
  f.options.form = "fp8";
  const auto report = f.run();
  EXPECT_EQ(quantized(report), (std::set<std::string>{layer + "mlp.down_proj", layer + "self_attn.q_proj"}));
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
  EXPECT_EQ(config["quant_method"], "fp8");
  EXPECT_EQ(config["weight_block_size"], (io::Json{16, 16}));
  EXPECT_THAT(config.dump(),
              ::testing::AllOf(HasSubstr("\"" + layer + "mlp.up_proj\""), HasSubstr("\"" + layer + "mlp.gate_proj\"")));
}

TEST(CheckpointForms, NothingFitsTheBlocks) {
  Folder f;
  f.add("a.weight", {15, 16});
  f.options.plan.weights = WeightGranularity::block;
  f.options.plan.block = {16, 16};
  f.options.form = "fp8";
  EXPECT_REFUSED(f.run(), "no Linear module is left", "a: ", "no multiple of the block");
  f.options.plan.weights = WeightGranularity::channel;
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
    EXPECT_EQ(quantized(report), std::set<std::string>{"h.0.extra"});
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
  EXPECT_EQ(quantized(upright.run("{\"model_type\": \"gpt_bigcode\"}")).size(), 2u);
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
  EXPECT_EQ(quantized(report),
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
