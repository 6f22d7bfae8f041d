// SPDX-License-Identifier: Apache-2.0
// Ops that a region promotes, leaves alone and never caches; our own operators in a region; lists that replace the
// default ones. every_op_test.cpp has the ops of the default lists.
#include "fp8/runtime/intercept/autocast_rules.h"

#include <torch/library.h>

#include "fp8/runtime/autocast/autocast.h"
#include "support/hpu_test.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

namespace autocast = runtime::autocast;
using autocast::AutocastGuard;
using autocast::AutocastLists;
using autocast::ListsGuard;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat, std::uint64_t seed = 3) {
  torch::manual_seed(seed);
  return at::randn(sizes, on_hpu()).to(dtype);
}

TEST(Promote, ToTheWidestOfTheArguments) {
  const at::Tensor f = random({3, 4}), b = random({3, 4}, at::kBFloat16, 4), h = random({3, 4}, at::kHalf, 5);
  const at::Tensor scalar = random({}, at::kFloat, 6);
  const at::Tensor list = at::cat({f, b.to(at::kFloat)}), sum = at::addcmul(b.to(at::kFloat), b.to(at::kFloat), f);
  const AutocastGuard region;
  EXPECT_EQ(at::add(b, b).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::add(f, f).scalar_type(), at::kFloat);
  EXPECT_EQ(at::add(b, f).scalar_type(), at::kFloat);
  EXPECT_EQ(at::sub(b, h).scalar_type(), at::kFloat);
  EXPECT_EQ(at::add(b, scalar).scalar_type(), at::kFloat) << "a float32 tensor counts whatever its dimensions";
  EXPECT_EQ(at::add(b, 1.5).scalar_type(), at::kBFloat16) << "a number does not";
  EXPECT_TRUE(same_bits(at::cat({f, b}), list));
  EXPECT_EQ(at::stack({b, b}).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(at::addcmul(b, b, f), sum));
  EXPECT_EQ(at::add(hpu(at::arange(3)), hpu(at::arange(3))).scalar_type(), at::kLong);
}

TEST(Casts, OnlyFloat16Bfloat16AndFloat32OnHpu) {
  const AutocastGuard region;
  const at::Tensor i = at::ones({3, 3}, on_hpu(at::kLong)), d = at::ones({3, 3}, on_hpu(at::kDouble));
  const at::Tensor c = at::ones({3, 3}, on_hpu(at::kComplexFloat)), cpu = at::ones({3, 3});
  EXPECT_EQ(at::mul(i, i).scalar_type(), at::kLong);
  EXPECT_EQ(at::mm(i, i).scalar_type(), at::kLong);
  EXPECT_EQ(at::mm(d, d).scalar_type(), at::kDouble);
  EXPECT_EQ(at::exp(d).scalar_type(), at::kDouble);
  EXPECT_EQ(at::mm(c, c).scalar_type(), at::kComplexFloat);
  EXPECT_EQ(at::mm(cpu, cpu).scalar_type(), at::kFloat);
  const at::Tensor codes = at::ones({3, 3}, on_hpu(at::kByte)).view(at::kFloat8_e4m3fn);
  EXPECT_EQ(at::cat({codes, codes}).scalar_type(), at::kFloat8_e4m3fn);
}

TEST(Casts, InPlaceAndOutFormsAndOpsInNoListAreLeftAlone) {
  const at::Tensor f = random({3, 3}), b = f.to(at::kBFloat16);
  const at::Tensor sine = at::sin(f), product = f * f, root = at::sqrt(b);
  const AutocastGuard region;
  EXPECT_TRUE(same_bits(at::sin(f), sine));
  EXPECT_TRUE(same_bits(at::sqrt(b), root));
  EXPECT_TRUE(same_bits(f.clone().mul_(f), product));
  at::Tensor out = at::empty({3, 3}, on_hpu());
  EXPECT_TRUE(same_bits(at::mul_out(out, f, f), product));
  EXPECT_EQ(b.clone().exp_().scalar_type(), at::kBFloat16);
}

at::Tensor users_op(const at::Tensor& x) { return x.sin(); }
TORCH_LIBRARY_FRAGMENT(fp8_autocast_test, m) { m.def("users_op(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(fp8_autocast_test, HPU, m) { m.impl("users_op", &users_op); }

TEST(Casts, OperatorsOfOthersFallThrough) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("fp8_autocast_test::users_op", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor f = random({3, 3}), expected = at::sin(f);
  const AutocastGuard region;
  EXPECT_TRUE(same_bits(op.call(f), expected));
  EXPECT_EQ(op.call(f.to(at::kHalf)).scalar_type(), at::kHalf);
}

TEST(Casts, AreNotCached) {
  const AutocastGuard region;
  const at::Tensor x = at::ones({2, 2}, on_hpu());
  at::Tensor w = at::ones({2, 2}, on_hpu()).requires_grad_(true);
  EXPECT_EQ(at::mm(x, w).sum().item<float>(), 8.0f);
  within(at::NoGradGuard(), [&] { w.mul_(2); });
  EXPECT_EQ(at::mm(x, w).sum().item<float>(), 16.0f);
}

// ---- operators of our own

TEST(OwnOps, RunWithAutocastOffInside) {
  std::size_t kernels = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string space = name.name.substr(0, name.name.find("::"));
    if (space != "hpu" && space != "fp8" && space != "quantized_decomposed") continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::HPU)) continue;
    ++kernels;
    EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::AutocastHPU))
        << name << ": define it with FP8_LIBRARY or FP8_LIBRARY_FRAGMENT";
  }
  EXPECT_GT(kernels, 20u);
}

at::Tensor call(const char* name, const char* overload, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(&stack);
  return stack[0].toTensor();
}

TEST(OwnOps, GiveTheSameBitsInARegion) {
  const at::Tensor codes = hpu(at::arange(-8, 8, at::kChar).reshape({4, 4}));
  const auto values = [&] {
    return call("quantized_decomposed::dequantize_per_tensor", "",
                {codes, 0.1234567, 1, -128, 127, at::kChar, c10::IValue()});
  };
  const at::Tensor w = hpu(at::arange(8, at::kInt).reshape({2, 4})), scale = random({1}).abs();
  const auto from_int4 = [&] { return call("hpu::convert_from_int4", "", {w, scale, c10::IValue(), at::kFloat}); };
  const at::Tensor expected = values(), expected4 = from_int4();
  const AutocastGuard region;
  EXPECT_TRUE(same_bits(values(), expected));
  EXPECT_TRUE(same_bits(from_int4(), expected4));
}

// ---- lists

AutocastLists lists_of(std::vector<std::string> lower, std::vector<std::string> fp32,
                       std::vector<std::string> promote = {}) {
  return AutocastLists{.lower = std::move(lower), .fp32 = std::move(fp32), .promote = std::move(promote)};
}

TEST(Registration, EveryDefaultNameIsAnOpOrAKnownExceptionOfPythons) {
  const AutocastLists lists = AutocastLists::defaults();
  EXPECT_THAT(autocast::check_lists(lists), ElementsAre());
  std::vector<std::string> not_ops;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto* names : {&lists.lower, &lists.fp32, &lists.promote})
    for (const std::string& name : *names) {
      std::size_t overloads = 0;
      for (const auto& op_name : dispatcher.getAllOpNames()) {
        if (op_name.name != "aten::" + name) continue;
        const auto op = dispatcher.findSchemaOrThrow(op_name.name.c_str(), op_name.overload_name.c_str());
        if (op.schema().is_mutable()) continue;
        ++overloads;
        EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::AutocastHPU)) << op_name;
      }
      if (overloads == 0) not_ops.push_back(name);
    }
  EXPECT_THAT(not_ops, ElementsAre("truediv", "iadd", "truediv"));
  for (const std::string& name : not_ops) EXPECT_TRUE(autocast::is_python_name(name));
}

TEST(CustomLists, ReplaceTheDefaultsAndComeBack) {
  const at::Tensor a = random({3, 3});
  const AutocastGuard region;
  {
    const ListsGuard lists(lists_of({"add", "mm"}, {"matmul"}));
    EXPECT_EQ(at::add(a, a).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kFloat);
    EXPECT_EQ(at::softmax(a, -1).scalar_type(), at::kFloat);
    EXPECT_THAT(autocast::lists().lower, ElementsAre("add", "mm"));
  }
  EXPECT_EQ(at::add(a, a).scalar_type(), at::kFloat);
  EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::softmax(a, -1).scalar_type(), at::kBFloat16);
  EXPECT_EQ(autocast::lists().lower, AutocastLists::defaults().lower);
}

TEST(CustomLists, AreGivenByAnOperator) {
  const ListsGuard before(autocast::lists());
  const at::Tensor f = random({3, 4});
  const auto unknown = call_fp8("set_autocast_lists", {Words{"relu", "rellu"}, c10::IValue()}).toListRef().vec();
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].toStringRef(),
            "autocast list lower (set_autocast_lists()): found 'rellu', no op that can be cast; nearest: 'relu'");
  EXPECT_EQ(autocast::lists().fp32, AutocastLists::defaults().fp32);
  const AutocastGuard region;
  EXPECT_EQ(at::relu(f).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::mm(f, f.t()).scalar_type(), at::kFloat);
}

TEST(CustomLists, TakeOpsThatWereInNoList) {
  const at::Tensor a = random({3, 3});
  const AutocastGuard region;
  EXPECT_EQ(at::gelu(a).scalar_type(), at::kFloat);
  {
    const ListsGuard lists(lists_of({"gelu", "rsub", "where"}, {}));
    EXPECT_EQ(at::gelu(a).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::rsub(a, 1).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::where(a > 0, a, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::gelu(a).scalar_type(), at::kFloat);
}

TEST(CustomLists, TheFirstOfLowerFp32PromoteCounts) {
  const at::Tensor a = random({3, 3}), b = a.to(at::kBFloat16);
  const AutocastGuard region;
  const ListsGuard lists(lists_of({"add"}, {"add", "sub"}, {"add", "sub", "mm"}));
  EXPECT_EQ(at::add(a, a).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::sub(b, b).scalar_type(), at::kFloat);
  EXPECT_EQ(at::mm(a, b).scalar_type(), at::kFloat);
}

TEST(CustomLists, LinearReachesTypedModules) {
  torch::nn::Linear layer(4, 5), without_bias(torch::nn::LinearOptions(4, 5).bias(false));
  layer->to(kHpu);
  without_bias->to(kHpu);
  const at::Tensor flat = random({3, 4}), deep = random({2, 3, 4}), other = random({4, 5});
  const auto dtypes = [&] {
    const AutocastGuard region;
    return std::vector<at::ScalarType>{layer(flat).scalar_type(), layer(deep).scalar_type(),
                                       without_bias(flat).scalar_type(), without_bias(deep).scalar_type()};
  };
  EXPECT_THAT(dtypes(), ::testing::Each(at::kBFloat16)) << "by addmm and matmul in the default lists";
  const ListsGuard lists(lists_of({"linear"}, {}));
  EXPECT_THAT(dtypes(), ::testing::Each(at::kBFloat16));
  {
    const AutocastGuard region;
    EXPECT_EQ(at::matmul(deep, other).scalar_type(), at::kFloat) << "no weight's form";
    EXPECT_EQ(at::addmm(layer->bias, flat, other).scalar_type(), at::kFloat);
    EXPECT_EQ(at::addmm(layer->bias, flat, layer->weight.t(), 1, 2).scalar_type(), at::kFloat);
  }
  const ListsGuard exact(lists_of({"linear"}, {"addmm", "matmul"}));
  EXPECT_THAT(dtypes(), ::testing::Each(at::kFloat)) << "their own rule comes first";
}

TEST(CustomLists, UnknownNamesAreReportedWithTheNearest) {
  const auto messages = autocast::check_lists(lists_of({"mm", "sofmax", "add_"}, {"layer_nrom", "topk"}, {"iadd"}));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_THAT(messages[0], HasSubstr("lower (default): found 'sofmax', no op that can be cast; nearest: 'softmax'"));
  EXPECT_THAT(messages[1], AllOf(HasSubstr("'add_'"), HasSubstr("nearest: 'add'")));
  EXPECT_THAT(messages[2], AllOf(HasSubstr("fp32"), HasSubstr("'layer_norm'")));
  std::vector<std::string> junk;
  for (int i = 0; i < 5000; ++i) junk.push_back("no_such_op_" + std::to_string(i));
  const auto many = autocast::check_lists(lists_of(junk, {}));
  ASSERT_EQ(many.size(), 11u);
  EXPECT_THAT(many.back(), HasSubstr("4990 more"));
}

TEST(CustomLists, WhatACastRunsItselfIsRefusedByName) {
  const at::Tensor a = random({3, 3});
  const auto bad = lists_of({"mm", "to", "_to_copy", "empty_like", "type_as"}, {"copy", "_autocast_to_full_precision"});
  const auto messages = autocast::check_lists(bad);
  ASSERT_EQ(messages.size(), 6u);
  for (const char* name :
       {"'to'", "'_to_copy'", "'empty_like'", "'type_as'", "'copy'", "'_autocast_to_full_precision'"})
    EXPECT_THAT(messages, ::testing::Contains(::testing::AllOf(HasSubstr(name), HasSubstr("casts run themselves"))));
  const ListsGuard lists(bad);
  const AutocastGuard region;
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
  EXPECT_EQ(a.to(at::kHalf).scalar_type(), at::kHalf);
  EXPECT_EQ(at::empty_like(a).scalar_type(), at::kFloat);
  EXPECT_EQ(a.type_as(at::ones({1}, on_hpu(at::kDouble))).scalar_type(), at::kDouble);
}

TEST(CustomLists, EveryOpOfATenAtOnceEndsInNoRecursion) {
  std::set<std::string> names;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames())
    if (op.name.rfind("aten::", 0) == 0) names.insert(op.name.substr(6));
  const at::Tensor a = random({3, 3}).requires_grad_(true);
  for (const bool fp32 : {false, true}) {
    const std::vector<std::string> all(names.begin(), names.end());
    const ListsGuard lists(fp32 ? lists_of({}, all) : lists_of(all, {}));
    const AutocastGuard region;
    const at::Tensor product = at::mm(a, a.to(at::kHalf));
    EXPECT_EQ(product.scalar_type(), fp32 ? at::kFloat : at::kBFloat16);
    product.sum().backward();
    EXPECT_TRUE(a.grad().defined());
    EXPECT_EQ(product.to(at::kDouble).scalar_type(), at::kDouble);
  }
}

TEST(CustomLists, AreInForceAtOnceInEveryThread) {
  std::atomic<int> step{0};
  at::ScalarType before = at::kDouble, after = at::kDouble;
  std::thread other([&] {
    const AutocastGuard region;
    const at::Tensor a = at::ones({2, 2}, on_hpu());
    before = at::erf(a).scalar_type();
    step = 1;
    while (step != 2) std::this_thread::yield();
    after = at::erf(a).scalar_type();
  });
  while (step != 1) std::this_thread::yield();
  {
    const ListsGuard lists(lists_of({"erf"}, {}));
    step = 2;
    other.join();
  }
  EXPECT_EQ(before, at::kFloat);
  EXPECT_EQ(after, at::kBFloat16);
}

}  // namespace
}  // namespace fp8::test
