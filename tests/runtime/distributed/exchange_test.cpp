// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other: numbers, texts, errors and differences; parts of a group; one buffer of gradients; and
// how they meet, or don't.
#include "fp8/runtime/distributed/exchange.h"

#include <bit>
#include <cmath>

#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/io/base/file.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using test::on_hpu;
using test::same_bits;
using test::throws_with;

TEST(ExchangeRanks, DISABLED_NumbersAndTexts) {
  FP8_RANK_ONLY();
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

TEST(ExchangeRanks, DISABLED_ErrorsAndDifferences) {
  FP8_RANK_ONLY();
  const auto group = test::rank_group();
  const int rank = group->rank();
  EXPECT_TRUE(throws_with({rank == 0 ? "the disk is full" : "rank 0: the disk is full"},
                          [&] { from_first([]() -> std::string { throw io::Error("the disk is full"); }, *group); }));
  check_same({{"lr", 0.1}}, *group, "train");
  EXPECT_TRUE(throws_with({"[train] rank 2 differs from rank 0: lr: found 0.25, rank 0 has 0.5"},
                          [&] { check_same({{"lr", rank == 2 ? 0.25 : 0.5}, {"steps", 3}}, *group, "train"); }));
  io::Json more = {{"steps", 3}};
  if (rank == 1) more["seed"] = 4;
  EXPECT_TRUE(throws_with({"rank 1 differs from rank 0: seed: found 4, rank 0 has nothing"},
                          [&] { check_same(more, *group, "train"); }));
  group->barrier();  // all of them go on
}

TEST(ExchangeRanks, DISABLED_Parts) {
  FP8_RANK_ONLY();
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
  EXPECT_TRUE(throws_with({"[make_subgroup] ranks: found 3"}, [&] { make_subgroup(group, 3); }));
}

TEST(ExchangeRanks, DISABLED_OneBuffer) {
  FP8_RANK_ONLY();
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
  EXPECT_TRUE(throws_with({"rank 1 differs from rank 0"}, [&] { other.all_reduce(); }));
  EXPECT_TRUE(throws_with({"dtype: found Double"}, [&] { FusedGradients({a}, {"a"}, group, at::kDouble); }));
}

TEST(ExchangeRanks, DISABLED_ToldAnotherSize) {
  FP8_RANK_ONLY();
  auto options = test::rank_options();
  if (options.rank == 1) options.size = 3;
  options.timeout = std::chrono::seconds(5);
  EXPECT_TRUE(throws_with({options.rank == 0 ? "rank 1 was told that there are 3 ranks, this one that there are 2"
                                             : "rank 0 was told that there are 2 ranks, this one that there are 3"},
                          [&] { make_gloo_group(options); }));
}

TEST(Exchange, NumbersAndTexts) {
  EXPECT_EQ(test::run_ranks("ExchangeRanks.DISABLED_NumbersAndTexts", 3), test::all_pass(3));
}
TEST(Exchange, ErrorsAndDifferences) {
  EXPECT_EQ(test::run_ranks("ExchangeRanks.DISABLED_ErrorsAndDifferences", 3), test::all_pass(3));
}
TEST(Exchange, PartsOfAGroup) { EXPECT_EQ(test::run_ranks("ExchangeRanks.DISABLED_Parts", 4), test::all_pass(4)); }
TEST(Exchange, OneBufferOfGradients) {
  EXPECT_EQ(test::run_ranks("ExchangeRanks.DISABLED_OneBuffer", 2), test::all_pass(2));
}
TEST(Exchange, AnotherSizeIsAnError) {
  EXPECT_EQ(test::run_ranks("ExchangeRanks.DISABLED_ToldAnotherSize", 2), test::all_pass(2));
}

TEST(Meeting, ANameThatDoesNotResolveIsNamed) {
  EXPECT_TRUE(throws_with(
      {"rank 0 of 2 at no-such-host.invalid:29500", "host: found 'no-such-host.invalid'", "does not resolve",
       "GLOO_SOCKET_IFNAME"},
      [] {
        make_gloo_group(
            {.rank = 0, .size = 2, .host = "no-such-host.invalid", .timeout = std::chrono::milliseconds(100)});
      }));
}

}  // namespace
}  // namespace fp8::runtime::distributed
