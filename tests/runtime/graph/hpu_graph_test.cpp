// SPDX-License-Identifier: Apache-2.0
// Captures and replays: which memory keeps its place, what is refused and why, in what order things may be called.
#include "fp8/runtime/graph/hpu_graph.h"

#include <ATen/CPUGeneratorImpl.h>

#include <random>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor ramp(std::int64_t rows = 4, std::int64_t cols = 4) {
  return torch::arange(rows * cols, torch::kFloat).view({rows, cols}).to(at::kHPU);
}

TEST(HpuGraph, ResultsKeepTheirAddress) {
  const auto x = ramp();
  HPUGraph graph;
  at::Tensor y;
  {
    const GraphCapture capture(graph);
    EXPECT_TRUE(is_current_stream_capturing());
    y = x.mul(2).add_(1).relu();
  }
  EXPECT_FALSE(is_current_stream_capturing());
  EXPECT_EQ(graph.nodes(), 3U);
  const void* address = y.const_data_ptr();
  x.add_(5);
  graph.replay();
  EXPECT_EQ(y.const_data_ptr(), address);
  EXPECT_TRUE(y.equal(x * 2 + 1));
}

TEST(HpuGraph, TheExampleOfThePage) {
  const auto x = ramp(), next = ramp() + 1;
  // clang-format off
HPUGraph graph;
at::Tensor y;
{
  const GraphCapture capture(graph);
  y = x.mul(2).relu();
}
x.copy_(next);
graph.replay();                                 // y has its new value
  // clang-format on
  EXPECT_TRUE(y.equal(next * 2));
}

TEST(HpuGraph, AStepOfTrainingWithItsOptimizer) {
  const auto parameters = [] {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Sigmoid(), torch::nn::Linear(16, 8));
    net->to(at::kHPU);
    for (auto& p : net->parameters()) p.mutable_grad() = torch::zeros_like(p);
    return net;
  };
  const auto step = [](torch::nn::Sequential& net, const at::Tensor& x) {
    for (auto& p : net->parameters()) p.grad().zero_();
    const auto loss = net->forward(x).square().mean();
    loss.backward();
    const at::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.sub_(p.grad(), 0.1);
    return loss.detach();
  };
  auto eager = parameters(), captured = parameters();
  const auto x = torch::rand({4, 8}).to(at::kHPU), other = torch::rand({4, 8}).to(at::kHPU), place = x.clone();
  HPUGraph graph;
  at::Tensor loss = test::within(GraphCapture(graph), [&] { return step(captured, place); });
  at::Tensor expected = step(eager, x);
  EXPECT_TRUE(loss.equal(expected));
  place.copy_(other);
  for (int i = 0; i < 5; ++i) expected = step(eager, other), graph.replay();
  EXPECT_TRUE(loss.equal(expected));
  for (std::size_t i = 0; i < eager->parameters().size(); ++i)
    EXPECT_TRUE(eager->parameters()[i].equal(captured->parameters()[i])) << i;
}

TEST(HpuGraph, WritesAreSeenByWhatCountsThem) {
  const auto x = ramp();
  HPUGraph graph;
  test::within(GraphCapture(graph), [&] { x.add_(1); });
  const CastSpec spec = {.scale = 1, .scale_inv = 1};
  const auto version = x._version();
  const auto before = dequantize(cast_once(x, x, spec), at::kFloat).clone();
  graph.replay();
  EXPECT_GT(x._version(), version);
  EXPECT_TRUE(dequantize(cast_once(x, x, spec), at::kFloat).equal(dequantize(quantize(x, spec), at::kFloat)));
  EXPECT_FALSE(dequantize(cast_once(x, x, spec), at::kFloat).equal(before));
}

TEST(HpuGraph, NoMoreMemoryThanTheCall) {
  const auto x = torch::rand({64, 1024}).to(at::kHPU);
  const auto work = [&] {
    at::Tensor y = x;
    for (int i = 0; i < 20; ++i) y = y.sigmoid() * 2;
    return y.sum();
  };
  const auto peak_of = [](auto&& f) {
    reset_peak_memory_stats();
    const auto before = memory_allocated();
    f();
    return max_memory_allocated() - before;
  };
  HPUGraph graph;
  at::Tensor y = test::within(GraphCapture(graph), [&] { return work(); });
  const auto eager = peak_of([&] { (void)work(); });
  EXPECT_LE(static_cast<double>(peak_of([&] { graph.replay(); })), 1.05 * static_cast<double>(eager));
}

TEST(HpuGraph, MarkedInputsAreReplacedWithoutACopy) {
  auto x = ramp();
  HPUGraph graph;
  at::Tensor y = test::within(GraphCapture(graph), [&] { return x.narrow(0, 1, 2).sum(0); });
  graph.mark_user_inputs({x});
  const auto other = torch::rand({6, 4}).to(at::kHPU).narrow(0, 2, 4);  // begins elsewhere in its memory
  graph.replay(at::TensorList(other));
  EXPECT_TRUE(y.equal(other.narrow(0, 1, 2).sum(0)));
  graph.replay();
  EXPECT_TRUE(y.equal(x.narrow(0, 1, 2).sum(0)));
  graph.clear_inputs();
  EXPECT_REFUSED(graph.replay(), "the inputs were cleared");
  graph.replay(at::TensorList(other));
  EXPECT_REFUSED(graph.replay(at::TensorList(ramp(3, 4))), "inputs[0]: found");
  EXPECT_REFUSED(graph.replay(std::vector<at::Tensor>{x, x}), "found 2 inputs, expected 1");
  EXPECT_REFUSED(graph.mark_user_inputs({ramp()}), "the graph reads no such tensor");
}

/// The message that the capture of a function ends with.
std::string refusal_of(const std::function<void()>& f) {
  HPUGraph graph;
  const auto message = error_of([&] {
    const GraphCapture capture(graph);
    f();
  });
  EXPECT_FALSE(graph.is_captured());
  EXPECT_FALSE(is_recording());
  return message;
}

TEST(HpuGraph, WhatCannotBeRepeatedIsRefusedByName) {
  auto x = ramp();
  const std::string path = "model.layers.3";
  EXPECT_THAT(refusal_of([&] { (void)x.sum().item<float>(); }), HasSubstr("aten::_local_scalar_dense: the host reads"));
  EXPECT_THAT(refusal_of([&] {
                const ModuleScope module(path);
                (void)x.cpu();
              }),
              HasSubstr("in module 'model.layers.3': the host reads a value of the device"));
  EXPECT_THAT(refusal_of([&] { (void)x.nonzero(); }), HasSubstr("aten::nonzero: the host reads"));
  EXPECT_THAT(refusal_of([&] { (void)x.masked_select(x > 3); }), HasSubstr("the host reads"));
  EXPECT_THAT(refusal_of([&] { (void)x.equal(x); }), HasSubstr("aten::equal: the host reads"));
  EXPECT_THAT(refusal_of([&] {
                (void)at::dropout(x, 0.5, true);
                torch::manual_seed(3);
                (void)at::dropout(x, 0.5, true);
              }),
              HasSubstr("the state of the random numbers was set"));
  EXPECT_THAT(refusal_of([&] { (void)at::bernoulli(x / 100, at::detail::createCPUGenerator(3)); }),
              HasSubstr("a generator of its own"));
  EXPECT_THAT(refusal_of([&] { (void)x.add(torch::rand(1).item<float>()); }),
              HasSubstr("aten::rand: a random number of the host"));
  EXPECT_THAT(refusal_of([&] { x.clone().resize_({100}); }), HasSubstr("gives a tensor other memory"));
  EXPECT_THAT(refusal_of([&] { (void)amax_of(x); }), HasSubstr("memory of the device is read outside of an operation"));
  EXPECT_THAT(refusal_of([&] { (void)quantize(x, {.scale = 1, .scale_inv = 1}); }), HasSubstr("fp8::quantize"));
}

TEST(HpuGraph, TheHostMayReadWhatIsTheSameEachTime) {
  const auto x = ramp();
  HPUGraph graph;
  at::Tensor y;
  {
    const GraphCapture capture(graph);
    const auto positions = torch::arange(4, x.options());
    const bool increasing = (positions.diff() == 1).all().item<bool>();
    y = increasing ? x + positions : x;
  }
  x.mul_(2);
  graph.replay();
  EXPECT_TRUE(y.equal(x + torch::arange(4, x.options())));
  EXPECT_THAT(refusal_of([&] {
                const auto made = torch::zeros({4}, x.options());
                made.copy_(x[0]);
                (void)made.sum().item<float>();
              }),
              HasSubstr("the host reads"));
  EXPECT_THAT(refusal_of([&] { (void)torch::rand({4}, x.options()).sum().item<float>(); }),
              HasSubstr("the host reads"));
}

TEST(HpuGraph, OrderOfCalls) {
  const auto x = ramp();
  HPUGraph graph, other;
  EXPECT_REFUSED(graph.replay(), "found an empty graph");
  EXPECT_REFUSED(graph.capture_end(), "expected capture_begin() before it");
  graph.capture_begin();
  EXPECT_REFUSED(other.capture_begin(), "another capture of this process has not ended");
  EXPECT_REFUSED(graph.capture_begin(), "this graph's capture has not ended");
  EXPECT_REFUSED(graph.reset(), "this graph's capture has not ended");
  std::string elsewhere;
  std::thread([&] { elsewhere = error_of([&] { graph.capture_end(); }); }).join();
  EXPECT_THAT(elsewhere, HasSubstr("expected the thread of capture_begin()"));
  const auto y = x.add(1);
  graph.capture_end();
  EXPECT_REFUSED(graph.capture_begin(), "reset() it first");
  graph.replay();
  graph.reset();
  EXPECT_REFUSED(graph.replay(), "found an empty graph");
  EXPECT_THROW(({
                 const GraphCapture capture(graph);
                 throw std::runtime_error("mine");
               }),
               std::runtime_error);
  EXPECT_FALSE(graph.is_captured());
  EXPECT_FALSE(is_recording());
}

TEST(HpuGraph, AnErrorInAReplayNamesTheNode) {
  const auto table = ramp(), index = torch::zeros({2}, torch::kLong).to(at::kHPU);
  const std::string path = "embed";
  HPUGraph graph;
  at::Tensor rows;
  {
    const GraphCapture capture(graph);
    const ModuleScope module(path);
    rows = table.index_select(0, index);
  }
  index.fill_(9);
  EXPECT_REFUSED(graph.replay(), "replayed: aten::index_select of module 'embed'");
  index.fill_(1);
  graph.replay();
  EXPECT_TRUE(rows[0].equal(table[1]));
}

TEST(HpuGraph, MemoryOfTheGraphIsItsOwn) {
  const auto before = memory_allocated();
  {
    HPUGraph graph;
    {
      const auto x = torch::rand({64, 64}).to(at::kHPU);
      const GraphCapture capture(graph);
      (void)x.exp().sum();
    }
    graph.replay();  // x is kept for it
    EXPECT_EQ(memory_allocated() - before, 64 * 64 * 4);
    graph.reset();
    EXPECT_EQ(memory_allocated(), before);
  }
}

// Programs made of a seed: views, writes into them, out= arguments, lists, random numbers. Captured on some inputs and
// replayed on others, each gives what it gives when it is called, to the bit.

/// A step of a program: takes some tensors [4, 4] of those that there are, adds one or writes one.
using Step = void (*)(Tensors& all, const at::Tensor& a, const at::Tensor& b);

const Step kSteps[] = {
    [](Tensors& all, const at::Tensor& a, const at::Tensor& b) { all.push_back(a + b); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor& b) { all.push_back(a.mm(b.t())); },
    [](Tensors&, const at::Tensor& a, const at::Tensor& b) { at::Tensor(a).mul_(b.sigmoid()); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(a.t()); },
    [](Tensors&, const at::Tensor& a, const at::Tensor& b) { a.slice(0, 1, 3).copy_(b.slice(1, 1, 3).t()); },
    [](Tensors&, const at::Tensor& a, const at::Tensor&) { a.select(0, 2).fill_(0.5); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(a.exp().softmax(1)); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor& b) {
      at::Tensor out = at::empty_like(a);
      at::add_out(out, a, b);
      all.push_back(out);
    },
    [](Tensors& all, const at::Tensor& a, const at::Tensor& b) {
      const auto parts = at::cat({a, b}, 1).chunk(2, 0);
      all.push_back(parts[0].view({4, 4}) - parts[1].reshape({4, 4}));
    },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(at::dropout(a, 0.5, true)); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(a + at::rand({4, 4}, a.options())); },
    [](Tensors&, const at::Tensor& a, const at::Tensor&) { at::Tensor(a).uniform_(0, 1); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(a.sum(1, true).expand({4, 4})); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor& b) { all.push_back(at::where(a > b, a, b)); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(std::get<0>(a.sort(1))); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(a.detach().clone().t_()); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) {
      all.push_back(a.index_select(0, at::arange(3, -1, -1, a.options().dtype(at::kLong))));
    },
    [](Tensors& all, const at::Tensor& a, const at::Tensor&) { all.push_back(a.to(at::kBFloat16).to(at::kFloat)); },
    [](Tensors& all, const at::Tensor& a, const at::Tensor& b) {
      all.push_back(at::layer_norm(a, {4}, b.select(0, 0)));
    },
};

/// The sum of all tensors that the program of that seed makes of the inputs, which it may write.
at::Tensor program(unsigned seed, const Tensors& inputs) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Tensors all = inputs;
  for (int i = 0; i < 24; ++i) {
    const at::Tensor a = all[below(all.size())], b = all[below(all.size())];
    const bool expanded = a.stride(1) == 0;  // no write into memory that several elements share
    const auto step = below(std::size(kSteps));
    const std::size_t before = all.size();
    if (!expanded) kSteps[step](all, a, b);
    if (all.size() > before && below(3) == 0) all[below(before)] = all.back();  // one is let go
  }
  at::Tensor sum = at::zeros_like(inputs[0]);
  for (const at::Tensor& t : all) sum.add_(t);
  return sum;
}

Tensors random_inputs(int seed) {
  torch::manual_seed(seed);
  Tensors all;
  for (int i = 0; i < 3; ++i) all.push_back(torch::rand({4, 4}).to(at::kHPU));
  return all;
}

TEST(GeneratedPrograms, ReplayedAsCalled) {
  const at::NoGradGuard no_grad;
  for (unsigned seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    Tensors inputs = random_inputs(1);
    HPUGraph graph;
    at::Tensor result = test::within(GraphCapture(graph), [&] { return program(seed, inputs); });
    for (const int other : {2, 3}) {
      const Tensors fresh = random_inputs(other), again = random_inputs(other);
      for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].copy_(fresh[i]);
      torch::manual_seed(7);
      const at::Tensor expected = program(seed, again);
      const at::Tensor next_random = torch::rand(2);
      torch::manual_seed(7);
      graph.replay();
      EXPECT_TRUE(result.equal(expected));
      EXPECT_TRUE(torch::rand(2).equal(next_random));
      for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(inputs[i].equal(again[i])) << "input " << i;
    }
  }
}

}  // namespace
}  // namespace fp8::runtime
