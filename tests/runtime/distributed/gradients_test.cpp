// SPDX-License-Identifier: Apache-2.0
// Data parallel training in two processes: the mean of both gradients, and the model that one process with both halves
// gets.
#include "fp8/runtime/distributed/data_parallel.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using test::on_hpu;
using test::same_bits;
using test::throws_with;

TEST(GradientRanks, DISABLED_Mean) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  const bool first = group->rank() == 0;
  const auto parameter = [](at::ScalarType dtype) { return torch::zeros({2, 3}, on_hpu(dtype)).requires_grad_(true); };
  at::Tensor both = parameter(at::kFloat), low = parameter(at::kBFloat16), one = parameter(at::kFloat),
             none = parameter(at::kFloat), frozen = torch::zeros({2}, on_hpu());
  both.mutable_grad() = torch::full({2, 3}, first ? 1.0 : 4.0, on_hpu());
  low.mutable_grad() = torch::full({3, 2}, first ? 1.0 : 1.0078125, on_hpu(at::kBFloat16)).t();
  if (first) one.mutable_grad() = torch::full({2, 3}, 3.0, on_hpu());
  all_reduce_gradients({both, low, one, none, frozen, at::Tensor()}, *group);
  EXPECT_TRUE(same_bits(both.grad(), torch::full({2, 3}, 2.5, on_hpu())));
  EXPECT_TRUE(same_bits(low.grad(), torch::full({2, 3}, 1.0, on_hpu(at::kBFloat16))));  // 1.00390625 is a tie: to even
  EXPECT_TRUE(same_bits(one.grad(), torch::full({2, 3}, 1.5, on_hpu())));
  EXPECT_FALSE(none.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
}

TEST(GradientRanks, DISABLED_OtherParameters) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  at::Tensor p = torch::zeros({group->rank() == 0 ? 4 : 6}, on_hpu()).requires_grad_(true);
  p.mutable_grad() = torch::ones_like(p);
  EXPECT_TRUE(
      throws_with({"different calls", "of 5 elements", "of 7 elements"}, [&] { all_reduce_gradients({p}, *group); }));
}

struct Net {
  torch::nn::Linear up{nullptr}, down{nullptr};
  explicit Net(std::uint64_t seed) {
    torch::manual_seed(seed);
    up = torch::nn::Linear(8, 16);
    down = torch::nn::Linear(16, 4);
    up->to(test::kHpu);
    down->to(test::kHpu);
  }
  at::Tensor loss(const at::Tensor& x) { return down(torch::relu(up(x))).square().mean(); }
  std::vector<at::Tensor> parameters() const { return {up->weight, up->bias, down->weight, down->bias}; }
};

// Four steps of SGD on the halves of a batch end where one process with the whole batch ends.
TEST(GradientRanks, DISABLED_TrainsAsOne) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  Net mine(100 + static_cast<std::uint64_t>(group->rank())), whole(100);
  broadcast_parameters(mine.parameters(), *group);
  for (std::size_t i = 0; i < 4; ++i) ASSERT_TRUE(same_bits(mine.parameters()[i], whole.parameters()[i]));
  torch::optim::SGD a(mine.parameters(), 0.1), b(whole.parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(step);
    const at::Tensor batch = torch::randn({6, 8}).to(test::kHpu);
    a.zero_grad();
    b.zero_grad();
    mine.loss(batch.narrow(0, group->rank() * 3, 3)).backward();
    whole.loss(batch).backward();
    all_reduce_gradients(mine.parameters(), *group);
    a.step();
    b.step();
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(mine.parameters()[i], whole.parameters()[i], 1e-5, 1e-6));
    at::Tensor other = mine.parameters()[i].detach().clone();
    group->broadcast(other, 1);
    EXPECT_TRUE(same_bits(other, mine.parameters()[i]));  // both ranks hold the same bits
  }
}

TEST(Gradients, AreTheMeanOfAllRanks) {
  EXPECT_EQ(test::run_ranks("GradientRanks.DISABLED_Mean", 2), test::all_pass(2));
}
TEST(Gradients, OtherParametersAreAnError) {
  EXPECT_EQ(test::run_ranks("GradientRanks.DISABLED_OtherParameters", 2), test::all_pass(2));
}
TEST(Gradients, TwoHalvesTrainAsOneWhole) {
  EXPECT_EQ(test::run_ranks("GradientRanks.DISABLED_TrainsAsOne", 2), test::all_pass(2));
}

TEST(Gradients, AloneTheyStayAsTheyAre) {
  const auto group = make_gloo_group({});
  at::Tensor p = torch::zeros({4}, on_hpu()).requires_grad_(true), q = torch::zeros({4}, on_hpu()).requires_grad_(true);
  p.mutable_grad() = torch::arange(4, on_hpu(at::kFloat)) / 3;
  const at::Tensor before = p.grad().clone();
  all_reduce_gradients({p, q}, *group);
  EXPECT_TRUE(same_bits(p.grad(), before));
  EXPECT_FALSE(q.grad().defined());
  p.mutable_grad() = at::Tensor();
  p.mutable_grad() = torch::sparse_coo_tensor(torch::zeros({1, 1}, at::kLong), torch::ones({1}), {4}).to(at::kFloat);
  EXPECT_TRUE(throws_with({"parameter 0", "sparse"}, [&] { all_reduce_gradients({p}, *group); }));
}

}  // namespace
}  // namespace fp8::runtime::distributed
