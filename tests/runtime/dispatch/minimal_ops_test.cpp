// SPDX-License-Identifier: Apache-2.0
// Make, resize, re-seat, copy, save and load on hpu, against the CPU's answers.
#include "fp8/runtime/dispatch/minimal_ops.h"

#include <sstream>

#include "fp8/runtime/device/block.h"
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
  EXPECT_TRUE(throws_with({"negative dimension"}, [] { at::empty({-1}, on_hpu()); }));
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
  EXPECT_TRUE(throws_with({"set_", "Float8_e4m3fn", "Float"}, [&] { codes.set_(at::ones({4}, on_hpu())); }));
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
  EXPECT_TRUE(throws_with({"must match"}, [&] { a.copy_(at::ones({3})); }));
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

  torch::nn::Linear first(4, 3), second(4, 3);
  first->to(kHpu);
  second->to(kHpu);
  std::stringstream module_stream;
  torch::save(first, module_stream);
  torch::load(second, module_stream);
  EXPECT_TRUE(same_bits(second->weight, first->weight));
  EXPECT_EQ(second->weight.device(), kHpu);
  EXPECT_TRUE(same_bits(second(a), first(a)));
}

TEST(Archive, GoesToAndComesFromTheCpu) {
  torch::nn::Linear first(4, 3), second(4, 3);
  first->to(kHpu);
  std::stringstream stream;
  torch::save(first, stream);
  torch::load(second, stream, at::Device(at::kCPU));
  EXPECT_TRUE(second->weight.device().is_cpu());
  EXPECT_TRUE(same_bits(second->weight, first->weight));
}

TEST(Archive, OptimizersToo) {
  torch::nn::Linear layer(4, 3);
  layer->to(kHpu);
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
  torch::nn::Linear layer(4, 3);
  layer->to(kHpu);
  layer->to(at::kBFloat16);
  EXPECT_EQ(layer->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(layer->weight.device(), kHpu);
  EXPECT_TRUE(layer->weight.requires_grad());
}

}  // namespace
}  // namespace fp8::test
