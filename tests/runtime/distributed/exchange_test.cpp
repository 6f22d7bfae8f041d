// SPDX-License-Identifier: Apache-2.0
// Messages between ranks: numbers, texts, errors and differences; parts of a group; one buffer of gradients; and
// how they meet, or don't.
#include "fp8/runtime/distributed/data_parallel.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

FP8_TEST_RANKS(Exchange, NumbersAndTexts, 3) {
  const auto group = test::rank_group();
  const int rank = group->rank();
  const double mine[] = {rank + 0.1, rank == 1 ? NAN : -0.0, 1e300};
  const auto all = all_gather(mine, *group);
  ASSERT_EQ(all.size(), 9u);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(3 * r)], r + 0.1);
    EXPECT_EQ(std::isnan(all[static_cast<std::size_t>(3 * r) + 1]), r == 1);
    EXPECT_EQ(all[static_cast<std::size_t>(3 * r) + 2], 1e300);
  }
  EXPECT_TRUE(std::signbit(all[1]));
  EXPECT_EQ(broadcast_text(rank == 2 ? "of two" : "other", *group, 2), "of two");
  EXPECT_EQ(broadcast_text("", *group), "");
  int calls = 0;
  const auto said = from_first([&] { return "call " + std::to_string(++calls); }, *group);
  EXPECT_EQ(said, "call 1");
  EXPECT_EQ(calls, rank == 0 ? 1 : 0);
}

FP8_TEST_RANKS(Exchange, ErrorsAndDifferences, 3) {
  const auto group = test::rank_group();
  const int rank = group->rank();
  EXPECT_REFUSED(from_first([]() -> std::string { throw io::Error("the disk is full"); }, *group),
                 rank == 0 ? "the disk is full" : "rank 0: the disk is full");
  check_same({{"lr", 0.1}}, *group, "train");
  EXPECT_REFUSED(check_same({{"lr", rank == 2 ? 0.25 : 0.5}, {"steps", 3}}, *group, "train"),
                 "[train] rank 2 differs from rank 0: lr: found 0.25, rank 0 has 0.5");
  io::Json more = {{"steps", 3}};
  if (rank == 1) more["seed"] = 4;
  EXPECT_REFUSED(check_same(more, *group, "train"), "rank 1 differs from rank 0: seed: found 4, rank 0 has nothing");
  group->barrier();  // all of them go on
}

FP8_TEST_RANKS(Exchange, PartsOfAGroup, 4) {
  const auto group = test::rank_group();
  const auto pair = make_subgroup(group, 2), alone = make_subgroup(group, 1);
  EXPECT_EQ(make_subgroup(group, 4), group);
  EXPECT_EQ(pair->rank(), group->rank() % 2);
  EXPECT_EQ(pair->size(), 2);
  EXPECT_EQ(pair->world_rank(), group->rank());
  EXPECT_EQ(alone->world_rank(), group->rank());
  float largest = static_cast<float>(group->rank());
  pair->all_reduce_max(&largest, 1);
  EXPECT_EQ(largest, group->rank() < 2 ? 1.0f : 3.0f);
  alone->all_reduce_max(&largest, 1);
  EXPECT_REFUSED(make_subgroup(group, 3), "[make_subgroup] ranks: found 3");
}

FP8_TEST_RANKS(Exchange, OneBufferOfGradients, 2) {
  const auto group = test::rank_group();
  const bool first = group->rank() == 0;
  const auto parameter = [] { return torch::zeros({2, 3}, on_hpu()).requires_grad_(true); };
  at::Tensor a = parameter(), b = parameter(), none = parameter();
  const auto fill = [&] {
    a.mutable_grad() = torch::full({2, 3}, first ? 1.0 : 4.0, on_hpu());
    b.mutable_grad() = torch::full({3, 2}, first ? 3.0 : 1.0078125, on_hpu()).t();
  };
  FusedGradients exact({a, b, none}, {"a", "b", "none"}, group, at::kFloat), rounded({a, b}, {"a", "b"}, group);
  for (int step = 0; step < 2; ++step) {
    fill();
    exact.all_reduce();
    EXPECT_TRUE(same_bits(a.grad(), torch::full({2, 3}, 2.5, on_hpu())));
    EXPECT_EQ(b.grad().cpu()[0][0].item<float>(), 2.00390625f);
    EXPECT_FALSE(none.grad().defined());
    fill();
    rounded.all_reduce();
    EXPECT_EQ(b.grad().cpu()[0][0].item<float>(), 2.0f);  // as bf16
  }
  fill();
  if (first) none.mutable_grad() = torch::ones({2, 3}, on_hpu());  // the others have none: it counts as zero there
  if (!first) a.mutable_grad() = at::Tensor();
  exact.all_reduce();
  EXPECT_TRUE(same_bits(none.grad(), torch::full({2, 3}, 0.5, on_hpu())));
  EXPECT_TRUE(same_bits(a.grad(), torch::full({2, 3}, 0.5, on_hpu())));
  FusedGradients other(first ? std::vector<at::Tensor>{a} : std::vector<at::Tensor>{b, none},
                       first ? std::vector<std::string>{"a"} : std::vector<std::string>{"b", "none"}, group);
  EXPECT_REFUSED(other.all_reduce(), "rank 1 differs from rank 0");
  EXPECT_REFUSED(FusedGradients({a}, {"a"}, group, at::kDouble), "dtype: found Double");
}

FP8_TEST_RANKS(Exchange, AnotherSizeIsAnError, 2) {
  auto options = test::rank_options();
  if (options.rank == 1) options.size = 3;
  options.timeout = std::chrono::seconds(5);
  EXPECT_REFUSED(make_gloo_group(options), options.rank == 0
                                               ? "rank 1 was told that there are 3 ranks, this one that there are 2"
                                               : "rank 0 was told that there are 2 ranks, this one that there are 3");
}

TEST(Meeting, ANameThatDoesNotResolveIsNamed) {
  EXPECT_REFUSED(make_gloo_group(
                     {.rank = 0, .size = 2, .host = "no-such-host.invalid", .timeout = std::chrono::milliseconds(100)}),
                 "rank 0 of 2 at no-such-host.invalid:29500", "host: found 'no-such-host.invalid'", "does not resolve",
                 "GLOO_SOCKET_IFNAME");
}

// From one rank to another: tensors while both continue, texts, and a rank that is gone.

// ---- what ranks run

/// Rank 0 is ahead by three; all come in their order, with their bits, into memory of either device.
FP8_TEST_RANKS(Transfers, ComeInTheirOrder, 2) {
  const auto group = test::rank_group();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
    const auto message = [&](int i, const at::TensorOptions& options) {
      return (torch::arange(24, at::kFloat).view({2, 3, 4}) - i).to(dtype).to(options.device());
    };
    if (group->rank() == 0) {
      std::vector<Transfer> sent;
      for (int i = 0; i < 3; ++i) sent.push_back(send(message(i, on_hpu()), 1, *group));
      for (auto& one : sent) one.wait();
      sent[0].wait();  // over
    } else {
      for (int i = 0; i < 3; ++i) {
        const at::Tensor there = torch::zeros({2, 3, 4}, at::TensorOptions(dtype).device(i == 1 ? at::kCPU : at::kHPU));
        receive(there, 0, *group).wait();
        EXPECT_TRUE(same_bits(there.cpu(), message(i, at::kCPU))) << i;
      }
    }
  }
}

FP8_TEST_RANKS(Transfers, OfTextsAndOfNothing, 3) {
  const auto group = test::rank_group();
  const std::string large(3'000'000, 'x');
  if (group->rank() == 0) {
    for (const auto& text : {std::string("one\0two", 7), std::string(), large})
      EXPECT_EQ(receive_text(2, *group), text);
    receive(torch::empty({0}), 1, *group).wait();
    EXPECT_EQ(receive_text(1, *group), "of one");
  } else if (group->rank() == 1) {
    send(torch::empty({0}), 0, *group).wait();
    send_text("of one", 0, *group);
  } else {
    for (const auto& text : {std::string("one\0two", 7), std::string(), large}) send_text(text, 0, *group);
  }
  group->barrier();  // collectives go on beside them
}

FP8_TEST_RANKS(Transfers, RefuseWhatCannotBe, 2) {
  const auto group = test::rank_group();
  const int rank = group->rank();
  EXPECT_REFUSED(send(torch::zeros({2}), 7, *group),
                 "send: found rank 7, allowed: another of the 2 than " + std::to_string(rank));
  EXPECT_REFUSED(receive(torch::zeros({2}), rank, *group), "receive: found rank", "allowed: another");
  EXPECT_REFUSED(send(torch::zeros({2, 3}).t(), 1 - rank, *group), "send: expected a contiguous tensor on hpu or cpu");
  at::Tensor weight = torch::ones({2, 3}, on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(send(weight, 1 - rank, *group), "send", "module 'proj'");
  EXPECT_REFUSED(receive(weight, 1 - rank, *group), "receive", "module 'proj'");
  const auto alone = make_gloo_group({});
  EXPECT_REFUSED(send(torch::zeros({2}), 0, *alone), "found rank 0, allowed: another of the 1");
  group->barrier();
}

TEST(TransferRanks, DISABLED_OneDies) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) _exit(3);
  EXPECT_REFUSED(receive(torch::zeros({5}, at::kBFloat16), 1, *group).wait(), "rank 0 of 2",
                 "receive of 5 elements of BFloat16 from rank 1", "rank 1");
}

TEST(TransferRanks, DISABLED_OneIsLate) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    _exit(0);
  }
  EXPECT_REFUSED(receive(torch::zeros({5}), 1, *group).wait(), "rank 0 of 2", "receive", "imed out");
}

// ---- what is run

TEST(Transfers, OfARankThatIsGone) {
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_OneDies", 2), (std::vector<int>{0, 3}));
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_OneIsLate", 2, {{test::kRanksTimeout, "700"}}), test::all_pass(2));
}

// Buckets of gradients on two and three processes: the model that one process with the whole batch gets, in every form
// that the engine has.

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
