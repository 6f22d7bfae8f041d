// SPDX-License-Identifier: Apache-2.0
// Graphs of modules: training with them gives the bits of training without; each kind of call is captured once, and
// anew where what it read has other memory; what can't be captured runs as it is.
#include "fp8/runtime/graph/module_cacher.h"

#include <ATen/autocast_mode.h>

#include <thread>

#include "fp8/runtime/device/allocator.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::hpu;
using Tensors = std::vector<at::Tensor>;

torch::nn::Sequential small_net() {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::GELU(),
                            torch::nn::Dropout(0.2), torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
                            torch::nn::Linear(16, 8));
  net->to(at::kHPU);
  return net;
}

/// All that a training leaves: parameters, buffers, gradients, the loss, the next random numbers.
struct Trained {
  Tensors values;
  GraphCounts counts;

  bool operator==(const Trained& other) const {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!test::same_bits(values[i], other.values[i])) return false;
    return values.size() == other.values.size();
  }
};

struct HowToTrain {
  bool graphed = false;
  int accumulate = 1, calls = 1;
  bool autocast = false;
};

Trained train(const HowToTrain& how) {
  auto net = small_net();
  torch::optim::AdamW optimizer(net->parameters());
  ModuleCacher graphed(net);
  torch::manual_seed(3);
  at::Tensor loss;
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < how.accumulate; ++micro) {
      loss = torch::zeros({}, test::on_hpu());
      for (int i = 0; i < how.calls; ++i) {
        const auto x = hpu(torch::randn({4, 8}));
        at::autocast::set_autocast_enabled(at::kHPU, how.autocast);
        const auto y = how.graphed ? graphed(x) : net->forward(x);
        at::autocast::set_autocast_enabled(at::kHPU, false);
        loss = loss + y.to(at::kFloat).square().mean();
      }
      loss.backward();
    }
    optimizer.step();
  }
  Trained trained = {.values = {}, .counts = graphed.counts()};
  for (const auto& p : net->parameters()) trained.values.push_back(p), trained.values.push_back(p.grad());
  for (const auto& b : net->buffers()) trained.values.push_back(b);
  trained.values.push_back(loss), trained.values.push_back(torch::rand(3));
  return trained;
}

TEST(ModuleCacher, TrainsToTheSameBits) {
  for (const HowToTrain how :
       {HowToTrain{}, HowToTrain{.accumulate = 4}, HowToTrain{.calls = 3}, HowToTrain{.autocast = true}}) {
    HowToTrain with_graphs = how;
    with_graphs.graphed = true;
    const auto eager = train(how), graphed = train(with_graphs);
    EXPECT_TRUE(eager == graphed);
    EXPECT_EQ(graphed.counts.captured, 1);
    EXPECT_EQ(graphed.counts.eager, how.calls - 1);  // until the first backward has been
    EXPECT_EQ(graphed.counts.replayed, 8 * how.accumulate * how.calls - how.calls);
  }
}

TEST(ModuleCacher, TheExampleOfThePage) {
  auto net = small_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto x = hpu(torch::rand({4, 8}));
  // clang-format off
ModuleCacher graphed(net);                      // on hpu
for (int step = 0; step < 3; ++step) {
  optimizer.zero_grad();
  graphed(x).square().mean().backward();        // the first call is captured, later ones are replayed
  optimizer.step();
}
  // clang-format on
  EXPECT_EQ(graphed.counts().replayed, 2);
}

TEST(ModuleCacher, AReplayDoesNotCallTheFunction) {
  int calls = 0;
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) {
    ++calls;
    return Tensors{x[0] * 2, x[0].sum()};
  }));
  const auto x = hpu(torch::rand({2, 3}));
  const auto first = graphed(at::TensorList(x)), second = graphed(at::TensorList(x)),
             third = graphed(at::TensorList(x + 1));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(second[0].equal(x * 2) && third[0].equal((x + 1) * 2) && third[1].equal((x + 1).sum()));
  EXPECT_TRUE(first[0].equal(second[0]));
  EXPECT_NE(second[0].const_data_ptr(), third[0].const_data_ptr());  // tensors of their own
}

TEST(ModuleCacher, EachKindOfCallIsCapturedOnce) {
  auto net = small_net();
  ModuleCacher graphed(net, {.max_graphs = 3});
  const at::NoGradGuard no_grad;
  const auto call = [&](std::int64_t rows) { return graphed(hpu(torch::ones({rows, 8}))); };
  net->eval();
  call(2), call(3), call(2), call(3);
  EXPECT_EQ(graphed.counts().captured, 2);
  net->train();
  call(2);
  EXPECT_EQ(graphed.counts().captured, 3);
  call(5);  // beyond max_graphs
  EXPECT_EQ(graphed.counts().captured, 3);
  EXPECT_EQ(graphed.counts().replayed, 2);
  EXPECT_EQ(graphed.counts().eager, 1);
  graphed.clear_cache();
  call(5);
  EXPECT_EQ(graphed.counts().captured, 4);
}

TEST(ModuleCacher, TensorsThatAreNoArgumentAreNotFrozen) {
  at::Tensor scale = hpu(torch::full({3}, 2.0));
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) { return Tensors{x[0] * scale}; }));
  const auto x = hpu(torch::ones(3));
  graphed(x);
  scale.fill_(5);
  EXPECT_TRUE(graphed(x).equal(x * 5));
  scale.set_data(hpu(torch::full({3}, 7.0)));  // other memory
  EXPECT_TRUE(graphed(x).equal(x * 7));
  scale = hpu(torch::full({3}, 9.0));  // another tensor, and the one before has gone
  EXPECT_TRUE(graphed(x).equal(x * 9));
  EXPECT_EQ(graphed.counts().captured, 3);
}

TEST(ModuleCacher, WeightsThatAreLoadedOrFrozenCount) {
  auto net = small_net(), other = small_net();
  net->eval(), other->eval();
  {
    const at::NoGradGuard no_grad;
    for (auto& p : other->parameters()) p.mul_(1.5);
  }
  ModuleCacher graphed(net);
  const auto x = hpu(torch::rand({4, 8}));
  const auto gradient = [&](bool with) {
    net->zero_grad();
    (with ? graphed(x) : net->forward(x)).sum().backward();
    Tensors all;
    for (const auto& p : net->parameters()) all.push_back(p.grad());
    return all;
  };
  gradient(true);
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    net->parameters()[i].set_data(other->parameters()[i].detach().clone());
  EXPECT_TRUE(test::same_bits(gradient(true)[0], gradient(false)[0]));
  EXPECT_EQ(graphed.counts().captured, 2);
  net->parameters()[0].set_requires_grad(false);
  const auto frozen = gradient(true);
  EXPECT_FALSE(frozen[0].defined());
  EXPECT_TRUE(test::same_bits(frozen[1], gradient(false)[1]));
  EXPECT_EQ(graphed.counts().captured, 3);
}

TEST(ModuleCacher, WhatReadsOnTheHostRunsAsItIs) {
  const std::string path = "net.gate";
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) {
    const ModuleScope module(path);
    return Tensors{x[0].sum().item<float>() > 0 ? x[0] + 1 : x[0] - 1};
  }));
  const auto x = hpu(torch::ones(3));
  EXPECT_TRUE(graphed(x).equal(x + 1));
  EXPECT_TRUE(graphed(-x).equal(-x - 1));
  ASSERT_EQ(graphed.refusals().size(), 1U);
  EXPECT_THAT(graphed.refusals()[0], HasSubstr("aten::_local_scalar_dense in module 'net.gate': the host reads"));
  EXPECT_EQ(graphed.counts().replayed, 0);
}

TEST(ModuleCacher, ATensorOnTheCpuThatIsNoInputIsNotFrozen) {
  at::Tensor scale = torch::full({3}, 2.0);
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) { return Tensors{x[0] * scale.to(at::kHPU)}; }));
  const auto x = hpu(torch::ones(3));
  graphed(x);
  scale = torch::full({3}, 7.0);
  EXPECT_TRUE(graphed(x).equal(x * 7));
  EXPECT_THAT(graphed.refusals(), ElementsAre(HasSubstr("takes a tensor on the CPU that is no input")));
  ModuleCacher constant(
      GraphFunction([&](at::TensorList x) { return Tensors{x[0] * torch::tensor({1.f, 2.f, 3.f}).to(at::kHPU)}; }));
  EXPECT_TRUE(constant(x).equal(constant(x)));
  EXPECT_EQ(constant.counts().replayed, 1);
}

TEST(ModuleCacher, AnExceptionLeavesNoGraphBehind) {
  bool fails = true;
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) {
    const auto y = x[0].exp();
    if (fails) throw std::runtime_error("mine");
    return Tensors{y};
  }));
  const auto x = hpu(torch::ones(3));
  EXPECT_EQ(error_of([&] { graphed(x); }), "mine");
  fails = false;
  EXPECT_TRUE(graphed(x).equal(x.exp()));
  EXPECT_TRUE(graphed(x).equal(x.exp()));
  EXPECT_EQ(graphed.counts().replayed, 1);
}

TEST(ModuleCacher, ManyInputsViewsAndSharedMemory) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) {
    at::Tensor sum = x[0].clone();
    for (const auto& t : x.slice(1)) sum = sum + t * 2;
    return Tensors{sum, x[0].t()};
  }));
  const auto inputs_of = [](double value) {
    Tensors all;
    const auto base = hpu(torch::rand({8, 4}) + value);
    for (int i = 0; i < 150; ++i) all.push_back(i % 3 == 0 ? base.narrow(0, i % 5, 4) : hpu(torch::rand({4, 4})));
    return all;
  };
  for (int i = 0; i < 3; ++i) {
    const auto inputs = inputs_of(i);
    at::Tensor expected = inputs[0].clone();
    for (const auto& t : at::TensorList(inputs).slice(1)) expected = expected + t * 2;
    const auto results = graphed(inputs);
    EXPECT_TRUE(results[0].equal(expected));
    EXPECT_TRUE(results[1].equal(inputs[0].t()));
    EXPECT_EQ(results[1].storage().unsafeGetStorageImpl(), inputs[0].storage().unsafeGetStorageImpl());
  }
  EXPECT_EQ(graphed.counts().replayed, 2);
  const auto same = hpu(torch::rand({4, 4}));  // one tensor for all inputs is another kind of call
  (void)graphed(Tensors(150, same));
  EXPECT_EQ(graphed.counts().captured, 2);
}

TEST(ModuleCacher, InPlaceOnAResultIsFoundInBackward) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) { return Tensors{x[0].exp()}; }));  // its backward reads it
  for (int i = 0; i < 2; ++i) {
    const auto x = hpu(torch::rand(3)).requires_grad_();
    graphed(x).sum().backward();
    EXPECT_TRUE(x.grad().equal(x.exp()));
  }
  const auto x = hpu(torch::rand(3)).requires_grad_();
  auto y = graphed(x);
  y.add_(1);
  EXPECT_REFUSED(y.sum().backward(), "changed by an in-place operation");
  EXPECT_EQ(graphed.counts().replayed, 2);
}

TEST(ModuleCacher, SecondDerivativesAreRefused) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) { return Tensors{x[0] * x[0]}; }));
  for (int i = 0; i < 2; ++i) {
    const auto x = hpu(torch::rand(3)).requires_grad_();
    const auto y = graphed(x).sum();
    EXPECT_REFUSED(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0].sum().backward(),
                   "a call that graphs replay has no second derivative");
    y.backward();
    EXPECT_TRUE(x.grad().equal(x * 2));
  }
}

TEST(ModuleCacher, AnotherCaptureAtItsBackward) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) { return Tensors{x[0] * x[0]}; }));
  const auto x = hpu(torch::rand(3)).requires_grad_();
  const auto y = graphed(x).sum();
  const at::Tensor elsewhere = hpu(torch::ones(3));
  std::thread([&] {
    const Recorder other;
    (void)elsewhere.add(1);
    std::thread([&] { y.backward(); }).join();
    std::thread([&] { EXPECT_TRUE(graphed(elsewhere).equal(elsewhere)); }).join();
  }).join();
  EXPECT_TRUE(x.grad().equal(x * 2));
  EXPECT_THAT(graphed.refusals(), ElementsAre(HasSubstr("another capture")));
}

TEST(ModuleCacher, SecondBackwardOfOneCall) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) { return Tensors{x[0].exp() * x[0]}; }));
  for (int i = 0; i < 2; ++i) {
    const auto x = hpu(torch::rand(3)).requires_grad_();
    const auto y = graphed(x).sum();
    y.backward({}, /*retain_graph=*/true);
    const auto once = x.grad().clone();
    y.backward();
    EXPECT_TRUE(x.grad().equal(once * 2));
  }
}

TEST(ModuleCacher, MemoryGoesWithTheCallAndWithTheCache) {
  auto net = small_net();
  ModuleCacher graphed(net);
  const auto before = memory_allocated();
  for (std::int64_t rows = 2; rows < 8; ++rows)
    for (int i = 0; i < 2; ++i) {
      const auto loss = graphed(hpu(torch::rand({rows, 8}))).sum();
      loss.backward();
    }
  net->zero_grad();
  graphed.clear_cache();
  EXPECT_EQ(memory_allocated(), before);
}

}  // namespace
}  // namespace fp8::runtime
