// SPDX-License-Identifier: Apache-2.0
// Where the memory of fp8 training is: a snapshot accounts for every byte, and says what parameters, gradients, states
// of the optimizer, scales and cached codes take.
#include <torch/torch.h>

#include <map>
#include <memory>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/optim/fused_adam.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;

/// One history for all: what a case leaves behind is accounted for in the next.
class MemoryOfTraining : public ::testing::TestWithParam<recipes::Recipe> {
 protected:
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
    {
      const runtime::PhaseScope phase("backward");
      loss.backward();
    }
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
