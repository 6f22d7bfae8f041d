// SPDX-License-Identifier: Apache-2.0
// Copies of real conversions: scales per tensor, channel and block go along with all of a weight, activations' scales
// stay where they are, and a part of a weight is copied only where its scale is one number.

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "support/models_for_tests.h"

namespace fp8::quant {
namespace {

/// A converted [48, 32] layer; its weights are `size` times as large as usual.
torch::nn::Linear converted(WeightGranularity granularity, double size, std::uint64_t seed,
                            ActivationScaling activations = ActivationScaling::none) {
  torch::manual_seed(seed);
  torch::nn::Sequential model{{{"proj", torch::nn::Linear(32, 48)}}};
  auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->children()[0]);
  const torch::NoGradGuard no_grad;
  layer->weight.mul_(size * (1 + torch::arange(48).unsqueeze(1)));
  model->to(test::kHpu);
  PlanOptions o;
  o.weights = granularity;
  o.activations = activations;
  if (granularity == WeightGranularity::block) o.block = {16, 16};
  if (activations == ActivationScaling::static_tensor) {
    const auto session = measure::CalibrationSession::attach(*model, {});
    model->forward(torch::randn({8, 32}, test::on_hpu()) * size);
    session->finalize();
    o.measurements = session->result();
  }
  convert(*model, o);
  return torch::nn::Linear(layer);
}

at::Tensor input() { return torch::linspace(-1, 1, 64, test::on_hpu()).view({2, 32}); }
constexpr WeightGranularity kAll[] = {WeightGranularity::tensor, WeightGranularity::channel, WeightGranularity::block};

TEST(ConvertedCopies, AStateDictBringsItsScales) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    for (const bool by_host : {false, true}) {
      auto from = converted(granularity, 1, 1), to = converted(granularity, 98, 2);
      const at::Tensor expected = from(input());
      for (const auto& item : from->named_parameters())
        to->named_parameters()[item.key()].copy_(by_host ? item.value().cpu() : item.value());
      EXPECT_TRUE(same_bits(to(input()), expected)) << name_of(granularity) << by_host;
      EXPECT_TRUE(same_bits(runtime::dequantize(to->weight), runtime::dequantize(from->weight)));
      EXPECT_TRUE(same_bits(from(input()), expected));
    }
  }
}

/// Multiplies until its codes lie packed (runtime/device/block.h).
void use(torch::nn::Linear& layer) {
  serve(*layer);
  const auto packed = [&] {
    const auto* order = runtime::block_of(layer->weight)->order.load();
    return order != nullptr && order->packed;
  };
  for (int i = 0; i < 100 && !packed(); ++i) layer(input());
  ASSERT_TRUE(packed());
}

TEST(ConvertedCopies, OnlyServedWeightsArePacked) {
  const torch::NoGradGuard no_grad;
  auto layer = converted(WeightGranularity::channel, 1, 1);
  for (int i = 0; i < 50; ++i) layer(input());
  EXPECT_NE(layer->weight.const_data_ptr(), nullptr);
  EXPECT_EQ(serve(*layer), 1u);
  for (int i = 0; i < 50; ++i) layer(input());
  EXPECT_REFUSED(layer->weight.const_data_ptr(), "lie packed for products");
  EXPECT_EQ(serve(*torch::nn::Linear(4, 4)), 0u);
}

TEST(ConvertedCopies, OfAWeightInUseAreTheSame) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    SCOPED_TRACE(name_of(granularity));
    auto from = converted(granularity, 1, 1), to = converted(granularity, 98, 2), loaded = converted(granularity, 1, 1);
    const at::Tensor expected = from(input()), values = runtime::dequantize(from->weight).cpu(),
                     bytes = from->weight.view(at::kByte).cpu();
    use(from);
    EXPECT_TRUE(same_bits(from(input()), expected));
    use(to);
    to->weight.copy_(from->weight);
    to->bias.copy_(from->bias);
    EXPECT_TRUE(same_bits(to(input()), expected));
    use(from);
    EXPECT_TRUE(same_bits(from->weight.view(at::kByte).clone(), bytes));
    use(from);
    EXPECT_TRUE(same_bits(runtime::dequantize(from->weight), values));
    use(from);
    EXPECT_TRUE(same_bits(runtime::values_of_weight(from->weight.narrow(0, 5, 3)).cpu(), values.narrow(0, 5, 3)));
    use(from);
    std::stringstream stream;
    torch::save(from, stream);
    use(loaded);
    torch::load(loaded, stream);
    EXPECT_TRUE(same_bits(loaded(input()), expected));
    use(from);
    EXPECT_TRUE(same_bits(at::linear(input(), from->weight.t().t(), from->bias), expected));
    use(from);
    from->to(at::kCPU);
    EXPECT_TRUE(same_bits(from->weight.view(at::kByte), bytes));
    from->to(test::kHpu);
    EXPECT_TRUE(same_bits(from(input()), expected));
  }
}

TEST(ConvertedCopies, AWeightInUseServesOtherProducts) {
  const torch::NoGradGuard no_grad;
  auto layer = converted(WeightGranularity::channel, 1, 1);
  const at::Tensor many = torch::randn({100, 32}, test::on_hpu()), expected = layer(many);
  use(layer);
  EXPECT_TRUE(same_bits(layer(many), expected));
  const at::Tensor part = at::linear(many, layer->weight.narrow(0, 16, 16), layer->bias.narrow(0, 16, 16));
  EXPECT_TRUE(same_bits(part, expected.narrow(1, 16, 16)));
}

TEST(ConvertedCopies, TheActivationsScaleStays) {
  const torch::NoGradGuard no_grad;
  auto from = converted(WeightGranularity::tensor, 1, 1, ActivationScaling::static_tensor),
       to = converted(WeightGranularity::tensor, 98, 2, ActivationScaling::static_tensor);
  const auto handler = [](const torch::nn::Linear& l) {
    return dynamic_cast<const Fp8Handler*>(runtime::find_tag(l->weight)->handler.get());
  };
  const float its = handler(from)->scheme().input_scale_inv, mine = handler(to)->scheme().input_scale_inv;
  ASSERT_NE(its, mine);
  to->weight.copy_(from->weight);
  EXPECT_EQ(handler(to)->scheme().input_scale_inv, mine);
  EXPECT_EQ(handler(from)->scheme().input_scale_inv, its);
  EXPECT_TRUE(same_bits(runtime::dequantize(to->weight), runtime::dequantize(from->weight)));
}

TEST(ConvertedCopies, AnotherScaleMovesNoCopy) {
  const torch::NoGradGuard no_grad;
  auto layer = converted(WeightGranularity::tensor, 1, 1);
  const at::Tensor expected = layer(input()), values = runtime::dequantize(layer->weight);
  const at::Tensor host = layer->weight.cpu(), clone = layer->weight.clone();
  dynamic_cast<Fp8Handler&>(*runtime::find_tag(layer->weight)->handler).set_weight_scale_inv(3.0f);
  EXPECT_TRUE(same_bits(runtime::dequantize(clone), values));
  EXPECT_TRUE(same_bits(runtime::dequantize(host), values.cpu()));
  layer->weight.copy_(host);
  EXPECT_TRUE(same_bits(layer(input()), expected));
}

TEST(ConvertedCopies, BetweenGranularitiesThrow) {
  const torch::NoGradGuard no_grad;
  for (const auto a : kAll) {
    for (const auto b : kAll) {
      if (a == b) continue;
      auto from = converted(a, 1, 1), to = converted(b, 1, 2);
      const at::Tensor expected = to(input());
      EXPECT_REFUSED(to->weight.copy_(from->weight), "[copy]", "module 'proj'", "same scales", "before converting")
          << name_of(a) << " -> " << name_of(b);
      EXPECT_TRUE(same_bits(to(input()), expected));
    }
  }
}

TEST(ConvertedCopies, OfPartsNeedOneScale) {
  for (const auto granularity : kAll) {
    const auto layer = converted(granularity, 1, 1);
    const at::Tensor w = layer->weight.detach(), values = runtime::dequantize(w);
    const bool one = granularity == WeightGranularity::tensor;
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> parts = {
        [](const at::Tensor& t) { return t.narrow(0, 16, 8).clone(); },
        [](const at::Tensor& t) { return t.chunk(2, 1)[1].contiguous(); },
        [](const at::Tensor& t) { return t[3].clone(); }, [](const at::Tensor& t) { return t.diagonal().clone(); }};
    for (const auto& part : parts) {
      if (one) {
        EXPECT_TRUE(same_bits(runtime::dequantize(part(w)), part(values)));
      } else {
        EXPECT_REFUSED(part(w), "[copy]", "module 'proj'", "fp8::dequantize") << name_of(granularity);
      }
    }
    const at::Tensor flat = w.flatten().clone(), turned = w.t().clone();  // all of it, in its order
    EXPECT_TRUE(same_bits(runtime::dequantize(flat.view({48, 32})), values)) << name_of(granularity);
    EXPECT_TRUE(same_bits(runtime::dequantize(turned), values.t())) << name_of(granularity);
    EXPECT_TRUE(same_bits(runtime::dequantize(w.t().cpu().to(test::kHpu)), values.t())) << name_of(granularity);
  }
}

TEST(ConvertedCopies, PartsAreWrittenWhereTheirScalesAreTheSame) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    auto a = converted(granularity, 1, 1), same = converted(granularity, 1, 1), other = converted(granularity, 98, 2);
    const at::Tensor values = runtime::dequantize(a->weight);
    a->weight.narrow(0, 0, 16).copy_(same->weight.narrow(0, 0, 16));
    EXPECT_TRUE(same_bits(runtime::dequantize(a->weight), values));
    EXPECT_REFUSED(a->weight.narrow(0, 0, 16).copy_(other->weight.narrow(0, 0, 16)), "[copy]", "module 'proj'");
    if (granularity != WeightGranularity::tensor) {
      EXPECT_REFUSED(a->weight.narrow(0, 0, 16).copy_(same->weight.narrow(0, 16, 16)), "[copy]", "module 'proj'");
    }
    EXPECT_TRUE(same_bits(runtime::dequantize(a->weight), values));
  }
}

TEST(ConvertedCopies, ArchivesAndHostCopiesOfModels) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    auto a = converted(granularity, 1, 1), same = converted(granularity, 1, 1), other = converted(granularity, 98, 1);
    const at::Tensor expected = a(input());
    std::stringstream stream;
    torch::save(a, stream);
    const std::string bytes = stream.str();
    std::stringstream one(bytes), two(bytes);
    torch::load(same, one);
    EXPECT_TRUE(same_bits(same(input()), expected));
    EXPECT_REFUSED(torch::load(other, two), "[set_]", "module 'proj'", "same scales") << name_of(granularity);
    a->to(at::kCPU);
    EXPECT_REFUSED(a->to(at::kFloat), "module 'proj'");
    a->to(test::kHpu);
    EXPECT_TRUE(same_bits(a(input()), expected)) << name_of(granularity);
  }
}

}  // namespace
}  // namespace fp8::quant
