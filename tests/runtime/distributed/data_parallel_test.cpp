// SPDX-License-Identifier: Apache-2.0
// Buckets of gradients on two and three processes: the model that one process with the whole batch gets, in every form
// that the engine has.
#include "fp8/runtime/distributed/data_parallel.h"

#include "fp8/runtime/distributed/gloo_group.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr std::int64_t kRows = 4;  ///< of each rank's micro-batch

struct BucketedNet {
  torch::nn::Linear up{nullptr}, down{nullptr}, idle{nullptr};
  BucketedNet() {
    torch::manual_seed(100);
    up = torch::nn::Linear(8, 300);
    down = torch::nn::Linear(300, 4);
    idle = torch::nn::Linear(3, 3);
    for (torch::nn::Linear linear : {up, down, idle}) linear->to(test::kHpu);
  }
  at::Tensor loss(const at::Tensor& x) { return down(torch::tanh(up(x))).square().mean(); }
  std::vector<at::Tensor> parameters(bool with_idle = false) const {
    std::vector<at::Tensor> all = {up->weight, up->bias, down->weight, down->bias};
    if (with_idle) all.insert(all.end(), {idle->weight, idle->bias});
    return all;
  }
};

std::vector<std::string> names(std::size_t count) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back("p" + std::to_string(i));
  return list;
}

at::Tensor batch_of(int step, int microbatches, int ranks) {
  torch::manual_seed(step);
  return torch::randn({microbatches * ranks * kRows, 8}).to(test::kHpu);
}

/// Steps of SGD with `options`, micro-batches without a message but the last; and beside it the whole.
void trains_as_one(const GroupPointer& group, const DataParallelOptions& options, int microbatches, double tolerance,
                   bool with_idle = false) {
  const int rank = group->getRank(), ranks = group->getSize();
  SCOPED_TRACE(c10::str("unused ", options.find_unused_parameters, " static ", options.static_graph, " views ",
                        options.gradient_as_bucket_view, " as ", static_cast<int>(options.bucket_dtype)));
  BucketedNet mine, whole;
  DataParallel ddp(mine.parameters(with_idle), names(mine.parameters(with_idle).size()), group, options);
  torch::optim::SGD a(mine.parameters(), 0.1), b(whole.parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor batch = batch_of(step, microbatches, ranks);
    ddp.zero_gradients();
    b.zero_grad();
    whole.loss(batch).backward();
    for (int i = 0; i < microbatches; ++i) {
      const bool last = i + 1 == microbatches;
      if (last) ddp.before_forward();
      const at::Tensor loss = mine.loss(batch.narrow(0, (i * ranks + rank) * kRows, kRows)) / microbatches;
      if (last) ddp.before_backward({loss});
      loss.backward();
    }
    a.step();
    b.step();
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(mine.parameters()[i], whole.parameters()[i], 0, tolerance)) << i;
    std::vector<std::vector<at::Tensor>> everywhere(1);
    for (int r = 0; r < ranks; ++r) everywhere[0].push_back(torch::empty_like(mine.parameters()[i]).detach());
    std::vector<at::Tensor> here = {mine.parameters()[i].detach()};
    group->allgather(everywhere, here)->wait();
    for (const at::Tensor& other : everywhere[0]) EXPECT_TRUE(same_bits(other, here[0])) << i;
  }
}

FP8_TEST_RANKS(DataParallel, TrainsAsOneWholeInEveryForm, 2, 3) {
  const GroupPointer group = make_group(test::rank_options());
  for (const int microbatches : {1, 3}) {
    SCOPED_TRACE(microbatches);
    trains_as_one(group, {}, microbatches, 1e-6);
    trains_as_one(group, {.bucket_cap_mb = 1}, microbatches, 1e-6);
    trains_as_one(group, {.find_unused_parameters = true}, microbatches, 1e-6, /*with_idle=*/true);
    trains_as_one(group, {.static_graph = true}, microbatches, 1e-6);
    trains_as_one(group, {.gradient_as_bucket_view = true}, microbatches, 1e-6);
    trains_as_one(group, {.bucket_dtype = BucketDtype::bf16}, microbatches, 2e-3);
    trains_as_one(group, {.bucket_dtype = BucketDtype::f16}, microbatches, 3e-4);
  }
}

FP8_TEST_RANKS(DataParallel, UnusedParametersAreNamed, 2) {
  const GroupPointer group = make_group(test::rank_options());
  BucketedNet net;
  DataParallel ddp(net.parameters(true), names(6), group);
  const auto step = [&] {
    ddp.before_forward();
    const at::Tensor loss = net.loss(batch_of(0, 1, 1));
    ddp.before_backward({loss});
    loss.backward();
    ddp.after_backward();
  };
  // In the step itself, not in the next one, which need not come.
  EXPECT_TRUE(throws_with({"[DataParallel] found parameters that the last backward of the step did not meet: '",
                           "find_unused_parameters, or hpu_parallel"},
                          step));
}

FP8_TEST_RANKS(DataParallel, OtherParametersAreAnError, 2) {
  const GroupPointer group = make_group(test::rank_options());
  const at::Tensor p = torch::zeros({group->getRank() == 0 ? 4 : 6}, on_hpu()).requires_grad_(true);
  if (group->getRank() == 1)  // rank 0's shape is the measure
    EXPECT_REFUSED(DataParallel({p}, {"p"}, group), "params[0]", "sizes [6]");
  else
    DataParallel({p}, {"p"}, group);
}

TEST(DataParallel, OptionsOutOfRange) {
  const GroupPointer group = make_group({});
  const at::Tensor p = torch::zeros({4}, on_hpu()), q = torch::zeros({4}, on_hpu()).requires_grad_(true);
  EXPECT_REFUSED(DataParallel({q}, {"q"}, group, {.bucket_cap_mb = 0}), "bucket_cap_mb: found 0");
  EXPECT_REFUSED(DataParallel({p}, {"p"}, group), "no parameter with requires_grad");
  EXPECT_REFUSED(DataParallel({q}, {}, group), "0 names of 1");
  const at::Tensor codes = torch::zeros({4}).to(at::kFloat8_e4m3fn).to(test::kHpu).requires_grad_(true);
  EXPECT_REFUSED(DataParallel({q, codes}, {"q", "proj.weight"}, group), "'proj.weight'", "held in Float8_e4m3fn",
                 "hpu_parallel");
}

// Data parallel training in two processes: the mean of both gradients, and the model that one process with both halves
// gets.

FP8_TEST_RANKS(Gradients, AreTheMeanOfAllRanks, 2) {
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

FP8_TEST_RANKS(Gradients, OtherParametersAreAnError, 2) {
  const auto group = test::rank_group();
  at::Tensor p = torch::zeros({group->rank() == 0 ? 4 : 6}, on_hpu()).requires_grad_(true);
  p.mutable_grad() = torch::ones_like(p);
  EXPECT_REFUSED(all_reduce_gradients({p}, *group), "different calls", "of 5 elements", "of 7 elements");
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
FP8_TEST_RANKS(Gradients, TwoHalvesTrainAsOneWhole, 2) {
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
  EXPECT_REFUSED(all_reduce_gradients({p}, *group), "parameter 0", "sparse");
}

}  // namespace
}  // namespace fp8::runtime::distributed
