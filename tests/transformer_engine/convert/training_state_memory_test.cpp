// SPDX-License-Identifier: Apache-2.0
// What fp8 training leaves behind: the largest inputs, weights that are kept between microbatches, counters; and how
// small it is in memory.

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/optim/optimizers.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;

// Every recipe, and regions that only calibrate, leave the largest inputs for a measurement file; evaluation and
// recomputation do not.
TEST(ExportedAmaxes, AreTheLargestInputsOfTraining) {
  for (const auto& recipe :
       Recipes{nvidia(2), habana_hybrid(), recipes::CurrentScaling{}, recipes::BlockScaling{}, recipes::MXFP8{}})
    for (const bool calibrating : {false, true}) {
      Task task = mlp_task();
      converted(task, recipe);
      const at::Tensor x = task.x;
      const auto run = [&](double scale) {
        const fp8_autocast region({.enabled = !calibrating, .recipe = recipe, .calibrating = calibrating});
        return loss_of(task, task.forward(x * scale));
      };
      for (const double scale : {1.0, 3.0, 2.0}) run(scale).backward();
      {
        const torch::NoGradGuard no_grad;
        if (!calibrating) run(100.0);
      }
      const measure::MeasurementFile file = export_amax(*task.model);
      ASSERT_EQ(file.modules.size(), 3u) << recipes::describe(recipe);
      EXPECT_EQ(file.num_samples, 3);
      EXPECT_EQ(file.modules[0].inputs[0][0], (x * 3).abs().max().item<float>()) << recipes::describe(recipe);
    }
}

// ---- microbatches and memory

TEST(Microbatches, TheKeptWeightGivesTheSameGradients) {
  const Task cached = mlp_task(), anew = mlp_task(), small = mlp_task();
  const HPUPrecisionPlugin plugin = converted(cached, recipes::CurrentScaling{});
  converted(anew, recipes::CurrentScaling{});
  converted(small, recipes::CurrentScaling{}, {.minimize_memory = true});
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 3; ++micro) {
      const float a = backward_step(cached, plugin, {.is_first_microbatch = micro == 0});
      EXPECT_EQ(a, backward_step(anew, plugin));
      EXPECT_EQ(a, backward_step(small, plugin, {.is_first_microbatch = micro == 0}));
    }
    EXPECT_TRUE(all_same(gradients_of(*cached.model), gradients_of(*anew.model)));
    EXPECT_TRUE(all_same(gradients_of(*cached.model), gradients_of(*small.model)));
    for (const Task* t : {&cached, &anew, &small}) {
      torch::optim::SGD(t->model->parameters(), 0.05).step();
      t->model->zero_grad();
    }
  }
  // The weight is cast in the first one only: casts are x, w and the gradient, then x and the gradient.
  const Task counted = mlp_task();
  const HPUPrecisionPlugin delayed = converted(counted, nvidia(4));
  backward_step(counted, delayed, {.is_first_microbatch = true});
  EXPECT_EQ(take_statistics(*counted.model).at("fc2").casts, 3);
  backward_step(counted, delayed, {.is_first_microbatch = false});
  EXPECT_EQ(take_statistics(*counted.model).at("fc2").casts, 2);
  // Delayed scales move between microbatches; what backward multiplies with is what forward did, also where codes are
  // not kept.
  const Task kept = mlp_task(), minimal = mlp_task();
  const HPUPrecisionPlugin kept_plugin = converted(kept, habana_hybrid());
  converted(minimal, habana_hybrid(), {.minimize_memory = true});
  EXPECT_EQ(io::RuntimeFlags::from_env()["PT_HPU_FP8_MINIMIZE_MEMORY"].source_text(), "call: convert_modules()");
  for (int micro = 0; micro < 3; ++micro)
    for (const Task* t : {&kept, &minimal}) backward_step(*t, kept_plugin, {.is_first_microbatch = micro == 0});
  EXPECT_TRUE(all_same(gradients_of(*kept.model), gradients_of(*minimal.model)));
}

/// Bytes that a forward pass leaves behind for its backward pass.
std::int64_t saved_bytes(const Task& task, const HPUPrecisionPlugin& plugin) {
  backward_step(task, plugin);  // gradients and scales exist
  const std::int64_t before = runtime::memory_stats().InUse;
  const auto region = plugin.forward_context();
  const at::Tensor loss = loss_of(task, task.forward(task.x));
  return runtime::memory_stats().InUse - before;
}

TEST(Memory, TheVendorsVariableMinimizesIt) {
  const Task plain = lm_task(), small = lm_task();
  const HPUPrecisionPlugin plugin = converted(plain, nvidia(4));
  const std::int64_t expected = saved_bytes(plain, plugin);
  setenv("PT_HPU_FP8_MINIMIZE_MEMORY", "1", 1);
  converted(small, nvidia(4));
  unsetenv("PT_HPU_FP8_MINIMIZE_MEMORY");
  EXPECT_LT(saved_bytes(small, plugin), expected);
}

TEST(Memory, LessIsSavedForBackwardThanInBf16) {
  const std::int64_t bf16 = saved_bytes(lm_task(), HPUPrecisionPlugin("bf16-mixed"));
  for (const auto& recipe : Recipes{nvidia(4), habana_hybrid(), recipes::CurrentScaling{}}) {
    const Task task = lm_task(), small = lm_task();
    const HPUPrecisionPlugin plugin = converted(task, recipe);
    converted(small, recipe, {.minimize_memory = true});
    const std::int64_t fp8 = saved_bytes(task, plugin), minimal = saved_bytes(small, plugin);
    EXPECT_LT(fp8, bf16) << recipes::describe(recipe);
    EXPECT_LT(minimal, fp8) << recipes::describe(recipe);
    EXPECT_TRUE(all_same(gradients_of(*task.model), gradients_of(*small.model))) << recipes::describe(recipe);
  }
}

// ---- counters

TEST(Statistics, CountWhatCastsDo) {
  torch::nn::Linear layer = hpu(torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)));
  test::within(torch::NoGradGuard(), [&] { layer->weight.fill_(1.0); });
  torch::nn::Sequential model(layer);
  convert_for_training(*model);
  at::Tensor x = torch::ones({8, 16});
  x.narrow(0, 0, 2).fill_(1000.0);  // above 448: 32 elements
  x.narrow(0, 2, 1).fill_(1e-6);    // below 2^-10: 16 elements
  x[3][0] = 0.0;                    // zero is no underflow
  const auto step = [&](const at::Tensor& input, bool statistics) {
    const at::Tensor y = test::within(fp8_autocast({.recipe = nvidia(1), .statistics = statistics}),
                                      [&] { return model->forward(hpu(input)); });
    y.sum().backward();
    return take_statistics(*model).at("0");
  };
  const CastStatistics first = step(x, true);
  EXPECT_EQ(first.elements, 8 * 16 + 16 * 16 + 8 * 16);
  EXPECT_EQ(first.saturated, 32);
  EXPECT_EQ(first.underflowed, 16);
  EXPECT_EQ(first.amax, 1000.0f);
  EXPECT_EQ(first.casts, 3);
  EXPECT_EQ(first.stale, 0);  // a first step has no scale yet
  const CastStatistics jumped = step(x * 4, false);
  EXPECT_EQ(jumped.elements, 0);
  EXPECT_EQ(jumped.stale, 1);
  EXPECT_EQ(jumped.amax, 4000.0f);
  EXPECT_FLOAT_EQ(jumped.worst, 4.0f);
  EXPECT_EQ(step(x * 4, false).stale, 0);
}

/// E4M3 ends at 448, and what is below 464 (half a step above) rounds to 448: nothing is lost that rounding would not
/// have taken.
TEST(Statistics, StaleCountsWhatRoundingDoesNotExplain) {
  torch::nn::Linear layer = hpu(torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)));
  torch::nn::Sequential model(layer);
  convert_for_training(*model);
  const at::Tensor x = torch::ones({8, 16});
  const auto stale_after = [&](double factor) {
    for (const double f : {1.0, 1.0, factor}) {  // two steps at 1: the scale of the third covers 1
      (void)take_statistics(*model);
      const at::Tensor y =
          test::within(fp8_autocast({.recipe = nvidia(1)}), [&] { return model->forward(hpu(x * f)); });
      y.sum().backward();
    }
    return take_statistics(*model).at("0");
  };
  EXPECT_EQ(stale_after(1.0000017).stale, 0);
  EXPECT_EQ(stale_after(1.0 + std::ldexp(1.0, -8)).stale, 0);  // a step of bf16
  EXPECT_EQ(stale_after(463.0 / 448.0).stale, 0);
  const auto beyond = stale_after(465.0 / 448.0);
  EXPECT_EQ(beyond.stale, 1);
  EXPECT_FLOAT_EQ(beyond.worst, 465.0f / 448.0f);
}

// Where the memory of fp8 training is: a snapshot accounts for every byte, and says what parameters, gradients, states
// of the optimizer, scales and cached codes take.

/// One history for all: what a case leaves behind is accounted for in the next.
struct MemoryOfTraining : ::testing::TestWithParam<recipes::Recipe> {
  static void SetUpTestSuite() {
    before_ = runtime::memory_snapshot().unaccounted();
    history_ = std::make_unique<runtime::MemoryHistory>();
  }
  static void TearDownTestSuite() { history_.reset(); }

  static inline std::int64_t before_ = 0;  ///< of other tests in this process; some of it may go meanwhile
  static inline std::unique_ptr<runtime::MemoryHistory> history_;
};

TEST_P(MemoryOfTraining, IsAccountedForToTheByte) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, GetParam());
  runtime::optim::FusedAdamW optimizer(task.model->parameters(), runtime::optim::FusedAdamWOptions(1e-3));
  at::Tensor loss;
  const auto forward = [&] {
    const runtime::PhaseScope phase("forward");
    const auto region = plugin.forward_context({.is_first_microbatch = true});
    loss = loss_of(task, task.forward(task.x));
  };
  for (int step = 0; step < 20; ++step) {
    task.model->zero_grad();
    forward();
    within(runtime::PhaseScope("backward"), [&] { loss.backward(); });
    const runtime::PhaseScope phase("optimizer");
    optimizer.step();
  }
  forward();  // what backward would need is held

  const auto snapshot = runtime::memory_snapshot();
  std::int64_t sum = 0;
  std::map<std::string, std::int64_t> by_phase, by_module;
  for (const auto& block : snapshot.blocks) {
    sum += block.bytes;
    EXPECT_NE(block.owner(), "unknown") << block.bytes;
    by_phase[block.phase] += block.bytes;
    by_module[block.module] += block.bytes;
  }
  EXPECT_EQ(snapshot.in_use, runtime::memory_stats().InUse);
  EXPECT_LE(snapshot.unaccounted(), before_);
  EXPECT_GE(snapshot.unaccounted(), 0);
  if (before_ == 0) {
    EXPECT_EQ(sum, runtime::memory_stats().InUse);
  }

  std::int64_t parameters = 0;
  for (const auto& p : task.model->parameters()) parameters += static_cast<std::int64_t>(p.nbytes());
  EXPECT_GE(by_phase["optimizer"], 2 * parameters) << "two moments in f32";
  EXPECT_GE(by_phase["backward"], parameters) << "gradients";
  for (const char* module : {"fc1", "fc2", "fc3"}) EXPECT_GT(by_module[module], 0) << module;
}

INSTANTIATE_TEST_SUITE_P(Recipes, MemoryOfTraining,
                         ::testing::Values(recipes::Recipe(habana_hybrid()), recipes::Recipe(nvidia(4)),
                                           recipes::Recipe(recipes::CurrentScaling{}),
                                           recipes::Recipe(recipes::BlockScaling{}), recipes::Recipe(recipes::MXFP8{})),
                         [](const auto& info) { return "recipe" + std::to_string(info.index); });

}  // namespace
}  // namespace fp8::te
