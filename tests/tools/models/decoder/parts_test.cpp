// SPDX-License-Identifier: Apache-2.0
// One pass against PyTorch's operations: the same bits, but for the order in which a norm's sums are added and the last
// bits of an exponential; and when the operations are taken.
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/modules/linear_together.h"
#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/load.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::models {
namespace {

using test::hpu;
using test::same_bits;
using testing::TinyMixtral;

constexpr double kEps = 1e-5;

at::Tensor norm_by_operations(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.to(at::kFloat);
  return weight * (wide * at::rsqrt(wide.pow(2).mean({-1}, true) + kEps)).to(x.scalar_type());
}

at::Tensor turned_by_operations(const at::Tensor& x, const RotaryAngles& angles) {
  const auto half = x.size(-1) / 2;
  return x * angles.cos + at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1) * angles.sin;
}

struct DecoderMath : ::testing::TestWithParam<at::ScalarType> {
  void SetUp() override { runtime::init(); }
  static at::TensorOptions options(at::Device device) { return at::dtype(GetParam()).device(device); }
  static at::Device hpu() { return at::Device(at::kHPU, 0); }
  const c10::NoGradGuard no_grad_;
};

TEST_P(DecoderMath, NormsAsPyTorchsOperationsDo) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    const at::Tensor x = (at::randn({2, 5, 96}) * 3).to(options(device)), weight = at::randn({96}).to(options(device));
    const at::Tensor expected = norm_by_operations(x, weight).cpu().to(at::kFloat);
    for (const at::Tensor& from : {x, x.transpose(0, 1).contiguous().transpose(0, 1)}) {
      const at::Tensor y = rms_norm(from, weight, kEps);
      EXPECT_EQ(y.scalar_type(), GetParam());
      EXPECT_EQ(y.device(), device);
      // The factor is within 2^-22 or so; bf16 may fall to the other side of a tie.
      const double steps = GetParam() == at::kFloat ? 0x1p-20 : 0x1p-7;
      const at::Tensor error = (y.cpu().to(at::kFloat) - expected).abs();
      EXPECT_TRUE((error <= expected.abs() * steps).all().item<bool>());
      EXPECT_LE(error.count_nonzero().item<double>(), GetParam() == at::kFloat ? 960 : 10);
    }
  }
}

/// bf16 may fall to the other side of a tie, now and then.
void expect_close(const at::Tensor& y, const at::Tensor& expected, const at::Tensor& size) {
  EXPECT_EQ(y.scalar_type(), expected.scalar_type());
  const bool f32 = y.scalar_type() == at::kFloat;
  const at::Tensor error = (y.cpu().to(at::kFloat) - expected.cpu().to(at::kFloat)).abs();
  EXPECT_TRUE((error <= size.cpu().to(at::kFloat) * (f32 ? 0x1p-20 : 0x1p-7)).all().item<bool>());
  if (f32) return;
  EXPECT_LE(error.count_nonzero().item<std::int64_t>(), y.numel() / 50);
}

TEST_P(DecoderMath, LayerNormsAsPyTorchDoes) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    const at::Tensor x = (at::randn({2, 5, 97}) * 3 + 1).to(options(device)), none;
    const at::Tensor weight = at::randn({97}).to(options(device)), bias = at::randn({97}).to(options(device));
    for (const at::Tensor& from : {x, x.transpose(0, 1).contiguous().transpose(0, 1)})
      for (const auto& [by, plus] : {std::pair{weight, bias}, {weight, none}, {none, none}}) {
        const at::Tensor y = layer_norm(from, by, plus, kEps);
        EXPECT_EQ(y.device(), device);
        EXPECT_EQ(y.sizes(), from.sizes());
        const at::Tensor expected = at::layer_norm(x, {97}, by, plus, kEps);
        // Where the bias takes most of a value away, what is left has its error.
        expect_close(y, expected, expected.abs() + (plus.defined() ? bias.abs() : at::ones({97}, options(device))));
      }
  }
}

TEST_P(DecoderMath, GatesAsPyTorchDoes) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    const at::Tensor both = (at::randn({2, 5, 2 * 67}) * 3).to(options(device));
    const at::Tensor gate = both.narrow(-1, 0, 67), up = both.narrow(-1, 67, 67);
    const at::Tensor expected = at::silu(gate) * up;
    expect_close(silu_mul(gate, up), expected, expected.abs());
    expect_close(silu_mul(gate.contiguous(), up.contiguous()), expected, expected.abs());
    const at::Tensor turned = gate.transpose(0, 1), other = up.transpose(0, 1);  // rows of no one stride
    EXPECT_TRUE(silu_mul(turned, other).cpu().equal((at::silu(turned) * other).cpu()));
  }
}

TEST_P(DecoderMath, TurnsAsPyTorchsOperationsDoToTheBit) {
  for (const auto device : {at::Device(at::kCPU), hpu()})
    for (std::int64_t length : {1, 7}) {
      const at::Tensor angles = at::randn({1, 1, length, 16});
      const RotaryAngles turn = {angles.cos().to(options(device)), angles.sin().to(options(device))};
      const at::Tensor x = at::randn({2, length, 3, 16}).to(options(device)).transpose(1, 2);
      const at::Tensor y = rotate(x, turn);
      EXPECT_EQ(y.device(), device);
      EXPECT_TRUE(y.cpu().equal(turned_by_operations(x.cpu(), {turn.cos.cpu(), turn.sin.cpu()})));
      const at::Tensor own = at::randn({2, 1, length, 16});  // of each sequence
      const RotaryAngles each = {own.cos().to(options(device)), own.sin().to(options(device))};
      EXPECT_TRUE(rotate(x, each).cpu().equal(turned_by_operations(x.cpu(), {each.cos.cpu(), each.sin.cpu()})));
    }
}

TEST_P(DecoderMath, ManyTokensAreNoOtherThanEachByItself) {
  const at::Tensor x = at::randn({300, 256}).to(options(hpu())), weight = at::randn({256}).to(options(hpu()));
  const at::Tensor all = rms_norm(x, weight, kEps).cpu();
  for (std::int64_t i : {0, 150, 299})
    EXPECT_TRUE(all[i].equal(rms_norm(x[i].unsqueeze(0), weight, kEps).cpu().squeeze(0)));
}

TEST_P(DecoderMath, GradientsAndAutocastTakeTheOperations) {
  const at::Tensor x = at::randn({4, 32}).to(options(hpu())), weight = at::randn({32}).to(options(hpu()));
  {
    const c10::AutoGradMode grad(true);
    const at::Tensor leaf = weight.detach().requires_grad_();
    rms_norm(x, leaf, kEps).sum().backward();
    EXPECT_TRUE(leaf.grad().defined());
    layer_norm(x, weight, leaf, kEps).sum().backward();
    const at::Tensor gate = x.detach().requires_grad_();
    silu_mul(gate, x).sum().backward();
    EXPECT_TRUE(gate.grad().defined());
  }
  at::autocast::set_autocast_enabled(at::kHPU, true);
  const at::Tensor y = rms_norm(x, weight, kEps), expected = norm_by_operations(x, weight);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(y.cpu().equal(expected.cpu()));
}

TEST(DecoderMathTypes, OthersTakeTheOperations) {
  const c10::NoGradGuard no_grad;
  const at::Tensor half = at::randn({3, 32}).to(at::kHalf), weight = at::randn({32});
  EXPECT_TRUE(rms_norm(half, weight.to(at::kHalf), kEps).equal(norm_by_operations(half, weight.to(at::kHalf))));
  const at::Tensor mixed = rms_norm(half.to(at::kBFloat16), weight, kEps);
  EXPECT_EQ(mixed.scalar_type(), at::kFloat);
  EXPECT_TRUE(mixed.equal(norm_by_operations(half.to(at::kBFloat16), weight)));
}

INSTANTIATE_TEST_SUITE_P(Types, DecoderMath, ::testing::Values(at::kBFloat16, at::kFloat));

// Mixtral: logits against those that transformers 5.23 gave for the same weights, both forms of expert weights,
// messages.

/// MixtralForCausalLM(vocab 32, H 16, F 24, 2 layers, 4 heads, 2 kv heads, 4 experts, top 2, eps 1e-5, theta 1e4), the
/// weights of TinyMixtral, ids (7 i + 3) mod 32 for i < 9: logits of the last position.
constexpr float kExpected[32] = {-0.490687f, 0.192377f,  0.060693f,  0.912907f,  -0.288463f, 0.601851f,  -0.352495f,
                                 0.442797f,  -0.120072f, -0.405856f, -0.359588f, -0.792800f, 0.446748f,  0.027425f,
                                 0.484523f,  -0.900479f, -0.060375f, 0.079572f,  -0.143254f, 0.166673f,  -0.246656f,
                                 -0.073335f, -0.165740f, 0.323439f,  0.093614f,  -0.512299f, -0.607556f, -0.220215f,
                                 0.161448f,  0.470490f,  0.051644f,  0.124963f};

LoadedModel load(const TinyMixtral& checkpoint, const LoadOptions& options = {}) {
  const test::TempDir folder;
  checkpoint.write(folder.path());
  return load_model(folder.path(), options);
}

at::Tensor last_logits(LoadedModel& loaded) {
  const at::NoGradGuard no_grad;
  const auto ids = ((at::arange(9, at::kLong) * 7 + 3) % 32).unsqueeze(0);
  return loaded.model->forward(ids).select(0, 0).select(0, -1).contiguous();
}

void expect_logits(LoadedModel& loaded) {
  const auto logits = last_logits(loaded);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(logits.const_data_ptr<float>()[i], kExpected[i], 2e-6) << i;
}

TEST(Mixtral, LogitsEqualTransformers) {
  auto loaded = load({});
  expect_logits(loaded);
  EXPECT_TRUE(loaded.unused.empty());
}

TEST(Mixtral, EagerAttentionToo) {
  auto loaded = load({}, {.attention = AttentionKind::eager});
  expect_logits(loaded);
}

TEST(Mixtral, StackedExpertsGiveTheSameBits) {
  TinyMixtral stacked;
  stacked.stack();
  auto a = load({}), b = load(stacked);
  EXPECT_TRUE(at::equal(last_logits(a), last_logits(b)));
  EXPECT_TRUE(b.unused.empty());
}

TEST(Mixtral, ExpertsAreNodesNamedAsVllms) {
  auto loaded = load({});
  std::vector<std::string> weights, ops;
  for (const auto& m : measure::weight_modules(*loaded.model))
    if (m.type == "MoeMatmul" || m.name.find("gate") != std::string::npos) weights.push_back(m.name + ":" + m.type);
  for (const auto& n : measure::op_nodes(*loaded.model))
    if (n.name.find("moe") != std::string::npos) ops.push_back(n.name + ":" + n.type);
  const std::string layer = "model.layers.0.block_sparse_moe.";
  EXPECT_THAT(weights, ::testing::IsSupersetOf({layer + "gate:Linear", layer + "experts.moe_op.w13_list.0:MoeMatmul",
                                                layer + "experts.moe_op.w2_list.3:MoeMatmul"}));
  EXPECT_EQ(weights.size(), 2u * (1 + 2 * TinyMixtral::kExperts));
  EXPECT_THAT(ops, ElementsAre("model.layers.0.block_sparse_moe.experts.moe_op:VllmMixtureOfExpertsOp",
                               "model.layers.1.block_sparse_moe.experts.moe_op:VllmMixtureOfExpertsOp"));
}

std::string load_error(const TinyMixtral& checkpoint) {
  return error_of<io::Error>([&] { load(checkpoint); });
}

TEST(Mixtral, WhatIsRefused) {
  TinyMixtral missing;
  missing.tensors.erase("model.layers.1.block_sparse_moe.experts.2.w3.weight");
  EXPECT_THAT(load_error(missing), HasSubstr("'model.layers.1.block_sparse_moe.experts.2.w3.weight' is missing"));
  TinyMixtral few;
  few.config["num_local_experts"] = 5;
  EXPECT_THAT(load_error(few), HasSubstr("experts.4.w2.weight' is missing"));
  TinyMixtral stacked;
  stacked.stack();
  stacked.config["num_local_experts"] = 5;
  EXPECT_THAT(load_error(stacked),
              HasSubstr("found shape [4, 16, 24], config.json asks for matrix 4 of a stack of [16, 24]"));
  TinyMixtral nan;
  nan.tensors.at("model.layers.0.block_sparse_moe.experts.1.w2.weight").values[5] = std::nanf("");
  EXPECT_THAT(load_error(nan), HasSubstr("experts.1.w2.weight' holds NaN"));
  TinyMixtral top;
  top.config["num_experts_per_tok"] = 5;
  EXPECT_THAT(load_error(top), HasSubstr("num_experts_per_tok"));
  TinyMixtral window;
  window.config["sliding_window"] = "4096";
  EXPECT_THAT(load_error(window), HasSubstr("sliding_window"));
}

// Norms and gated activations of converted models write the codes that the next products take: seen by products of a
// tensor that has been overwritten behind their back.

constexpr std::int64_t kHidden = 32;

/// A linear of `in` columns with a static or a dynamic scale of its input.
torch::nn::Linear converted(std::int64_t in, at::ScalarType dtype, quant::ActivationScaling activations) {
  torch::manual_seed(2);
  torch::nn::Linear linear(torch::nn::LinearOptions(in, 48).bias(false));
  torch::nn::Sequential holder;
  holder->push_back("m", linear);
  holder->to(dtype);
  holder->to(test::kHpu);
  holder->eval();
  quant::PlanOptions options{.activations = activations, .measurements = measure::MeasurementFile{}};
  options.measurements->modules.push_back({"m", {{3.5f}}, std::nullopt, std::nullopt});
  quant::convert(*holder, options);
  return linear;
}

/// make(next) gives the input of `linear`: with its codes the result survives the input's end, without it doesn't.
template <class Make>
void expect_codes(torch::nn::Linear& linear, const at::Tensor& like, const Make& make) {
  const at::Tensor plain = make(runtime::NextCast());
  const at::Tensor coded = make(runtime::input_cast(like, {linear}));
  ASSERT_TRUE(same_bits(coded, plain));
  const at::Tensor expected = linear->forward(plain.clone());
  EXPECT_GT(expected.abs().max().item<double>(), 0);
  for (const at::Tensor& y : {plain, coded}) y.data().zero_();
  EXPECT_TRUE(same_bits(linear->forward(coded), expected));
  EXPECT_EQ(linear->forward(plain).abs().max().item<double>(), 0);
}

TEST(NextCast, NormsAndGatesWriteTheCodesOfWhatFollows) {
  const torch::NoGradGuard no_grad;
  for (const auto activations : {quant::ActivationScaling::static_tensor, quant::ActivationScaling::dynamic_token})
    for (const auto dtype : {at::kBFloat16, at::kFloat}) {
      auto linear = converted(kHidden, dtype, activations);
      const at::Tensor x = hpu((torch::randn({2, 3, kHidden}) * 3).to(dtype));
      for (const auto kind : {NormSpec::Kind::rms, NormSpec::Kind::layer}) {
        NormSpec spec;
        spec.kind = kind;
        Norm norm("Norm", std::vector<std::int64_t>{kHidden}, spec);
        norm->weight.set_data(hpu(torch::randn({kHidden}).to(dtype)));
        norm->eval();
        expect_codes(linear, x, [&](const runtime::NextCast& next) { return norm->forward(x, next); });
      }
      const at::Tensor up = hpu(torch::randn({2, 3, kHidden}).to(dtype));
      expect_codes(linear, x, [&](const runtime::NextCast& next) { return silu_mul(x, up, next); });
    }
}

DecoderConfig small_config() {
  DecoderConfig config;
  config.shape.hidden = kHidden;
  config.mlp = {.activation = Activation::silu, .inner = 48};
  return config;
}

/// Fills the parameters below root, and converts it.
void convert(torch::nn::Module& root) {
  torch::manual_seed(4);
  for (const auto& item : root.named_parameters())
    item.value().set_data(hpu((torch::randn(item.value().sizes()) * 0.3).to(at::kBFloat16)));
  root.eval();
  quant::convert(root, quant::PlanOptions{});
}

TEST(NextCast, OfAnMlpIsThatOfGateAndUp) {
  const torch::NoGradGuard no_grad;
  for (const char* together : {"", "gate_up_proj"}) {
    auto config = small_config();
    config.names.gate_up = together;
    const auto root = std::make_shared<torch::nn::Module>("Root");
    Mlp mlp(config, config.mlp, *root);
    const at::Tensor x = hpu(torch::randn({1, 2, kHidden}).to(at::kBFloat16));
    EXPECT_FALSE(mlp.input_cast(x).has_value());
    convert(*root);
    ASSERT_TRUE(mlp.input_cast(x).has_value());
    const at::Tensor weight = hpu(torch::ones({kHidden}, at::kBFloat16));
    const at::Tensor coded = rms_norm(x, weight, 1e-5, {}, mlp.input_cast(x)), expected = mlp.forward(coded.clone());
    EXPECT_GT(expected.abs().max().item<double>(), 0);
    coded.data().zero_();
    EXPECT_TRUE(same_bits(mlp.forward(coded), expected));
    runtime::LeafListener listener;
    const runtime::Listening listening(listener);
    EXPECT_FALSE(mlp.input_cast(x).has_value());
  }
}

TEST(NextCast, OfAttentionIsThatOfAllItsProjections) {
  const torch::NoGradGuard no_grad;
  for (const bool all : {true, false}) {
    const auto loaded = load_model(test::demo_data() / "kjv-byte-1.7M", {.dtype = at::kBFloat16, .device = test::kHpu});
    quant::PlanOptions options;
    if (!all) options.exclude = {"v_proj"};
    quant::convert(*loaded.model, options);
    const auto attention = loaded.model->parts().layers->ptr(0)->as<DecoderLayer>()->attention;
    const auto k = loaded.model->named_modules()["model.layers.0.self_attn.k_proj"];
    const at::Tensor x = hpu(torch::randn({1, 2, k->as<torch::nn::Linear>()->weight.size(1)}).to(at::kBFloat16));
    const auto cast = attention->input_cast(x);
    EXPECT_EQ(cast.has_value(), all);
    EXPECT_FALSE(attention->input_cast(x.cpu()).has_value());
    auto* handler = runtime::find_tag(k->as<torch::nn::Linear>()->weight)->handler.get();
    if (all) {
      EXPECT_TRUE(cast->same_result(*handler->together()->input_cast(at::kBFloat16)));
    }
  }
}

}  // namespace
}  // namespace fp8::models
