// SPDX-License-Identifier: Apache-2.0
// Make, resize, re-seat, copy, save and load on hpu, against the CPU's answers.
#include "fp8/runtime/dispatch/minimal_ops.h"

#include "fp8/runtime/dispatch/own_ops.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

TEST(Empty, HasTheAskedGeometry) {
  const at::Tensor a = at::empty({2, 3, 4, 5}, on_hpu(at::kBFloat16).memory_format(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(a.device(), kHpu);
  EXPECT_EQ(a.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(a.is_contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor b = at::empty_strided({3, 2}, {1, 5}, on_hpu());
  EXPECT_EQ(b.strides(), at::IntArrayRef({1, 5}));
  EXPECT_EQ(b.storage().nbytes(), 8u * 4);
  EXPECT_TRUE(at::empty_like(a).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(Empty, RefusesWhatItCanNotMake) {
  EXPECT_REFUSED(at::empty({-1}, on_hpu()), "negative dimension");
  EXPECT_NE(error_of([] { at::empty({std::int64_t{1} << 62, 8}, on_hpu()); }), "");
  EXPECT_NE(error_of([] { at::empty({2, 2}, on_hpu().layout(at::kSparse)); }), "");
  EXPECT_NE(error_of([] { at::empty_strided({2}, {-1}, on_hpu()); }), "");
}

TEST(Resize, GrowsKeepsAndShrinks) {
  at::Tensor a = at::arange(6, on_hpu()).view({2, 3});
  const at::Tensor view = a.view(-1);
  a.resize_({4});
  EXPECT_TRUE(same_bits(a, at::tensor({0., 1., 2., 3.}, at::kFloat)));
  EXPECT_EQ(a.storage().nbytes(), 24u);
  a.resize_({3, 50});
  EXPECT_EQ(a.storage().nbytes(), 600u);
  EXPECT_TRUE(same_bits(a.view(-1).narrow(0, 0, 6), at::arange(6, at::kFloat)));
  EXPECT_EQ(view.const_data_ptr(), a.const_data_ptr());
  a.fill_(2);
  EXPECT_EQ(a.sum().item<float>(), 300.0f);
  at::Tensor b = at::empty({0}, on_hpu());
  b.resize_as_(a);
  EXPECT_EQ(b.sizes(), a.sizes());
  EXPECT_NE(error_of([&] { b.resize_({-3}); }), "");
}

TEST(SetSource, Tensor) {
  at::Tensor a = at::zeros({2}, on_hpu());
  const at::Tensor b = at::arange(6, on_hpu()).view({2, 3}).t();
  a.set_(b);
  EXPECT_TRUE(a.is_set_to(b));
  a.fill_(1);
  EXPECT_EQ(b.sum().item<float>(), 6.0f);
  a.set_(a);
  EXPECT_EQ(a.sizes(), at::IntArrayRef({3, 2}));
}

TEST(SetSource, StorageWithAndWithoutGeometry) {
  const at::Tensor b = at::arange(12, on_hpu());
  at::Tensor a = at::empty({0}, on_hpu());
  a.set_(b.storage());
  EXPECT_TRUE(same_bits(a, at::arange(12, at::kFloat)));
  a.set_(b.storage(), 2, {2, 3});  // empty strides mean contiguous
  EXPECT_TRUE(same_bits(a, at::arange(2, 8, at::kFloat).view({2, 3})));
  a.set_(b.storage(), 1, {3, 2}, {4, 2});
  EXPECT_TRUE(same_bits(a, at::tensor({1., 3., 5., 7., 9., 11.}, at::kFloat).view({3, 2})));
}

TEST(SetSource, NothingEmptiesTheTensor) {
  at::Tensor a = at::ones({5}, on_hpu());
  a.set_();
  EXPECT_EQ(a.numel(), 0);
  EXPECT_EQ(a.device(), kHpu);
  a.resize_({3}).fill_(4);
  EXPECT_EQ(a.sum().item<float>(), 12.0f);
}

TEST(SetSource, RefusesWhatWouldBeMisread) {
  at::Tensor a = at::ones({4}, on_hpu());
  EXPECT_NE(error_of([&] { a.set_(at::ones({4}).storage(), 0, {4}); }), "");
  EXPECT_NE(error_of([&] { a.set_(a.storage(), -1, {2}); }), "");
  EXPECT_NE(error_of([&] { a.set_(a.storage(), 0, {2}, {-1}); }), "");
  EXPECT_NE(error_of([&] { a.set_(a.storage(), 0, {-2}); }), "");
  EXPECT_NE(error_of([&] { a.set_(a.storage(), 0, {std::int64_t{1} << 61}); }), "");
  float blob[4] = {};
  const at::Tensor foreign = torch::from_blob(blob, {4}, on_hpu());
  EXPECT_NE(error_of([&] { a.set_(foreign.storage(), 0, {400}); }), "");  // it can't grow
  at::Tensor codes = at::ones({4}, on_hpu()).to(at::kFloat8_e4m3fn);
  EXPECT_REFUSED(codes.set_(at::ones({4}, on_hpu())), "set_", "Float8_e4m3fn", "Float");
  EXPECT_TRUE(same_bits(a, at::ones({4})));
}

TEST(Copy, AllDirectionsDtypesAndStrides) {
  const at::Tensor cpu = at::randn({5, 7});
  at::Tensor a = at::empty({7, 5}, on_hpu()).t();
  a.copy_(cpu);
  EXPECT_TRUE(same_bits(a, cpu));
  EXPECT_TRUE(same_bits(a.to(at::kBFloat16), cpu.to(at::kBFloat16)));
  EXPECT_TRUE(same_bits(at::empty({5, 7}, at::kHalf).copy_(a), cpu.to(at::kHalf)));
  EXPECT_TRUE(same_bits(at::zeros({3, 5, 7}, on_hpu()).copy_(a), cpu.expand({3, 5, 7})));  // broadcasts
  EXPECT_REFUSED(a.copy_(at::ones({3})), "must match");
  const at::Tensor moved = cpu.to(kHpu, at::kDouble, /*non_blocking=*/true);
  EXPECT_TRUE(same_bits(moved, cpu.to(at::kDouble)));
  EXPECT_EQ(moved.to(kHpu).unsafeGetTensorImpl(), moved.unsafeGetTensorImpl());
}

TEST(Copy, IsDifferentiable) {
  const at::Tensor cpu = at::ones({3}).requires_grad_(true);
  (cpu.to(kHpu) * at::arange(3, on_hpu())).sum().backward();
  EXPECT_TRUE(cpu.grad().device().is_cpu());
  EXPECT_TRUE(same_bits(cpu.grad(), at::arange(3, at::kFloat)));
}

TEST(Copy, CloneAndDetach) {
  const at::Tensor a = at::arange(6, on_hpu()).view({2, 3}).t();
  const at::Tensor clone = a.clone(), detached = a.detach();
  EXPECT_NE(clone.const_data_ptr(), a.const_data_ptr());
  EXPECT_EQ(clone.strides(), a.cpu().clone().strides());
  EXPECT_EQ(detached.const_data_ptr(), a.const_data_ptr());
  EXPECT_TRUE(same_bits(clone, a));
}

TEST(Archive, SaveAndLoadKeepTensorsAndModules) {
  const at::Tensor a = hpu(at::randn({3, 4})), view = a.t().narrow(0, 1, 2);
  std::stringstream stream;
  torch::save(std::vector<at::Tensor>{a, view, a.to(at::kFloat8_e5m2)}, stream);
  std::vector<at::Tensor> back;
  torch::load(back, stream);
  EXPECT_TRUE(same_bits(back.at(0), a));
  EXPECT_TRUE(same_bits(back.at(1), view));
  EXPECT_TRUE(same_bits(back.at(2), a.to(at::kFloat8_e5m2)));
  EXPECT_EQ(back[0].device(), kHpu);

  torch::nn::Linear first = hpu(torch::nn::Linear(4, 3)), second = hpu(torch::nn::Linear(4, 3));
  std::stringstream module_stream;
  torch::save(first, module_stream);
  torch::load(second, module_stream);
  EXPECT_TRUE(same_bits(second->weight, first->weight));
  EXPECT_EQ(second->weight.device(), kHpu);
  EXPECT_TRUE(same_bits(second(a), first(a)));
}

TEST(Archive, GoesToAndComesFromTheCpu) {
  torch::nn::Linear first = hpu(torch::nn::Linear(4, 3)), second(4, 3);
  std::stringstream stream;
  torch::save(first, stream);
  torch::load(second, stream, at::Device(at::kCPU));
  EXPECT_TRUE(second->weight.device().is_cpu());
  EXPECT_TRUE(same_bits(second->weight, first->weight));
}

TEST(Archive, OptimizersToo) {
  torch::nn::Linear layer = hpu(torch::nn::Linear(4, 3));
  torch::optim::AdamW optimizer(layer->parameters(), torch::optim::AdamWOptions(0.1));
  layer(at::ones({2, 4}, on_hpu())).sum().backward();
  optimizer.step();
  std::stringstream stream;
  torch::save(optimizer, stream);
  torch::optim::AdamW other(layer->parameters(), torch::optim::AdamWOptions(0.5));
  torch::load(other, stream);
  EXPECT_NO_THROW(other.step());
}

TEST(SetData, ReplacesTypeAndMemory) {
  torch::nn::Linear layer = hpu(torch::nn::Linear(4, 3));
  layer->to(at::kBFloat16);
  EXPECT_EQ(layer->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(layer->weight.device(), kHpu);
  EXPECT_TRUE(layer->weight.requires_grad());
}

// Rows of tables against the CPU's kernels: tables and indices of all dtypes and ranks, and the calls that its kernel
// must see.

TEST(RowsOfTable, AreTheCpus) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kBool})
    for (const auto index : {at::kLong, at::kInt}) {
      const at::Tensor table = (at::randn({7, 5}) * 3).to(type), line = at::randint(0, 7, {11}, index);
      const at::Tensor block = (at::randn({3, 2, 4}) * 3).to(type), few = at::randint(0, 3, {4}, index);
      EXPECT_TRUE(same_bits(at::index_select(hpu(table), 0, hpu(line)), at::index_select(table, 0, line))) << type;
      EXPECT_TRUE(same_bits(at::index_select(hpu(block), 0, hpu(few)), at::index_select(block, 0, few))) << type;
      EXPECT_TRUE(same_bits(at::index_select(hpu(block), 1, hpu(few).clamp_max(1)),
                            at::index_select(block, 1, few.clamp_max(1))))
          << type;
      EXPECT_TRUE(same_bits(at::index_select(hpu(line).to(type), 0, hpu(few)), at::index_select(line.to(type), 0, few)))
          << type;
      for (const at::Tensor& indices :
           {line, line.narrow(0, 2, 6).view({2, 3}), line.narrow(0, 0, 1).view({1, 1, 1})}) {
        const at::Tensor y = at::embedding(hpu(table), hpu(indices)), expected = at::embedding(table, indices);
        EXPECT_TRUE(same_bits(y, expected)) << type;
        EXPECT_EQ(y.strides(), expected.strides()) << type;
      }
    }
}

TEST(RowsOfTable, AreCopiesOfTheirOwn) {
  const at::Tensor table = hpu(at::ones({4, 3})), row = at::embedding(table, hpu(at::zeros({1}, at::kLong)));
  table.zero_();
  EXPECT_EQ(row.sum().item<float>(), 3.0f);
}

TEST(RowsOfTable, OtherCallsStayTheCpus) {
  const at::Tensor table = at::randn({6, 4}), x = hpu(table), rows = at::tensor({5, 0, 3}, at::kLong);
  EXPECT_TRUE(same_bits(at::embedding(x.t().contiguous().t(), hpu(rows)), at::embedding(table, rows)));
  EXPECT_TRUE(
      same_bits(at::embedding(x, hpu(rows.repeat_interleave(2)).slice(0, 0, 6, 2)), at::embedding(table, rows)));
  EXPECT_TRUE(same_bits(at::embedding(x, hpu(rows.select(0, 1))), at::embedding(table, rows.select(0, 1))));
  EXPECT_TRUE(
      same_bits(at::index_select(x, -1, hpu(rows).clamp_max(3)), at::index_select(table, -1, rows.clamp_max(3))));
  EXPECT_EQ(at::embedding(x, hpu(rows.slice(0, 0, 0))).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(at::index_select(x.slice(1, 0, 0), 0, hpu(rows)).sizes(), at::IntArrayRef({3, 0}));
  const at::Tensor large = at::randn({40, 1000}), many = at::randint(0, 40, {700}, at::kLong);
  EXPECT_TRUE(same_bits(at::embedding(hpu(large), hpu(many)), at::embedding(large, many)));
  for (const std::int64_t wrong : {-1, 6}) {
    EXPECT_REFUSED(at::embedding(x, hpu(at::tensor({wrong}, at::kLong))), "out of range");
    EXPECT_REFUSED(at::index_select(x, 0, hpu(at::tensor({wrong}, at::kLong))), "out of range");
  }
  EXPECT_REFUSED(at::embedding(x, rows), "aten::embedding");
}

TEST(RowsOfTable, LearnAsOnTheCpu) {
  const at::Tensor table = at::randn({6, 4}), rows = at::tensor({5, 0, 5}, at::kLong);
  const at::Tensor a = table.clone().set_requires_grad(true), x = hpu(table).set_requires_grad(true);
  (at::embedding(a, rows) * 2).sum().backward();
  (at::embedding(x, hpu(rows)) * 2).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), a.grad()));
}

constexpr std::int64_t kN = 1030, kK = 1024;

struct FewRows : ::testing::Test {
  at::Tensor weight = torch::randn({kN, kK}).to(at::kBFloat16), bias = torch::randn({kN}).to(at::kBFloat16);
  /// Rounded once from sums in f64, whose order does not show; half a step of bf16 apart at most, and some for f32.
  static void expect_close(const at::Tensor& y, const at::Tensor& exact) {
    const at::Tensor values = y.cpu().to(at::kDouble);
    EXPECT_TRUE(((values - exact).abs() <= exact.abs() * std::ldexp(1.0, -8) + 1e-3).all().item<bool>());
  }
  bool takes(const at::Tensor& input, const at::Tensor& weight_t, const std::optional<at::Tensor>& b = {}) {
    return runtime::few_rows_product(input, weight_t, b).has_value();
  }
};

TEST_F(FewRows, LinearOfOneTokenAndOfTwo) {
  const at::Tensor w = hpu(weight), b = hpu(bias);
  for (std::int64_t m : {1, 2}) {
    const at::Tensor x = torch::randn({1, m, kK}).to(at::kBFloat16);
    const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
    EXPECT_TRUE(takes(hpu(x)[0], w.t()));
    expect_close(at::linear(hpu(x), w), exact);
    EXPECT_TRUE(takes(hpu(x)[0], w.t(), b));
    expect_close(at::linear(hpu(x), w, b), exact + bias.to(at::kDouble));
  }
}

TEST_F(FewRows, ARowHasTheSameBitsAloneAndAmongOthers) {
  const at::Tensor w = hpu(weight), x = hpu(torch::randn({2, kK}).to(at::kBFloat16));
  const at::Tensor all = at::mm(x, w.t());
  for (std::int64_t i = 0; i < 2; ++i)
    EXPECT_TRUE(same_bits(all.slice(0, i, i + 1), at::mm(x.slice(0, i, i + 1), w.t())));
}

TEST_F(FewRows, GradientsAreThoseOfTheCpu) {
  const at::Tensor x = torch::randn({2, kK}).to(at::kBFloat16);
  const auto gradients = [&](c10::Device device) {
    const at::Tensor a = x.to(device).requires_grad_(), w = weight.to(device).requires_grad_();
    at::linear(a, w).to(at::kFloat).sum().backward();
    return std::pair(a.grad().cpu(), w.grad().cpu());
  };
  const auto ours = gradients(c10::kHPU), cpu = gradients(c10::kCPU);
  EXPECT_TRUE(same_bits(ours.first, cpu.first));
  EXPECT_TRUE(same_bits(ours.second, cpu.second));
}

TEST_F(FewRows, WhatIsNoSuchProductIsLeftToTheOthers) {
  const at::Tensor w = hpu(weight), b = hpu(bias), x = hpu(torch::randn({2, kK}).to(at::kBFloat16));
  EXPECT_FALSE(takes(hpu(torch::randn({3, kK}).to(at::kBFloat16)), w.t()));
  EXPECT_FALSE(takes(x.slice(0, 0, 0), w.t()));
  EXPECT_FALSE(takes(x.to(at::kFloat), w.t()));
  EXPECT_FALSE(takes(x, w.to(at::kFloat).t()));
  EXPECT_FALSE(takes(x.cpu(), weight.t()));
  EXPECT_FALSE(takes(x, w.t().contiguous()));
  EXPECT_FALSE(takes(x, w.slice(0, 0, 100).t()));
  EXPECT_FALSE(takes(x, w.t(), b.slice(0, 0, 1)));
  EXPECT_FALSE(takes(x, w.t(), b.to(at::kFloat)));
  EXPECT_FALSE(takes(x, w.t(), hpu(torch::randn({2, kN}).to(at::kBFloat16))));
  EXPECT_FALSE(takes(x.slice(1, 0, kK / 2), w.t()));
  EXPECT_FALSE(takes(hpu(torch::randn({kK, 2}).to(at::kBFloat16)).t(), w.t()));
  EXPECT_FALSE(takes(hpu(torch::randn({1, kK}).to(at::kBFloat16)).expand({2, kK}), w.t()));
  EXPECT_THROW(at::mm(x.slice(1, 0, kK / 2), w.t()), c10::Error);
  // Scaled sums are not these: alpha and beta reach who knows them.
  const at::Tensor scaled = at::addmm(b, x, w.t(), 1, 2);
  expect_close(scaled, at::addmm(bias.to(at::kDouble), x.cpu().to(at::kDouble), weight.t().to(at::kDouble), 1, 2));
}

TEST_F(FewRows, PartsOfLargerTensorsAreTaken) {
  const at::Tensor wide = torch::randn({kN, kK + 64}).to(at::kBFloat16),
                   rows = torch::randn({3, kK + 8}).to(at::kBFloat16);
  const at::Tensor w = wide.slice(1, 32, 32 + kK), x = rows.slice(1, 8, 8 + kK).slice(0, 1, 3);
  const at::Tensor w_hpu = hpu(wide).slice(1, 32, 32 + kK), x_hpu = hpu(rows).slice(1, 8, 8 + kK).slice(0, 1, 3);
  EXPECT_TRUE(takes(x_hpu, w_hpu.t()));
  expect_close(at::mm(x_hpu, w_hpu.t()), at::mm(x.to(at::kDouble), w.t().to(at::kDouble)));
}

}  // namespace
}  // namespace fp8::test
