// SPDX-License-Identifier: Apache-2.0
// What one rank sends to another: tensors while both go on, texts, and a rank that is gone.
#include "fp8/runtime/distributed/exchange.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using test::on_hpu;
using test::same_bits;
using test::throws_with;

// ---- what ranks run

/// Rank 0 is ahead by three; all come in their order, with their bits, into memory of either device.
TEST(TransferRanks, DISABLED_TensorsInTheirOrder) {
  FP8_RANK_ONLY();
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

TEST(TransferRanks, DISABLED_TextsAndNothing) {
  FP8_RANK_ONLY();
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

TEST(TransferRanks, DISABLED_Refusals) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  const int rank = group->rank();
  EXPECT_TRUE(throws_with({"send: found rank 7, allowed: another of the 2 than " + std::to_string(rank)},
                          [&] { send(torch::zeros({2}), 7, *group); }));
  EXPECT_TRUE(
      throws_with({"receive: found rank", "allowed: another"}, [&] { receive(torch::zeros({2}), rank, *group); }));
  EXPECT_TRUE(throws_with({"send: expected a contiguous tensor on hpu or cpu"},
                          [&] { send(torch::zeros({2, 3}).t(), 1 - rank, *group); }));
  at::Tensor weight = torch::ones({2, 3}, on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  EXPECT_TRUE(throws_with({"send", "module 'proj'"}, [&] { send(weight, 1 - rank, *group); }));
  EXPECT_TRUE(throws_with({"receive", "module 'proj'"}, [&] { receive(weight, 1 - rank, *group); }));
  const auto alone = make_gloo_group({});
  EXPECT_TRUE(throws_with({"found rank 0, allowed: another of the 1"}, [&] { send(torch::zeros({2}), 0, *alone); }));
  group->barrier();
}

TEST(TransferRanks, DISABLED_OneDies) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) _exit(3);
  EXPECT_TRUE(throws_with({"rank 0 of 2", "receive of 5 elements of BFloat16 from rank 1", "rank 1"},
                          [&] { receive(torch::zeros({5}, at::kBFloat16), 1, *group).wait(); }));
}

TEST(TransferRanks, DISABLED_OneIsLate) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    _exit(0);
  }
  EXPECT_TRUE(
      throws_with({"rank 0 of 2", "receive", "imed out"}, [&] { receive(torch::zeros({5}), 1, *group).wait(); }));
}

// ---- what is run

TEST(Transfers, ComeInTheirOrder) {
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_TensorsInTheirOrder", 2), test::all_pass(2));
}
TEST(Transfers, OfTextsAndOfNothing) {
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_TextsAndNothing", 3), test::all_pass(3));
}
TEST(Transfers, RefuseWhatCannotBe) {
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_Refusals", 2), test::all_pass(2));
}
TEST(Transfers, OfARankThatIsGone) {
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_OneDies", 2), (std::vector<int>{0, 3}));
  EXPECT_EQ(test::run_ranks("TransferRanks.DISABLED_OneIsLate", 2, {{test::kRanksTimeout, "700"}}), test::all_pass(2));
}

}  // namespace
}  // namespace fp8::runtime::distributed
