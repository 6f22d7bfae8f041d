// SPDX-License-Identifier: Apache-2.0
// Messages between ranks: numbers, texts, errors and differences; parts of a group; one buffer of gradients; and
// how they meet, or don't.
#include "fp8/runtime/distributed/exchange.h"

#include <bit>

#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/io/base/file.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

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

}  // namespace
}  // namespace fp8::runtime::distributed
