// SPDX-License-Identifier: Apache-2.0
// Random numbers on hpu are the CPU's, seed by seed.
#include "fp8/runtime/device/registration.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

TEST(Generator, ManualSeedGivesTheCpusNumbers) {
  torch::manual_seed(42);
  const at::Tensor cpu = at::randn({100}), cpu_next = at::rand({5});
  torch::manual_seed(42);
  EXPECT_TRUE(same_bits(at::randn({100}, on_hpu()), cpu));
  EXPECT_TRUE(same_bits(at::rand({5}, on_hpu()), cpu_next));
}

TEST(Generator, DropoutBernoulliAndRandpermFollow) {
  const at::Tensor x = at::ones({50, 20});
  const auto draw = [&](const at::Tensor& like) {
    torch::manual_seed(7);
    const at::Tensor dropped = at::dropout(like, 0.3, true), coins = at::bernoulli(like * 0.5);
    return at::cat({dropped.flatten(), coins.flatten(), at::randperm(30, like.options()).flatten()}).cpu();
  };
  EXPECT_TRUE(same_bits(draw(hpu(x)), draw(x)));
}

TEST(Generator, AnOwnOneIsIndependentOfTheDefault) {
  at::Generator own = runtime::make_generator();
  EXPECT_EQ(own.device(), kHpu);
  own.set_current_seed(5);
  EXPECT_EQ(own.current_seed(), 5u);
  at::Generator cpu = at::make_generator<at::CPUGeneratorImpl>(5);
  torch::manual_seed(1);
  const at::Tensor untouched = at::randn({3}, on_hpu());
  torch::manual_seed(1);
  const at::Tensor a = at::randn({40}, own, on_hpu());
  EXPECT_TRUE(same_bits(a, at::randn({40}, cpu)));
  EXPECT_TRUE(same_bits(at::randn({3}, on_hpu()), untouched));
}

TEST(Generator, StateCanBeKeptAndRestored) {
  at::Generator own = runtime::make_generator();
  own.set_current_seed(9);
  at::randn({10}, own, on_hpu());
  const at::Tensor state = own.get_state();
  const at::Tensor a = at::randn({10}, own, on_hpu());
  own.set_state(state);
  EXPECT_TRUE(same_bits(at::randn({10}, own, on_hpu()), a));
}

TEST(Generator, ACloneGoesItsOwnWay) {
  at::Generator own = runtime::make_generator();
  own.set_current_seed(3);
  at::Generator copy = own.clone();
  const at::Tensor a = at::randn({10}, own, on_hpu());
  EXPECT_TRUE(same_bits(at::randn({10}, copy, on_hpu()), a));
}

TEST(Generator, TheDefaultOneWrapsTheCpus) {
  torch::manual_seed(77);
  EXPECT_EQ(runtime::default_generator().current_seed(), 77u);
  EXPECT_EQ(runtime::cpu_generator(runtime::default_generator()), at::detail::getDefaultCPUGenerator());
  const at::Generator cpu = at::make_generator<at::CPUGeneratorImpl>(5);
  EXPECT_EQ(runtime::cpu_generator(cpu), cpu);
  EXPECT_TRUE(throws_with({"Invalid device id 4"}, [] { runtime::default_generator(4); }));
}

}  // namespace
}  // namespace fp8::test
