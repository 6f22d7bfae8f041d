// SPDX-License-Identifier: Apache-2.0
// Generated programs, each in eager mode, captured and replayed, and in lazy mode: equal bits.
#include <random>

#include "fp8/runtime/graph/hpu_graph.h"
#include "lazy_test.h"

namespace fp8::runtime {
namespace {

using test::hpu;
using test::In;
using test::Mode;
using Tensors = std::vector<at::Tensor>;

constexpr int kPrograms = 60, kCalls = 24;

/// A program: tensors [4, 6], or views of such, come out of each call.
class Program {
 public:
  explicit Program(unsigned seed) {
    std::mt19937 random(seed);
    const auto next = [](std::mt19937& r) { return static_cast<unsigned>(r()); };
    for (int i = 0; i < kCalls; ++i) calls_.push_back({next(random), next(random), next(random)});
  }

  /// inputs: two of [4, 6]; they may be written.
  Tensors operator()(const Tensors& inputs) const {
    Tensors pool = inputs;
    for (const Call& call : calls_) {
      const at::Tensor a = pool[call.a % pool.size()], b = pool[call.b % pool.size()];
      pool.push_back(step(call.what, a, b));
    }
    return pool;
  }

 private:
  struct Call {
    unsigned what, a, b;
  };

  static at::Tensor step(unsigned what, const at::Tensor& a, const at::Tensor& b) {
    switch (what % 26) {
      case 0: return a + b;
      case 1: return (a * b).tanh();
      case 2: return a.mm(b.t()).tanh().mm(b) * 0.125;
      case 3: return a.t().contiguous().view({4, 6});
      case 4: return a.relu() - 0.25;
      case 5: return at::Tensor(a).add_(0.5);
      case 6: return at::Tensor(a).mul_(b).tanh_();
      case 7: return a.slice(0, 0, 2).add_(1), a;
      case 8: return at::cat({a.slice(1, 0, 3), b.slice(1, 3, 6)}, 1);
      case 9: return at::where(a > b, a, b * 0.5);
      case 10: return a.softmax(1);
      case 11: return a + b.sum(0, true);
      case 12: return a.index_select(0, hpu(torch::tensor({3, 1, 0, 2})));
      case 13: return a.masked_fill(b > 0.5, -1);
      case 14: return a.clone().copy_(b.slice(0, 0, 1));
      case 15: return at::dropout(a, 0.25, true);
      case 16: return at::add_out(const_cast<at::Tensor&>(b), a, b).tanh_();
      case 17: return a.expand({4, 6}).select(0, 1).fill_(0.125), a;
      case 18: return a.to(at::kBFloat16).to(at::kFloat);
      case 19: return at::layer_norm(a, {6});
      case 20: return std::get<0>(a.sort(1, false));
      case 21: return torch::rand({4, 6}, a.options()) + a;
      case 22: return std::get<0>(a.max(0)).unsqueeze(0) * b.sigmoid();
      case 23: return at::stack(a.unbind(0), 0).clamp(-2, 2);
      case 24: return (a + torch::full({}, 0.5, a.options())).cumsum(0) * 0.25;
      default: return a.narrow(0, 1, 3).copy_(b.narrow(0, 0, 3).clone()), a;
    }
  }

  std::vector<Call> calls_;
};

Tensors inputs_of(unsigned seed) {
  torch::manual_seed(seed);
  return {hpu(torch::randn({4, 6})), hpu(torch::randn({4, 6}))};
}

Tensors on_host(const Tensors& tensors) {
  Tensors all;
  for (const auto& t : tensors) all.push_back(t.cpu());
  all.push_back(torch::rand(2));  // the random numbers after it
  return all;
}

void expect_same(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_TRUE(test::same_bits(found[i], expected[i])) << "tensor " << i;
}

TEST(LazyPrograms, GiveTheBitsOfEager) {
  for (unsigned seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    const Program program(seed);
    const auto expected = on_host(program(inputs_of(seed)));
    for (const Mode mode : {Mode::lazy, Mode::worker}) {
      const In lazy(mode);
      for (int run = 0; run < 3; ++run) expect_same(on_host(program(inputs_of(seed))), expected);
    }
  }
}

TEST(LazyPrograms, AreReplayedToTheBitsOfEager) {
  for (unsigned seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    const Program program(seed);
    const auto expected = on_host(program(inputs_of(seed)));
    const auto inputs = inputs_of(seed);
    HPUGraph graph;
    Tensors results;
    {
      const GraphCapture capture(graph);
      results = program(inputs);
    }
    expect_same(on_host(results), expected);
    const auto again = inputs_of(seed);
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].copy_(again[i]);
    graph.replay();
    expect_same(on_host(results), expected);
  }
}

TEST(LazyPrograms, MostOfTheirCallsWait) {
  const In lazy(Mode::lazy);
  std::int64_t queued = 0;
  for (unsigned seed = 0; seed < kPrograms; ++seed)
    queued += test::queued_by([&] { (void)Program(seed)(inputs_of(seed)); });
  EXPECT_GT(queued, kPrograms * kCalls);
}

}  // namespace
}  // namespace fp8::runtime
