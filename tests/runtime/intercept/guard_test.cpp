// SPDX-License-Identifier: Apache-2.0
// Codes are no values: an op that meets a tagged float8 weight and has no handler throws with the module's and the op's
// name. Upstream takes codes for values in every one of the silent cases below. Views, saving and same-type copies stay
// allowed.
#include <functional>
#include <sstream>

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

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
  {
    const at::NoGradGuard no_grad;
    other.layer->bias.fill_(3);
  }
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
                              w.expand({2, 4, 6}), w.view(at::kByte)}) {
    EXPECT_EQ(t.storage().data(), w.storage().data());
  }
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
