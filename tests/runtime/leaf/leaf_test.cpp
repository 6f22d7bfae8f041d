// SPDX-License-Identifier: Apache-2.0
// Events that listeners get: outermost leaves with their operands, module, phase and flops; on every thread, however
// they end.
#include "fp8/runtime/leaf/leaf.h"

#include <torch/torch.h>

#include "runtime/leaf/heard.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::heard_of;
using test::HeardLeaves;

TEST(Leaf, OutermostOnly) {
  const auto x = torch::ones({2, 3}, on_hpu());
  const auto& found = heard_of([&] {
    LeafScope outer("my::outer", x);
    (void)x.add(1);
    const LeafScope inner("my::inner", x);
    outer.gives(x, x);
  });
  ASSERT_THAT(found.ops(), ElementsAre("my::outer"));
  EXPECT_EQ(found.heard[0].inputs, 1U);
  EXPECT_EQ(found.heard[0].outputs, 2U);
  EXPECT_EQ(found.heard[0].bytes, 3 * 24);
  EXPECT_GE(found.heard[0].end_ns, found.heard[0].begin_ns);
}

TEST(Leaf, NothingIsHeardOfWhatThrew) {
  const auto x = torch::ones({2, 3}, on_hpu()), y = torch::ones({4, 5}, on_hpu());
  const auto& found = heard_of([&] {
    EXPECT_ANY_THROW((void)at::mm(x, y));
    try {
      const LeafScope leaf("my::op", x);
      throw std::runtime_error("no");
    } catch (const std::runtime_error&) {
    }
    (void)x.neg();
  });
  EXPECT_THAT(found.ops(), ElementsAre("aten::neg"));
  EXPECT_GE(found.begun.size(), 2U);
}

TEST(Leaf, ListsAndOptionalsOfTensors) {
  const auto x = torch::ones(2, on_hpu());
  const auto& found = heard_of([&] {
    (void)at::cat({x, x, x});
    const LeafScope leaf("my::op", std::optional<at::Tensor>(), std::vector<at::Tensor>{x, x}, at::Tensor(), 3);
  });
  ASSERT_EQ(found.heard.size(), 2U);
  EXPECT_EQ(found.heard[0].inputs, 3U);
  EXPECT_EQ(found.heard[1].inputs, 2U);
}

TEST(Leaf, FlopsOfProducts) {
  const auto a = torch::ones({3, 4, 5}, on_hpu()), b = torch::ones({3, 5, 6}, on_hpu());
  const auto x = torch::ones({2, 3, 8, 8}, on_hpu()), w = torch::ones({5, 3, 3, 3}, on_hpu());
  const auto q = torch::ones({1, 2, 4, 8}, on_hpu()), k = torch::ones({1, 2, 6, 8}, on_hpu());
  const auto& found = heard_of([&] {
    (void)at::bmm(a, b);
    (void)at::mm(a[0], b[0]);
    (void)at::addmm(torch::ones(6, on_hpu()), a[0], b[0]);
    (void)at::conv2d(x, w);
    (void)at::scaled_dot_product_attention(q, k, k);
  });
  std::map<std::string, std::int64_t> flops;
  for (const auto& leaf : found.heard) flops[leaf.op.substr(0, leaf.op.find('.'))] += leaf.flops;
  EXPECT_EQ(flops["aten::bmm"], 2 * 3 * 4 * 5 * 6);
  EXPECT_EQ(flops["aten::mm"], 2 * 4 * 5 * 6);
  EXPECT_EQ(flops["aten::addmm"], 2 * 4 * 5 * 6);
  std::int64_t convolution = 0, attention = 0;
  for (const auto& [op, count] : flops) {
    if (op.find("convolution") != std::string::npos) convolution += count;
    if (op.find("scaled_dot_product") != std::string::npos) attention += count;
  }
  EXPECT_EQ(convolution, std::int64_t{2} * (2 * 5 * 6 * 6) * (3 * 3 * 3));
  EXPECT_EQ(attention, 2 * (2 * 4) * 6 * (8 + 8));
}

TEST(Leaf, SameBitsWhileHeard) {
  torch::manual_seed(3);
  const auto x = torch::randn({5, 16}, on_hpu()), w = torch::randn({16, 8}, on_hpu()), v = torch::randn(16, on_hpu());
  const auto compute = [&] {
    return std::vector<at::Tensor>{at::mm(x, w),
                                   x.add(v),
                                   x.mul(2),
                                   at::gelu(x),
                                   at::silu(x),
                                   at::softmax(x, -1),
                                   x.sum(),
                                   x.zero_(),
                                   x.fill_(0.5),
                                   x.to(torch::kBFloat16),
                                   x.transpose(0, 1).contiguous()};
  };
  const auto start = x.clone();
  const auto quiet = compute();
  std::vector<at::Tensor> copies;
  for (const auto& t : quiet) copies.push_back(t.clone());
  x.copy_(start);
  std::vector<at::Tensor> loud;
  const auto& found = heard_of([&] {
    for (const auto& t : compute()) loud.push_back(t.clone());
  });
  for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(test::same_bits(copies[i], loud[i])) << i;
  EXPECT_GE(found.heard.size(), copies.size());
}

TEST(Leaf, PhasesAndModulesNest) {
  const auto x = torch::ones(2, on_hpu());
  const std::string outer = "model", inner = "model.mlp";
  const auto& found = heard_of([&] {
    const PhaseScope forward("forward");
    const ModuleScope a(outer, "Model");
    {
      const ModuleScope b(inner);
      (void)x.neg();
      EXPECT_EQ(ModuleScope::current(), "model.mlp");
    }
    const PhaseScope loss("loss");
    (void)x.neg();
  });
  ASSERT_EQ(found.heard.size(), 2U);
  EXPECT_EQ(found.heard[0].module, "model.mlp");
  EXPECT_EQ(found.heard[0].phase, "forward");
  EXPECT_EQ(found.heard[0].line, "aten::neg [2] Float | model.mlp");
  EXPECT_EQ(found.heard[1].module, "model");
  EXPECT_EQ(found.heard[1].phase, "loss");
  EXPECT_EQ(ModuleScope::current(), "");
  EXPECT_EQ(PhaseScope::current(), "");
}

TEST(Leaf, BackwardBelongsToTheModuleThatMadeTheNode) {
  const std::string first = "a", second = "b";
  for (const bool own_thread : {true, false}) {
    const auto x = torch::ones({2, 2}, on_hpu()).requires_grad_();
    const auto& found = heard_of([&] {
      at::Tensor y;
      {
        const ModuleScope module(first);
        y = at::mm(x, x);
      }
      {
        const ModuleScope module(second);
        y = y.exp();
      }
      const auto loss = y.sum();
      if (own_thread) return loss.backward();
      std::thread([&] { loss.backward(); }).join();
    });
    std::map<std::string, int> products, multiplied;
    for (const auto& leaf : found.heard) {
      if (!leaf.backward) continue;
      if (leaf.op == "aten::mm") ++products[leaf.module];
      if (leaf.op == "aten::mul.Tensor") ++multiplied[leaf.module];
    }
    EXPECT_EQ(products["a"], 2) << own_thread;
    EXPECT_EQ(products.size(), 1U);
    EXPECT_EQ(multiplied["b"], 1) << own_thread;
  }
}

TEST(Leaf, HostNodesKeepTheirPlace) {
  const auto x = torch::ones(2, on_hpu());
  int runs = 0;
  const auto& found = heard_of([&] {
    (void)x.neg();
    host_node("my::counter", [&] { ++runs; });
    (void)x.exp();
  });
  host_node("my::counter", [&] { ++runs; });
  EXPECT_EQ(runs, 2);
  ASSERT_THAT(found.ops(), ElementsAre("aten::neg", "my::counter", "aten::exp"));
  EXPECT_TRUE(found.heard[1].host);
  EXPECT_FALSE(found.heard[0].host);
}

TEST(Leaf, NotesReachWhoAsks) {
  class Numbers : public LeafListener {
   public:
    void leaf_ends(const LeafRecord& leaf) override {
      for (const auto& [name, value] : leaf.notes) notes[name] = value;
    }
    bool wants_numbers() const override { return true; }
    std::map<std::string, double> notes;
  };
  Numbers numbers;
  {
    const Listening listening(numbers);
    LeafScope leaf("my::cast");
    EXPECT_TRUE(leaf.wants_numbers());
    leaf.note("amax", 3.5);
  }
  EXPECT_EQ(numbers.notes["amax"], 3.5);
  LeafScope unheard("my::cast");
  EXPECT_FALSE(unheard.wants_numbers());
}

TEST(Leaf, ListenersComeAndGoWhileThreadsRun) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      const auto x = torch::ones(8, on_hpu());
      while (!stop) (void)x.neg();
    });
  for (int i = 0; i < 200; ++i) {
    HeardLeaves a, b;
    const Listening one(a);
    const Listening two(b);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(leaves_heard());
}

TEST(Leaf, EightListenAtMost) {
  std::vector<std::unique_ptr<HeardLeaves>> listeners;
  std::vector<std::unique_ptr<Listening>> listening;
  for (int i = 0; i < 8; ++i) {
    listeners.push_back(std::make_unique<HeardLeaves>());
    listening.push_back(std::make_unique<Listening>(*listeners.back()));
  }
  HeardLeaves ninth;
  EXPECT_REFUSED(const Listening refused(ninth), "eight listen already");
}

}  // namespace
}  // namespace fp8::runtime
