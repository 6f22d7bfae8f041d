// SPDX-License-Identifier: Apache-2.0
// Two processes that share amaxes: the same scales from different data, at every step and in every order of regions and
// backward passes.

#include "fp8/transformer_engine/modules/linear.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;
using recipes::RecipeFormat;
using runtime::distributed::ProcessGroup;
using Group = std::shared_ptr<ProcessGroup>;

struct Net {
  Linear a{nullptr}, b{nullptr};
  explicit Net(std::uint64_t seed = 1) {
    torch::manual_seed(seed);
    a = Linear(LinearOptions{.in_features = 16, .out_features = 32, .name = "a"});
    b = Linear(LinearOptions{.in_features = 32, .out_features = 16, .name = "b"});
  }
  at::Tensor operator()(const at::Tensor& x) { return b(torch::relu(a(x))); }
  /// Every scale there is: forward and hybrid of input and weight, backward of the gradient.
  at::Tensor scales() const {
    std::vector<float> all;
    for (const auto& layer : {a, b}) {
      const Fp8StateValues v = layer->fp8_states()[0]->values();
      for (const auto* meta : {&v.forward, &v.hybrid, &v.backward})
        all.insert(all.end(), meta->scale.data(), meta->scale.data() + meta->scale.size());
    }
    return torch::tensor(all);
  }
  float input_scale() const { return a->fp8_states()[0]->values().forward.scale[0]; }
  float backward_scale(const Linear& layer) const { return layer->fp8_states()[0]->values().backward.scale[0]; }
};

/// What a rank trains on: rank 1's values are 37 times as large.
at::Tensor data(int rank, int step, std::int64_t rows = 8) {
  torch::manual_seed(100 * rank + step);
  return (torch::randn({rows, 16}) * (rank == 0 ? 1.0 : 37.0)).to(test::kHpu);
}

std::vector<DelayedScaling> delayed_recipes() {
  std::vector<DelayedScaling> recipes = {DelayedScaling::habana(), DelayedScaling::habana(), DelayedScaling::habana(),
                                         DelayedScaling::nvidia()};
  recipes[1].fp8_format = RecipeFormat::HYBRID;
  recipes[2].fp8_format = RecipeFormat::HYBRID;
  recipes[2].amax_history_len = 3;
  recipes[2].amax_compute_algo = recipes::AmaxComputeAlgo::max;
  recipes[3].amax_history_len = 4;
  return recipes;
}

bool equal_on_all(const at::Tensor& mine, ProcessGroup& group) {
  at::Tensor other = mine.clone();
  group.broadcast(other, 1);
  float differs = torch::equal(other, mine) ? 0.0f : 1.0f;
  group.all_reduce_max(&differs, 1);
  return differs == 0.0f;
}

using AmaxRanks = test::OnlyRanks;

TEST_F(AmaxRanks, DISABLED_ScalesAgree) {
  const Group group = test::rank_group();
  const int rank = group->rank();
  for (DelayedScaling recipe : delayed_recipes())
    for (const bool reduce : {true, false}) {
      recipe.reduce_amax = reduce;
      Net net;
      for (int step = 1; step <= 4; ++step) {
        const at::Tensor y =
            test::within(fp8_autocast({.recipe = recipe, .group = group}), [&] { return net(data(rank, step)); });
        y.square().mean().backward();
        // habana moves on entering the next step.
        const bool moved = recipe.dialect == recipes::RecipeDialect::nvidia || step > 1;
        EXPECT_EQ(equal_on_all(net.scales(), *group), reduce || !moved)
            << recipes::describe(recipe) << ", step " << step;
      }
      if (!reduce || recipe.amax_history_len == 3) continue;
      // The scale is the one that the larger of both inputs asks for. habana: of step 3; nvidia: the largest of all.
      const bool nvidia = recipe.dialect == recipes::RecipeDialect::nvidia;
      float amax = 0.0f;
      for (const int r : {0, 1})
        for (const int step : nvidia ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{3})
          amax = std::max(amax, data(r, step).abs().max().item<float>());
      const double max = recipe.fp8_format == RecipeFormat::E5M2 ? 57344.0 : 448.0;
      EXPECT_EQ(net.input_scale(), nvidia ? static_cast<float>(max) / amax
                                          : static_cast<float>(std::exp2(std::floor(std::log2(max / amax)))))
          << recipes::describe(recipe);
    }
}

// Two regions before one backward, a module that runs twice in a region, two microbatches in one region, checkpointing:
// whatever the order, scales are made of amaxes that have met.
TEST_F(AmaxRanks, DISABLED_AnyOrderOfRegions) {
  const Group group = test::rank_group();
  const int rank = group->rank();
  for (const DelayedScaling& recipe : delayed_recipes()) {
    Net net;
    const auto in_region = [&](int step) {
      const fp8_autocast region({.recipe = recipe, .group = group});
      return net(data(rank, step)).square().mean();
    };
    const auto agree = [&](const char* what) {
      EXPECT_TRUE(equal_on_all(net.scales(), *group)) << what << ": " << recipes::describe(recipe);
    };
    for (int step = 0; step < 3; ++step) {
      const at::Tensor first = in_region(10 * step), second = in_region(10 * step + 1);
      (first + second).backward();
      agree("two regions, one backward");
    }
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = test::within(fp8_autocast({.recipe = recipe, .group = group}), [&] {
        return net(data(rank, 30 + step)).square().mean() + net(data(rank, 40 + step)).square().mean();
      });
      loss.backward();
      agree("twice in a region");
    }
    for (int step = 0; step < 3; ++step) {
      const fp8_autocast region({.recipe = recipe, .group = group});
      for (int i = 0; i < 2; ++i) net(data(rank, 50 + 2 * step + i)).square().mean().backward();
    }
    agree("two microbatches in a region");
    for (int step = 0; step < 3; ++step) {
      at::Tensor y;
      {
        const fp8_autocast outer({.enabled = false});
        const fp8_autocast region({.recipe = recipe, .group = group});  // the inner region's group counts
        const at::Tensor x = data(rank, 60 + step).requires_grad_(true);
        const at::Tensor h = checkpoint([&](const at::Tensor& t) { return torch::relu(net.a(t)); }, x);
        y = checkpoint([&](const at::Tensor& t) { return net.b(t); }, h);
      }
      y.square().mean().backward();
    }
    agree("checkpointed");
  }
}

// Steps 1 and 2 are in one region: what 1 measured waits for the ranks until after 2, the step of new scales, and must
// not wait for step 10.
TEST_F(AmaxRanks, DISABLED_IntervalsOfAProductThatRunsTwice) {
  const Group group = test::rank_group();
  DelayedScaling recipe = DelayedScaling::habana();
  recipe.interval = 8;
  Net net;
  for (int step = 0; step < 2; ++step) {
    const fp8_autocast region({.recipe = recipe, .group = group});
    for (int i = 0; i < 2; ++i) net(data(group->rank(), 10 * step + i));
  }
  const double amax = std::max(data(0, 0).abs().max().item<double>(), data(1, 0).abs().max().item<double>());
  EXPECT_EQ(net.input_scale(), std::exp2(std::floor(std::log2(57344.0 / amax))));
}

TEST_F(AmaxRanks, DISABLED_EvaluationOnOneRank) {
  const Group group = test::rank_group();
  Net net;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor y = test::within(fp8_autocast({.recipe = DelayedScaling::nvidia(), .group = group}),
                                      [&] { return net(data(group->rank(), step)); });
    y.sum().backward();
    if (group->rank() == 0) {
      const torch::NoGradGuard no_grad;
      const fp8_autocast region({.recipe = DelayedScaling::nvidia(), .group = group});
      net(data(0, 9));
    }
  }
  EXPECT_TRUE(equal_on_all(net.scales(), *group));
  // An empty batch is a batch.
  test::within(fp8_autocast({.recipe = DelayedScaling::nvidia(), .group = group}),
               [&] { net(data(group->rank(), 3, group->rank() == 0 ? 0 : 4)).sum().backward(); });
  EXPECT_TRUE(equal_on_all(net.scales(), *group));
}

TEST_F(AmaxRanks, DISABLED_OtherProductsForward) {
  const Group group = test::rank_group();
  Net net;
  fp8_autocast region({.recipe = DelayedScaling::nvidia(), .group = group});
  group->rank() == 0 ? net.a(data(0, 1)) : net.b(torch::ones({2, 32}, on_hpu()));  // as many amaxes, of another product
  EXPECT_REFUSED(region.end(), "[fp8_autocast] rank", "different products forward", group->rank() == 0 ? "'a'" : "'b'");
}

TEST_F(AmaxRanks, DISABLED_OtherProductsBackward) {
  const Group group = test::rank_group();
  Net net;
  at::Tensor loss;
  {
    const fp8_autocast region({.recipe = DelayedScaling::nvidia(), .group = group});
    const at::Tensor h = net.a(data(0, 1)), y = net.b(torch::relu(h));
    loss = group->rank() == 0 ? h.sum() : y.sum();
  }
  EXPECT_REFUSED(loss.backward(), "rank " + std::to_string(group->rank()), "different calls");
}

/// A step that must fail on rank 0, forward or backward, and what is left then. FP8_TEST_PASS says where rank 1 is
/// lost.
void expect_the_other_is_missed(const Group& group, const std::string& why) {
  const std::string pass = std::getenv("FP8_TEST_PASS");
  Net net;
  const auto step = [&] {
    at::Tensor y = test::within(fp8_autocast({.recipe = DelayedScaling::nvidia(), .group = group}),
                                [&] { return net(data(0, 1)); });
    EXPECT_EQ(pass, "backward");
    y.sum().backward();
  };
  EXPECT_TRUE(throws_with({"rank 0 of 2", "all_reduce max", why}, step));
  EXPECT_EQ(current_region(), nullptr);
  // With such a group nothing goes on; without it all does.
  EXPECT_TRUE(throws_with({"the group failed before"}, [&] {
    fp8_autocast region({.recipe = DelayedScaling::nvidia(), .group = group});
    net(data(0, 2));
    region.end();
  }));
  const at::Tensor y =
      test::within(fp8_autocast({.recipe = DelayedScaling::nvidia()}), [&] { return net(data(0, 3)); });
  y.sum().backward();
  EXPECT_NE(net.backward_scale(net.a), 1.0f);
}

TEST_F(AmaxRanks, DISABLED_OneEndsWithAnError) {
  const Group group = test::rank_group();
  static bool fails;
  fails = group->rank() == 1;
  on_outermost_regions({nullptr, [](bool) { return std::string(fails ? "'b' did not train" : ""); }});
  Net net;
  const auto step = [&] {
    fp8_autocast region({.recipe = DelayedScaling::nvidia(), .group = group});
    net(data(group->rank(), 1));
    region.end();
  };
  EXPECT_TRUE(throws_with({fails ? "'b' did not train" : "rank 0 of 2: another rank ends"}, step));
  fails = false;
  EXPECT_NO_THROW(step());
}

/// Rank 1 does what it does before it is lost.
void run_until_lost(const Group& group) {
  if (std::getenv("FP8_TEST_PASS") != std::string("backward")) return;
  Net net;
  const fp8_autocast region({.recipe = DelayedScaling::nvidia(), .group = group});
  net(data(1, 1));
}

void lose_rank_1(bool late) {
  const Group group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) {
    run_until_lost(group);
    if (late) std::this_thread::sleep_for(std::chrono::seconds(5));
    _exit(late ? 0 : 3);
  }
  expect_the_other_is_missed(group, late ? "imed out" : "onnection");
}

TEST_F(AmaxRanks, DISABLED_OneDies) { lose_rank_1(false); }
TEST_F(AmaxRanks, DISABLED_OneIsLate) { lose_rank_1(true); }

TEST(AmaxReduction, ARankThatDiesOrIsLateIsAnErrorForwardAndBackward) {
  for (const char* pass : {"forward", "backward"}) {
    EXPECT_EQ(test::run_ranks("AmaxRanks.DISABLED_OneDies", 2, {{"FP8_TEST_PASS", pass}}), (std::vector<int>{0, 3}))
        << pass;
    EXPECT_EQ(
        test::run_ranks("AmaxRanks.DISABLED_OneIsLate", 2, {{"FP8_TEST_PASS", pass}, {test::kRanksTimeout, "1500"}}),
        test::all_pass(2))
        << pass;
  }
}

TEST(AmaxReduction, RanksPassEachOfTheirCases) {
  for (const std::string name :
       {"ScalesAgree", "IntervalsOfAProductThatRunsTwice", "AnyOrderOfRegions", "EvaluationOnOneRank",
        "OneEndsWithAnError", "OtherProductsForward", "OtherProductsBackward"})
    EXPECT_EQ(test::run_ranks("AmaxRanks.DISABLED_" + name, 2), test::all_pass(2)) << name;
}

// ---- one process: when backward scales move

TEST(BackwardScales, MoveWithoutTheFirstProductsBackward) {
  Net net;
  at::Tensor y;
  {
    const fp8_autocast region(true, DelayedScaling::nvidia());
    net.a(data(0, 1));  // no part of the loss
    y = net.b(torch::ones({2, 32}, on_hpu()));
  }
  (y.sum() * 8).backward();
  EXPECT_EQ(net.backward_scale(net.b), 57344.0f / 8.0f);
  EXPECT_EQ(net.backward_scale(net.a), 1.0f);
}

// Backward passes of a product that ran twice come in reverse order: the step of new scales (2), then the one that
// measures (1).
TEST(BackwardScales, MoveAtIntervalsWhereAProductRunsTwice) {
  DelayedScaling recipe = DelayedScaling::habana();
  recipe.interval = 16;
  for (const bool one_region : {false, true}) {
    Net net;
    for (int step = 0; step < 10; ++step) {
      const double size = step < 8 ? 4.0 : 64.0;  // of the gradient; steps 17 and 18 measure 64 and use it
      std::vector<at::Tensor> y;
      const auto run = [&] { y.push_back(net.b(torch::ones({2, 32}, on_hpu()).requires_grad_(true))); };
      if (one_region) {
        const fp8_autocast region(true, recipe);
        run();
        run();
      } else {
        for (int i = 0; i < 2; ++i) {
          const fp8_autocast region(true, recipe);
          run();
        }
      }
      (y[0].sum() * size + y[1].sum() * 2).backward();
      // 2^floor(log2(57344 / 4)), 2^floor(log2(57344 / 64))
      const float expected = step == 0 ? 1.0f : step < 9 ? 8192.0f : 512.0f;
      EXPECT_EQ(net.backward_scale(net.b), expected) << "step " << step << ", one region " << one_region;
    }
  }
}

TEST(BackwardScales, MoveOnceForEachBackward) {
  for (const bool checkpointed : {false, true}) {
    Net net;
    DelayedScaling recipe = DelayedScaling::nvidia();
    recipe.amax_history_len = 1;  // a product whose scale moved twice in a backward would have the second amax alone
    const fp8_autocast region(true, recipe);
    const auto run = [&](const at::Tensor& x) {
      return checkpointed ? checkpoint([&](const at::Tensor& t) { return net.b(t); }, x) : net.b(x);
    };
    const auto x = [] { return torch::ones({2, 32}, on_hpu()).requires_grad_(true); };
    (run(x()).sum() * 4 + run(x()).sum() * 2).backward();
    EXPECT_EQ(net.backward_scale(net.b), 57344.0f / 4.0f);
    (run(x()).sum() * 2).backward();  // the same region goes on
    EXPECT_EQ(net.backward_scale(net.b), 57344.0f / 2.0f);
  }
}

}  // namespace
}  // namespace fp8::te
