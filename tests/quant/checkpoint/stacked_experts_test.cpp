// SPDX-License-Identifier: Apache-2.0
// Stacked experts in, one fp8 weight per expert out: names of the source's family, codes and scales by the formulas of
// each expert's own matrix, order and transposition by the products that the family computes from its stack.
#include "fp8/quant/checkpoint/stacked_experts.h"

#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/names/expert_weights.h"
#include "quant/checkpoint/stacked_checkpoint.h"

namespace fp8::quant {
namespace {

using test::Folder;
using test::kExperts;
using test::kHidden;
using test::kInner;

using Strings = std::array<const char*, 3>;
constexpr Strings kProjections = {"gate_proj", "up_proj", "down_proj"}, kNumbers = {"w1", "w3", "w2"};

/// How a family stacks, and what it calls an expert's weights: gate, up and down.
struct Family {
  const char *type, *parent, *router, *written;
  Strings names = kProjections;
  bool in_out = false;
  const char *gate_up = "experts.gate_up_proj", *down = "experts.down_proj";
};
const Family kFamilies[] = {
    {"qwen3_moe", "mlp.", "gate", "mlp.experts."},
    {"deepseek_v3", "mlp.", "gate", "mlp.experts."},
    {"jamba", "feed_forward.", "router", "feed_forward.experts."},
    {"mixtral", "mlp.", "gate", "block_sparse_moe.experts.", kNumbers},
    {"mixtral", "block_sparse_moe.", "gate", "block_sparse_moe.experts.", kNumbers},
    {"phimoe", "mlp.", "router", "block_sparse_moe.experts.", kNumbers},
    {"lfm2_moe", "feed_forward.", "gate", "feed_forward.experts.", kNumbers},
    {"llama4", "feed_forward.", "router", "feed_forward.experts.", kProjections, true},
    {"qwen3_vl_moe", "mlp.", "gate", "mlp.experts.", kProjections, true},
    {"qwen3_vl_moe", "mlp.", "gate", "mlp.experts."},
    {"granitemoe", "block_sparse_moe.", "router.layer", "block_sparse_moe.experts.", kProjections, false,
     "input_linear.weight", "output_linear.weight"},
    {"granitemoe", "block_sparse_moe.", "router", "block_sparse_moe.experts."},
    {"aria_text", "mlp.", "router", "mlp.experts.", kProjections, true, "experts.fc1.weight", "experts.fc2.weight"},
    {"gemma4_text", "", "router", "experts."},
};

TEST(StackedExperts, EveryFamilyGivesEachExpertItsOwnCodesScalesAndName) {
  for (const auto& family : kFamilies) {
    SCOPED_TRACE(std::string(family.type) + " " + family.parent + (family.in_out ? " in_out" : ""));
    Folder f(family.type);
    const test::Experts experts(kExperts, kInner, kHidden);
    const std::string layer = "model.layers.0.";
    f.add(
        test::stacked_layer(experts, layer + family.parent, family.in_out, family.gate_up, family.down, family.router));
    const auto report = f.run();
    EXPECT_EQ(report.quantized.size(), 3 * kExperts + 1);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = layer + family.written + std::to_string(e) + ".";
      const auto i = static_cast<std::size_t>(e);
      f.expect_channels(expert + family.names[0], experts.gate[i]);
      f.expect_channels(expert + family.names[1], experts.up[i]);
      f.expect_channels(expert + family.names[2], experts.down[i]);
    }
    EXPECT_EQ(f.names().size(), 2u * (3 * kExperts + 1) + 1) << "nothing else but the router";
    EXPECT_EQ(report.weights_bytes, io::Checkpoint(f.dir / "out").total_bytes());
  }
}

TEST(StackedExperts, OrderAndAxesByTheFamilysOwnProduct) {
  const at::Tensor x = torch::randn({7, kHidden}, at::kDouble);
  const auto silu = [](const at::Tensor& t) { return t * torch::sigmoid(t); };
  for (const bool in_out : {false, true}) {
    Folder f(in_out ? "llama4" : "qwen3_moe");
    const test::Experts experts(kExperts, kInner, kHidden);
    const std::string mlp = "model.layers.0.mlp.", parent = in_out ? "model.layers.0.feed_forward." : mlp;
    f.add(test::stacked_layer(experts, parent, in_out));
    f.run();
    const at::Tensor up = test::find(f.tensors, parent + "experts.gate_up_proj").to(at::kDouble),
                     down = test::find(f.tensors, parent + "experts.down_proj").to(at::kDouble);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      // As transformers computes it: linear(x, gate_up[e]).chunk(2), or bmm(x, gate_up[e]).chunk(2).
      const auto both = (in_out ? x.matmul(up[e]) : torch::linear(x, up[e])).chunk(2, -1);
      const at::Tensor inner = silu(both[0]) * both[1],
                       want = in_out ? inner.matmul(down[e]) : torch::linear(inner, down[e]);
      const std::string expert = parent + "experts." + std::to_string(e) + ".";
      const at::Tensor cast =
          silu(torch::linear(x, f.decoded(expert + "gate_proj"))) * torch::linear(x, f.decoded(expert + "up_proj"));
      const at::Tensor got = torch::linear(cast, f.decoded(expert + "down_proj"));
      EXPECT_LT((got - want).norm().item<double>(), 0.1 * want.norm().item<double>()) << e;
    }
  }
}

TEST(StackedExperts, TheRouterIsRenamedWithItsExperts) {
  Folder f("phimoe");
  const test::Experts experts(kExperts, kInner, kHidden);
  f.add(test::stacked_layer(experts, "model.layers.0.mlp.", false, "experts.gate_up_proj", "experts.down_proj",
                            "router"));
  f.add({{"model.layers.1.mlp.gate_proj.weight", torch::randn({8, 8})}});  // no experts there
  f.run();
  const std::string router = "model.layers.0.block_sparse_moe.gate";
  EXPECT_TRUE(same_bits(f.out(router + ".weight"), test::find(f.tensors, "model.layers.0.mlp.router.weight")));
  EXPECT_THAT(f.quantization()["ignore"].get<std::vector<std::string>>(), Contains(router));
  EXPECT_THAT(f.names(), Contains("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_TRUE(io::read_json(f.dir / "out/fp8.json")["skipped"].contains(router));
}

TEST(StackedExperts, ProjectionsInStacksOfTheirOwn) {
  Folder f("step3p7");
  const test::Experts experts(kExperts, kInner, kHidden);
  const std::string moe = "model.layers.3.moe.";
  f.add({{moe + "gate_proj.weight", torch::stack(experts.gate)},
         {moe + "up_proj.weight", torch::stack(experts.up)},
         {moe + "down_proj.weight", experts.downs()}});
  EXPECT_EQ(f.run().quantized.size(), 3 * kExperts + 1);
  for (std::size_t e = 0; e < kExperts; ++e) {
    const std::string expert = moe + "experts." + std::to_string(e) + ".";
    f.expect_channels(expert + "gate_proj", experts.gate[e]);
    f.expect_channels(expert + "up_proj", experts.up[e]);
    f.expect_channels(expert + "down_proj", experts.down[e]);
  }
  f.options.plan.experts = ExpertForm::keep;
  f.options.overwrite = true;
  EXPECT_EQ(f.run().quantized.size(), 1u);
  EXPECT_THAT(f.quantization()["ignore"].get<std::vector<std::string>>(), Contains(moe + "experts"));
}

TEST(StackedExperts, AProjectionAlone) {
  Folder f("nemotron_h");
  const test::Experts experts(kExperts, kInner, kHidden);
  f.add({{"model.layers.0.mixer.experts.up_proj", torch::stack(experts.up)},
         {"model.layers.0.mixer.experts.down_proj", experts.downs()}});
  EXPECT_EQ(f.run().quantized.size(), 2 * kExperts + 1);
  for (std::size_t e = 0; e < kExperts; ++e) {
    f.expect_channels("model.layers.0.mixer.experts." + std::to_string(e) + ".up_proj", experts.up[e]);
    f.expect_channels("model.layers.0.mixer.experts." + std::to_string(e) + ".down_proj", experts.down[e]);
  }
}

TEST(StackedExperts, HalveACheckpointThatIsMadeOfThem) {
  Folder f("qwen3_moe");
  const test::Experts experts(16, 128, 256);
  f.add(test::stacked_layer(experts, "model.layers.0.mlp."));
  const auto report = f.run();
  std::uint64_t experts_bytes = 0;
  const io::Checkpoint out(f.dir / "out");
  for (const auto& name : out.names())
    experts_bytes += name.find(".experts.") != std::string::npos ? out.info(name).bytes() : 0;
  const double source = 3.0 * 16 * 128 * 256 * 2;
  EXPECT_GE(source, 0.95 * static_cast<double>(report.source_bytes));
  EXPECT_LE(static_cast<double>(experts_bytes), 0.52 * source);
  EXPECT_LE(static_cast<double>(fs::file_size(f.dir / "out/model.safetensors")),
            0.55 * static_cast<double>(fs::file_size(f.dir / "in/model.safetensors")));
}

TEST(StackedExperts, EveryFormHoldsThem) {
  const std::int64_t inner = 128, hidden = 256;
  const test::Experts experts(3, inner, hidden);
  struct Case {
    std::string form;
    Granularity weights;
    ActivationScaling activations;
  };
  for (const Case& c : {Case{"compressed-tensors", Granularity::channel, ActivationScaling::none},
                        Case{"compressed-tensors", Granularity::block, ActivationScaling::dynamic_token},
                        Case{"compressed-tensors", Granularity::tensor, ActivationScaling::dynamic_token},
                        Case{"fp8", Granularity::block, ActivationScaling::dynamic_token},
                        Case{"fp8", Granularity::tensor, ActivationScaling::dynamic_token},
                        Case{"modelopt", Granularity::channel, ActivationScaling::dynamic_token},
                        Case{"modelopt", Granularity::block, ActivationScaling::dynamic_token},
                        Case{"inc", Granularity::tensor, ActivationScaling::static_tensor}}) {
    Folder f("llama4");
    f.tensors.clear();
    f.add(test::stacked_layer(experts, "model.layers.0.feed_forward.", true));
    f.options.form = c.form;
    f.options.plan.weights = c.weights;
    f.options.plan.activations = c.activations;
    f.options.plan.block = {128, 128};
    if (c.activations == ActivationScaling::static_tensor) {
      measure::MeasurementFile file;
      for (int e = 0; e < 3; ++e) {
        for (const char* name : {"gate_proj", "up_proj", "down_proj"})
          file.modules.push_back({"model.layers.0.feed_forward.experts." + std::to_string(e) + "." + name,
                                  {{2.0f}},
                                  std::nullopt,
                                  std::nullopt});
      }
      f.options.plan.measurements = file;
    }
    EXPECT_EQ(f.run().quantized.size(), 9u) << c.form;
    // Our own reader sees them as it sees any Linear.
    const io::Checkpoint out(f.dir / "out");
    const StoredCheckpoint stored = read_stored(out);
    ASSERT_EQ(stored.weights.size(), 9u) << c.form;
    for (const auto& w : stored.weights) {
      const auto e =
          static_cast<std::size_t>(w.spec.module[std::string("model.layers.0.feed_forward.experts.").size()] - '0');
      const at::Tensor& want = w.spec.module.ends_with("gate_proj") ? experts.gate[e]
                               : w.spec.module.ends_with("up_proj") ? experts.up[e]
                                                                    : experts.down[e];
      ASSERT_EQ(w.spec.rows, want.size(0));
      at::Tensor codes = torch::empty({w.spec.rows, w.spec.cols}, at::kByte),
                 values = torch::empty({w.spec.rows, w.spec.cols});
      read_code_rows(out, w, 0, w.spec.rows, codes.data_ptr<std::uint8_t>());
      const auto scales = read_scale_inv(out, w);
      decode_weight_rows(codes.data_ptr<std::uint8_t>(), w.spec.rows, w.spec.cols, 0, scales.data(),
                         static_cast<std::int64_t>(scales.size()), w.spec.scheme, values.data_ptr(),
                         recipes::FloatType::F32);
      EXPECT_LT((values - want.to(at::kFloat)).norm().item<double>(), 0.04 * want.to(at::kFloat).norm().item<double>())
          << w.spec.module;
    }
  }
}

TEST(StackedExperts, SingleOnesAreConvertedLikeAnyLinear) {
  Folder f("mixtral");
  const test::Experts experts(kExperts, kInner, kHidden);
  f.add(test::stacked_layer(experts, "model.layers.0.mlp."));
  f.run();
  ConvertOptions to{.form = "modelopt"};
  EXPECT_EQ(convert_checkpoint(f.dir / "out", f.dir / "modelopt", to).modules.size(), 3u * kExperts + 1);
  const auto ignored =
      io::read_json(f.dir / "modelopt/config.json")["quantization_config"]["ignore"].get<std::vector<std::string>>();
  EXPECT_THAT(ignored, ::testing::Not(Contains(HasSubstr("experts"))));
  to.type = recipes::FloatType::BF16;
  convert_checkpoint(f.dir / "out", f.dir / "bf16", to);
  for (std::size_t e = 0; e < kExperts; ++e) {
    const std::string expert = "model.layers.0.block_sparse_moe.experts." + std::to_string(e) + ".w3";
    EXPECT_TRUE(
        same_bits(read_tensor(f.dir / "bf16", expert + ".weight"), f.decoded(expert).to(at::kFloat).to(at::kBFloat16)))
        << expert;
  }
}

TEST(StackedExperts, GateAndUpOfAnExpertShareAScalePerTensor) {
  Folder f("qwen3_moe");
  const test::Experts experts(kExperts, kInner, kHidden);
  f.add(test::stacked_layer(experts, "model.layers.0.mlp."));
  f.options.plan.weights = Granularity::tensor;
  f.run();
  for (std::size_t e = 0; e < kExperts; ++e) {
    const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    const float fused =
        std::max(test::amax_reference(experts.gate[e], 1)[0], test::amax_reference(experts.up[e], 1)[0]) / 448.0f;
    for (const char* name : {"gate_proj", "up_proj"}) {
      EXPECT_TRUE(same_bits(f.out(expert + name + ".weight_scale"), torch::tensor({fused})));
      EXPECT_TRUE(
          same_bits(f.out(expert + name + ".weight"),
                    test::quantize_reference(name[0] == 'g' ? experts.gate[e] : experts.up[e], {fused}, 448.0f).codes));
    }
  }
}

TEST(StackedExperts, ShardsAndRanksGiveTheSameBytes) {
  Folder f("llama4");
  f.add(test::stacked_layer(test::Experts(9, kInner, kHidden), "model.layers.0.feed_forward.", true));
  f.add(test::stacked_layer(test::Experts(9, kInner, kHidden), "model.layers.1.feed_forward.", true));
  f.options.shard_bytes = 3000;
  f.run();
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    f.options.world_size = 3;
    f.options.rank = rank;
    f.run("joined");
  }
  f.options.join = true;
  f.run("joined");
  const auto one = folder_bytes(f.dir / "out"), joined = folder_bytes(f.dir / "joined");
  EXPECT_GT(one.size(), 5u);
  for (const auto& [name, bytes] : one)
    EXPECT_TRUE(name == "fp8.json" || (joined.count(name) != 0 && joined.at(name) == bytes)) << name;
}

TEST(StackedExperts, TenThousandModules) {
  Folder f("qwen3_moe");
  const std::string experts = "model.layers.0.mlp.experts.";
  const std::int64_t count = 3'400;
  f.add({{experts + "gate_up_proj", torch::randn({count, 4, 4}).to(at::kBFloat16)},
         {experts + "down_proj", torch::randn({count, 4, 2}).to(at::kBFloat16)}});
  EXPECT_EQ(f.run().quantized.size(), 3u * count + 1);
  f.expect_channels(experts + "3399.up_proj", f.tensors[1].second[3399].slice(0, 2, 4).contiguous());
  f.expect_channels(experts + "3399.down_proj", f.tensors[2].second[3399]);
}

TEST(StackedExperts, ARunThatWasCutShortGoesOn) {
  Folder f("qwen3_moe");
  f.add(test::stacked_layer(test::Experts(40, kInner, kHidden), "model.layers.0.mlp."));
  f.run("whole");
  f.options.resume = true;
  int asked = 0;
  f.options.stop = [&] { return ++asked > 60; };
  EXPECT_REFUSED(f.run(), "interrupted");
  f.options.stop = {};
  const auto report = f.run();
  EXPECT_GT(report.units_kept, 0u);
  EXPECT_LT(report.units_kept, report.units);
  EXPECT_EQ(read_file(f.dir / "out/model.safetensors"), read_file(f.dir / "whole/model.safetensors"));
}

TEST(ExpertFamilies, RowsAreFoundByTypeOrByThatOfTheText) {
  EXPECT_NE(expert_family(io::Json{{"model_type", "mixtral"}}), nullptr);
  EXPECT_EQ(expert_family(io::Json{{"model_type", "mixtra"}}), nullptr);
  EXPECT_EQ(expert_family(io::Json{{"model_type", "qwen3_moe qwen3_next"}}), nullptr);
  EXPECT_EQ(expert_family(io::Json{{"model_type", 3}}), nullptr);
  EXPECT_EQ(expert_family(io::Json()), nullptr);
  EXPECT_EQ(expert_family(io::Json{{"model_type", "some_vl"}, {"text_config", {{"model_type", "llama4_text"}}}}),
            expert_family(io::Json{{"model_type", "llama4"}}));
  std::set<std::string> types;
  for (const auto& family : expert_families()) {
    std::istringstream words{std::string(family.model_types)};
    for (std::string type; words >> type;) EXPECT_TRUE(types.insert(type).second) << type << " has two rows";
    EXPECT_EQ(family.keep.empty(), !family.spellings[0].down.empty()) << family.model_types;
  }
}

}  // namespace
}  // namespace fp8::quant
