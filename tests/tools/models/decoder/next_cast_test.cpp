// SPDX-License-Identifier: Apache-2.0
// Norms and gated activations of converted models write the codes that the next products take: seen by products of a
// tensor that has been overwritten behind their back.
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/modules/linear_together.h"
#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/decoder/decoder_math.h"
#include "fp8/tools/models/load.h"
#include "support/hpu_test.h"
#include "support/test_data.h"

namespace fp8::models {
namespace {

using test::hpu;
using test::same_bits;

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
  quant::PlanOptions options;
  options.activations = activations;
  options.measurements = measure::MeasurementFile{};
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
    const auto* handler = runtime::find_tag(k->as<torch::nn::Linear>()->weight)->handler.get();
    if (all) {
      EXPECT_TRUE(
          cast->same_result(*dynamic_cast<const runtime::TogetherHandler*>(handler)->input_cast(at::kBFloat16)));
    }
  }
}

}  // namespace
}  // namespace fp8::models
