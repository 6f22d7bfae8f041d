// SPDX-License-Identifier: Apache-2.0
// A converted weight to its readers: values in print-outs, the dtype of its values to code that asks, and refusals that
// name the way out to code that asked weight.dtype() instead. Operands of converted modules lie on the module's device.
#include <sstream>

#include "fp8/runtime/intercept/weight_tag.h"
#include "support/hpu_test.h"
#include "support/operator_call.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;

class KnownHandler final : public runtime::OpHandler, public runtime::CodedWeight {
 public:
  Tensor linear(const runtime::LinearCall& call) override {
    return at::matmul(call.x, codes_.decoded(call.weight).to(call.x.scalar_type()).t());
  }
  Tensor convolution(const runtime::ConvolutionCall& call) override { return codes_.convolution(call); }
  Tensor dequantize(const runtime::WeightTag& tag, const runtime::WeightView& view, const Tensor& w) override {
    return codes_.dequantize(tag, view, w).to(at::kBFloat16);
  }
  bool owns_values() const override { return true; }
  std::string describe() const override { return "E4M3 tensor weights"; }
  at::ScalarType values_dtype() const override { return at::kBFloat16; }
  Tensor scale_inv_values() const override { return at::full({1}, 0.25f); }

 private:
  mutable CodesHandler codes_{0.25};
};

/// A Linear(6, 4) whose weight is codes with scale_inv 0.25; its values are multiples of 0.25.
struct Shown {
  torch::nn::Linear layer{torch::nn::LinearOptions(6, 4).bias(false)};
  Tensor values;
  Shown() {
    torch::manual_seed(3);
    const at::NoGradGuard no_grad;
    values = at::randint(-8, 9, {4, 6}).to(at::kFloat) * 0.25;
    layer->weight.set_data(values.clone());
    layer->to(kHpu);
    const Tensor codes = (values / 0.25).to(at::kFloat8_e4m3fn).to(kHpu);
    layer->weight.set_requires_grad(false);
    layer->weight.set_data(codes);
    runtime::tag_weight(layer->weight, "fc1", std::make_shared<KnownHandler>());
  }
};

std::string printed(const Tensor& t) {
  std::ostringstream text;
  text << t;
  return text.str();
}

TEST(Print, OfAConvertedWeightShowsItsValuesAndItsFormat) {
  const Shown m;
  std::string expected = printed(m.values);
  expected = expected.substr(0, expected.find("[ CPU"));
  const std::string of_fc1 = ", weight of 'fc1': E4M3 tensor weights, scale_inv 0.25 ]";
  EXPECT_EQ(printed(m.layer->weight), expected + "[ HPUFloat8_e4m3fnType{4,6}" + of_fc1);
  EXPECT_EQ(printed(m.layer->weight[1][2]).substr(printed(m.values[1][2]).find("[ ")),
            "[ HPUFloat8_e4m3fnType{}" + of_fc1);
  EXPECT_EQ(printed(m.values), expected + "[ CPUFloatType{4,6} ]") << "all else is LibTorch's";
  EXPECT_EQ(printed(at::Tensor()), "[ Tensor (undefined) ]");
  EXPECT_EQ(describe_weight(m.layer->weight), "weight of 'fc1': E4M3 tensor weights, scale_inv 0.25");
  EXPECT_EQ(call_fp8("describe", {m.layer->weight}).toStringRef(), describe_weight(m.layer->weight));
  EXPECT_EQ(describe_weight(m.values), "");
  EXPECT_NE(runtime::find_tag(m.layer->weight), nullptr);
}

TEST(Print, OfACopyOnTheHostShowsItsValues) {
  const Shown m;
  const Tensor copy = m.layer->weight.detach().cpu();
  const std::string text = printed(copy), values = printed(m.values);
  EXPECT_EQ(text.substr(0, text.find("[ ")), values.substr(0, values.find("[ ")));
  EXPECT_NE(text.find("[ CPUFloat8_e4m3fnType{4,6}, weight of 'fc1'"), std::string::npos) << text;
  EXPECT_TRUE(same_bits(call_fp8("values", {copy}).toTensor(), m.values.to(at::kBFloat16)));
  EXPECT_EQ(values_dtype(copy), at::kBFloat16);
  EXPECT_REFUSED(copy.to(at::kFloat), "module 'fc1'") << "no op may compute with it";
}

TEST(Print, OfPartsShowsTheirValues) {
  const Shown m;
  const Tensor w = m.layer->weight.detach();
  const auto parts = [](const Tensor& t) {
    return std::vector{t.t(),
                       t[1],
                       t.select(1, 2),
                       t[1][2],
                       t.narrow(0, 1, 2),
                       t.narrow(1, 2, 3),
                       t.view({24}),
                       t.diagonal(),
                       t.view({2, 2, 6}),
                       t.as_strided({2, 2}, {7, 2}, 1),
                       t.slice(0, 0, 4, 2),
                       t.expand({2, 4, 6})};
  };
  const auto shown = parts(w), values = parts(m.values);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    EXPECT_TRUE(same_bits(shown[i].to(at::kCPU, at::kDouble), values[i].to(at::kDouble))) << i;
    EXPECT_TRUE(same_bits(call_fp8("values", {shown[i]}).toTensor(), values[i].to(at::kBFloat16))) << i;
  }
  EXPECT_REFUSED(call_fp8("values", {m.values}), "fp8::values", "converted weight", "Float", "cpu");
}

TEST(Print, OtherConversionsStayRefusedByName) {
  const Shown m;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    EXPECT_REFUSED(m.layer->weight.to(type), "module 'fc1'") << type;
  EXPECT_REFUSED(m.layer->weight.to(at::kDouble), "module 'fc1'") << "on the device";
}

TEST(ValuesDtype, IsThatOfTheValuesNotOfTheCodes) {
  const Shown m;
  EXPECT_EQ(m.layer->weight.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(values_dtype(m.layer->weight), at::kBFloat16);
  EXPECT_EQ(values_dtype(m.layer->weight.t()), at::kBFloat16);
  EXPECT_EQ(values_dtype(m.layer->weight[0]), at::kBFloat16);
  EXPECT_EQ(values_dtype(at::ones({2}, at::kHalf)), at::kHalf);
  EXPECT_EQ(values_dtype(at::ones({2}, on_hpu()).to(at::kFloat8_e4m3fn)), at::kFloat8_e4m3fn) << "no handler";
  Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "fc", std::make_shared<CodesHandler>(0.5), 0.5);
  EXPECT_EQ(values_dtype(w), at::kFloat) << "what its handler dequantizes to";
  EXPECT_EQ(static_cast<at::ScalarType>(call_fp8("values_dtype", {m.layer->weight}).toInt()), at::kBFloat16);
}

/// A model that asks its weight for the dtype of activations: with values_dtype it works before and after conversion.
struct Typed : torch::nn::Module {
  torch::nn::Linear fc1;
  explicit Typed(torch::nn::Linear layer) : fc1(register_module("fc1", std::move(layer))) {}
  Tensor forward(const Tensor& x) { return fc1(x.to(values_dtype(fc1->weight))); }
  Tensor forward_by_dtype(const Tensor& x) { return fc1(x.to(fc1->weight.scalar_type())); }
};

TEST(ValuesDtype, ATypedModelThatAsksForItRuns) {
  const Shown m;
  Typed model(m.layer);
  const Tensor x = at::randint(-4, 5, {3, 6}).to(at::kDouble);
  const Tensor y = model.forward(x.to(kHpu));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(
      same_bits(y.to(at::kDouble), at::matmul(x, m.values.to(at::kDouble).t()).to(at::kBFloat16).to(at::kDouble)));
}

TEST(ValuesDtype, IsNamedWhereActivationsHaveTheDtypeOfCodes) {
  const Shown m;
  Typed model(m.layer);
  const Tensor x = at::ones({3, 6}, on_hpu()), codes = x.to(m.layer->weight.scalar_type());
  for (const bool inference : {false, true}) {
    std::optional<c10::InferenceMode> mode;
    if (inference) mode.emplace();
    EXPECT_REFUSED(model.forward_by_dtype(x), "module 'fc1'", "Float8_e4m3fn", "fp8::values_dtype(weight)");
    EXPECT_REFUSED(at::linear(codes, m.layer->weight), "aten::linear", "module 'fc1'", "fp8::values_dtype(weight)");
    EXPECT_REFUSED(at::matmul(codes, m.layer->weight.t()), "aten::matmul", "fp8::values_dtype(weight)");
  }
  EXPECT_REFUSED(at::linear(x, m.layer->weight, at::ones({4}, on_hpu()).to(at::kFloat8_e4m3fn)), "aten::linear",
                 "'bias'", "fp8::values_dtype(weight)");
}

TEST(ConvertedModules, RefuseOperandsOnTheHost) {
  const Shown m;
  const Tensor x = at::ones({3, 6}), w = m.layer->weight, device_x = hpu(x);
  EXPECT_REFUSED(m.layer.ptr()->forward(x), "hpu:0 and cpu!", "FP8_HPU_MOVE_HOST_OPERANDS=1");
  EXPECT_REFUSED(at::linear(x, w), "aten::linear", "hpu:0 and cpu!");
  EXPECT_REFUSED(at::linear(device_x, w, at::ones({4})), "aten::linear", "hpu:0 and cpu!");
  EXPECT_REFUSED(at::embedding(w, at::tensor({1, 0}, at::kLong)), "aten::embedding", "hpu:0 and cpu!");
  EXPECT_REFUSED(at::conv1d(at::ones({1, 6, 3}), w.view({4, 6, 1})), "aten::conv1d", "hpu:0 and cpu!");
  Tensor watched = at::ones({4, 6}, on_hpu());
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(watched, "watched", handler);
  EXPECT_REFUSED(at::linear(x, watched), "hpu:0 and cpu!");
  EXPECT_TRUE(handler->calls.empty()) << "a handler sees no call that the device refuses";
}

TEST(ConvertedModules, TakeMovedOperandsWhereTheFlagSaysSo) {
  const ScopedVariable flag("FP8_HPU_MOVE_HOST_OPERANDS", "1");
  const Shown m;
  const Tensor x = at::ones({3, 6}), y = m.layer.ptr()->forward(x);
  EXPECT_EQ(y.device(), kHpu);
  EXPECT_TRUE(same_bits(y, m.layer.ptr()->forward(hpu(x))));
  const Tensor leaf = at::ones({3, 6}).requires_grad_(true);
  const Tensor from_leaf = at::linear(leaf, m.layer->weight);
  EXPECT_EQ(from_leaf.device(), kHpu);
  from_leaf.sum().backward();
  EXPECT_EQ(leaf.grad().device(), at::Device(at::kCPU));
  EXPECT_TRUE(same_bits(leaf.grad(), m.values.sum(0).expand({3, 6})));
}

}  // namespace
}  // namespace fp8::test
