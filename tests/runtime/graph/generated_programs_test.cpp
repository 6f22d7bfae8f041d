// SPDX-License-Identifier: Apache-2.0
// Programs made of a seed: views, writes into them, out= arguments, lists, random numbers. Captured on some inputs and
// replayed on others, each gives what it gives when it is called, to the bit.
#include <random>

#include "fp8/runtime/graph/hpu_graph.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

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
    at::Tensor result;
    {
      const GraphCapture capture(graph);
      result = program(seed, inputs);
    }
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
