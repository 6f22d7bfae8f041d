// SPDX-License-Identifier: Apache-2.0
// A converted weight to its readers: values in print-outs, the dtype of its values to code that asks, and refusals that
// name the way out to code that asked weight.dtype() instead. Operands of converted modules lie on the module's device.

#include "support/hpu_test.h"
#include "support/operator_call.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;
using T = const at::Tensor&;

class KnownHandler final : public runtime::OpHandler {
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
  std::optional<at::ScalarType> values_dtype() const override { return at::kBFloat16; }
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
  EXPECT_THAT(text, HasSubstr("[ CPUFloat8_e4m3fnType{4,6}, weight of 'fc1'"));
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

// Codes are no values: an op that meets a tagged float8 weight and has no handler throws with the module's and the op's
// name. Upstream takes codes for values in every one of the silent cases below. Views, saving and same-type copies stay
// allowed.

/// A converted module: weight [4, 6] of codes, scale_inv 0.02.
struct Converted {
  torch::nn::Linear layer{torch::nn::LinearOptions(6, 4)};
  std::shared_ptr<CodesHandler> handler = std::make_shared<CodesHandler>(0.02);
  Converted() {
    torch::manual_seed(5);
    at::NoGradGuard no_grad;
    layer->weight.set_data(at::randn({4, 6}));
    layer->to(kHpu);
    convert_to_codes(layer->weight, "up_proj", handler, 0.02);
  }
  at::Tensor w() const { return layer->weight.detach(); }
};

struct Silent {
  const char* op;  ///< part of the op's name that the message must hold
  std::function<void(T w)> run;
};

TEST(Guard, EverySilentCaseThrowsWithModuleAndOp) {
  const at::Tensor ids = at::tensor({1, 0}, on_hpu(at::kLong)),
                   other = at::ones({4, 6}, on_hpu()).to(at::kFloat8_e4m3fn);
  const at::Tensor mask = at::ones({4, 6}, on_hpu(at::kBool)), scalar = at::scalar_tensor(2.0, on_hpu(at::kBFloat16));
  const std::vector<Silent> cases = {
      {"index_select", [&](T w) { w.index_select(0, ids); }},
      {"index", [&](T w) { w.index({ids}); }},
      {"gather", [&](T w) { w.gather(0, ids.view({1, 2})); }},
      {"cat", [&](T w) { at::cat({w, w}); }},
      {"cat", [&](T w) { at::cat({other, w}); }},
      {"stack", [&](T w) { at::stack({w, w}); }},
      {"where", [&](T w) { at::where(mask, w, other); }},
      {"mm", [&](T w) { at::mm(other, w.t()); }},
      {"mm", [&](T w) { at::mm(w, w.t()); }},
      {"mul", [&](T w) { at::mul(scalar, w); }},
      {"eq", [&](T w) { at::eq(w, w); }},
      {"eq", [&](T w) { at::eq(w, 1); }},
      {"isnan", [&](T w) { at::isnan(w); }},
      {"fill_", [&](T w) { w.view({4, 6}).fill_(1); }},
      {"zero_", [&](T w) { w.view({4, 6}).zero_(); }},
      {"index_put", [&](T w) { w.view({4, 6}).index_put_({ids}, other.narrow(0, 0, 2)); }},
      {"index_put", [&](T w) { other.clone().index_put_({ids}, w.narrow(0, 0, 2)); }},
      {"masked_fill", [&](T w) { w.view({4, 6}).masked_fill_(mask, 1); }},
      {"uniform_", [&](T w) { w.view({4, 6}).uniform_(); }},
      {"sum", [&](T w) { w.sum(); }},
      {"max", [&](T w) { w.max(); }},
      {"equal", [&](T w) { at::equal(w, other); }},
      {"abs", [&](T w) { w.abs(); }},
      {"add", [&](T w) { at::add(at::ones({4, 6}, on_hpu()), w); }},
      {"copy", [](T w) { w.to(at::kFloat); }},
      {"copy", [](T w) { w.to(at::kCPU, at::kBFloat16); }},
      {"copy", [](T w) { at::empty({4, 6}, on_hpu()).copy_(w); }},
      {"copy", [](T w) { w.view({4, 6}).copy_(at::ones({4, 6})); }},
      {"copy", [](T w) { w.to(at::kFloat8_e5m2); }},
      {"resize_", [](T w) { w.view({4, 6}).resize_({100}); }},
      {"set_", [](T w) { w.view({4, 6}).set_(at::ones({4, 6}, on_hpu())); }},
      {"softmax", [](T w) { at::softmax(w, -1); }},
      {"_foreach", [](T w) { at::_foreach_abs({w}); }},
  };
  in_every_mode([&] {
    for (const Silent& c : cases) {
      const Converted m;
      const auto before = m.w().cpu();
      EXPECT_REFUSED(c.run(m.w()), c.op, "module 'up_proj'", "Float8_e4m3fn") << c.op;
      EXPECT_TRUE(same_bits(m.w(), before)) << c.op;
    }
  });
}

TEST(Guard, InsideThePauseToo) {
  const Converted m;
  const runtime::InterceptionPause pause;
  const at::Tensor x = at::ones({2, 6}, on_hpu()), ids = at::tensor({1, 0}, on_hpu(at::kLong));
  EXPECT_REFUSED(m.layer.ptr()->forward(x), "addmm", "module 'up_proj'");
  EXPECT_REFUSED(at::embedding(m.w(), ids), "embedding", "module 'up_proj'");
  EXPECT_REFUSED(at::conv1d(at::ones({1, 6, 3}, on_hpu()), m.w().view({4, 6, 1})), "convolution", "module 'up_proj'");
}

TEST(Guard, ChangingTheTypeOfAModuleThrows) {
  const Converted m;
  const at::Tensor before = m.w().cpu();
  EXPECT_REFUSED(m.layer.ptr()->to(at::kFloat), "copy", "module 'up_proj'");
  EXPECT_REFUSED(m.layer.ptr()->to(at::kBFloat16), "copy", "module 'up_proj'");
  EXPECT_TRUE(same_bits(m.w(), before));
  EXPECT_NE(runtime::find_tag(m.layer->weight), nullptr);
}

TEST(Guard, LoadingAnArchiveOfAnotherTypeThrows) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kHalf}) {
    Converted m;
    const at::Tensor before = m.w().cpu();
    torch::nn::Linear source(6, 4);
    source->to(kHpu, type);
    std::stringstream stream;
    torch::save(source, stream);
    EXPECT_REFUSED(torch::load(m.layer, stream), "set_", "module 'up_proj'", "convert the module after loading")
        << type;
    EXPECT_TRUE(same_bits(m.w(), before)) << type;
  }
}

TEST(Guard, AMessageSaysWhatTheWeightIs) {
  const Converted m;
  EXPECT_REFUSED(
      m.w().abs(),
      "[aten::abs] the weight of module 'up_proj' is Float8_e4m3fn (E4M3 per tensor) and this op has no handler");
}

TEST(Guard, LoadingCodesIntoAConvertedModuleWorks) {
  Converted m, other;
  within(at::NoGradGuard(), [&] { other.layer->bias.fill_(3); });
  std::stringstream stream;
  torch::save(other.layer, stream);
  torch::load(m.layer, stream);
  EXPECT_TRUE(same_bits(m.w(), other.w()));
  m.layer(at::ones({2, 6}, on_hpu()));
  EXPECT_EQ(m.handler->linears, 1);
}

TEST(Allowed, ViewsDetachAndEmptyLike) {
  const Converted m;
  const at::Tensor w = m.w();
  for (const at::Tensor& t : {w.t(), w.view({24}), w[1], w.narrow(0, 1, 2), w.detach(), w.alias(), w.unsqueeze(0),
                              w.expand({2, 4, 6}), w.view(at::kByte)})
    EXPECT_EQ(t.storage().data(), w.storage().data());
  EXPECT_EQ(at::empty_like(w).scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(w.numel(), 24);
}

TEST(Allowed, SameTypeCopiesCarryTheTag) {
  const Converted m;
  const at::Tensor w = m.w();
  const at::Tensor clone = w.clone(), copied = at::empty_like(w).copy_(w);
  for (const at::Tensor& t : {clone, copied}) {
    ASSERT_NE(runtime::find_tag(t), nullptr);
    EXPECT_EQ(runtime::find_tag(t)->module_names(), "up_proj");
    EXPECT_TRUE(same_bits(t, w));
    at::linear(at::ones({2, 6}, on_hpu()), t);
  }
  EXPECT_EQ(m.handler->linears, 2);
  EXPECT_REFUSED(clone.abs(), "module 'up_proj'");
  // The tag does not describe a weight of another layout, so its scale would be unknown.
  EXPECT_REFUSED(w.t().contiguous(), "module 'up_proj'", "transposed copy");
}

TEST(Allowed, ToTheCpuAndBack) {
  const Converted m;
  const at::Tensor host = m.w().cpu();
  EXPECT_EQ(host.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(host, m.w()));
  at::Tensor w = m.w();
  w.copy_(host);
  EXPECT_NE(runtime::find_tag(w), nullptr);
}

TEST(Allowed, SavingAndCloningModules) {
  const Converted m;
  std::stringstream stream;
  torch::save(m.layer, stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, at::Device(at::kCPU));
  at::Tensor weight;
  archive.read("weight", weight);
  EXPECT_TRUE(same_bits(weight, m.w()));
  const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(m.layer->clone());
  EXPECT_NE(runtime::find_tag(clone->weight), nullptr);
  clone->forward(at::ones({2, 6}, on_hpu()));
  EXPECT_EQ(m.handler->linears, 1);
}

TEST(Allowed, ToTheSameDeviceAndTypeKeepsIt) {
  const Converted m;
  m.layer.ptr()->to(kHpu);
  ASSERT_NE(runtime::find_tag(m.layer->weight), nullptr);
  m.layer.ptr()->forward(at::ones({2, 6}, on_hpu()));
  EXPECT_EQ(m.handler->linears, 1);
}

TEST(Allowed, BytesOnPurpose) {
  const Converted m;
  EXPECT_GT(m.w().view(at::kByte).sum().item<std::int64_t>(), 0);
}

TEST(Allowed, WatchedWeightsMayDoAnything) {
  at::Tensor w = at::ones({4, 6}, on_hpu());
  runtime::tag_weight(w, "up_proj", std::make_shared<RecordingHandler>());
  EXPECT_EQ(error_of([&] {
              at::cat({w, w});
              w.to(at::kBFloat16);
              w.sum();
              w.fill_(2);
              w.set_(at::zeros({4, 6}, on_hpu()));
            }),
            "");
}

}  // namespace
}  // namespace fp8::test
