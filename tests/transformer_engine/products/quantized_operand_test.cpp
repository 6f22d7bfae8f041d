// SPDX-License-Identifier: Apache-2.0
// Where the bits of a step come from: stochastic rounding by seed, product, step and element, and never from the number
// of threads.
#include "fp8/transformer_engine/products/quantized_operand.h"

#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "support/ranks.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

TEST(StochasticRounding, SameBitsOnAnyNumberOfThreads) {
  const int before = kernels::num_threads();
  std::vector<std::vector<at::Tensor>> runs;
  for (const int threads : {1, 4}) {
    kernels::set_num_threads(threads);
    torch::manual_seed(4);
    torch::nn::Sequential model(torch::nn::Linear(512, 512), torch::nn::ReLU(), torch::nn::Linear(512, 512));
    model->to(kHpu);
    convert_for_training(*model);
    const at::Tensor x = hpu(torch::randn({256, 512}));
    for (int i = 0; i < 2; ++i) {
      at::Tensor y;
      {
        const fp8_autocast region(true, habana_hybrid());
        y = model->forward(x);
      }
      y.square().mean().backward();
    }
    runs.push_back(gradients_of(*model));
  }
  kernels::set_num_threads(before);
  EXPECT_TRUE(all_same(runs[0], runs[1]));
}

// On in backward for HYBRID of the habana dialect, unless the variable says otherwise.
TEST(StochasticRounding, TheVendorsVariableDecides) {
  const auto gradients = [](const DelayedScaling& recipe, std::uint64_t seed, const char* force) {
    if (force != nullptr) setenv("PT_TE_FORCE_SR_BWD", force, 1);
    const Task task = mlp_task();
    backward_step(task, converted(task, recipe), {.seed = seed});
    unsetenv("PT_TE_FORCE_SR_BWD");
    return gradients_of(*task.model);
  };
  const DelayedScaling hybrid = habana_hybrid(), e5m2 = DelayedScaling::habana();
  const auto depends_on_seed = [&](const DelayedScaling& recipe, const char* force) {
    return !all_same(gradients(recipe, 1, force), gradients(recipe, 2, force));
  };
  EXPECT_TRUE(depends_on_seed(hybrid, nullptr));
  EXPECT_FALSE(depends_on_seed(hybrid, "0"));
  EXPECT_FALSE(depends_on_seed(e5m2, nullptr));
  EXPECT_TRUE(depends_on_seed(e5m2, "1"));
}

// Looking at a model gives its products the names of their modules, which must not be what their rounding comes from.
TEST(StochasticRounding, SameBitsWhetherTheStateIsReadOrNot) {
  std::vector<std::vector<at::Tensor>> runs;
  for (const bool look : {false, true}) {
    torch::manual_seed(4);
    torch::nn::Sequential model(Linear(64, 64), torch::nn::ReLU(), Linear(64, 64));
    const at::Tensor x = hpu(torch::randn({32, 64}));
    for (int i = 0; i < 2; ++i) {
      at::Tensor y;
      {
        const fp8_autocast region(true, habana_hybrid());
        y = model->forward(x);
      }
      y.square().mean().backward();
      if (look) take_statistics(*model);
    }
    runs.push_back(gradients_of(*model));
  }
  EXPECT_TRUE(all_same(runs[0], runs[1]));
}

/// Ranks that only say who they are.
class NamedRank final : public runtime::distributed::ProcessGroup {
 public:
  explicit NamedRank(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  void all_reduce_max(float*, std::size_t) override {}
  void barrier() override {}
  void all_reduce(const at::Tensor&, runtime::distributed::ReduceOp) override {}
  void broadcast(const at::Tensor&, int) override {}

 private:
  int rank_;
};

// Equal modules of one name that meet equal data: their noise must not be the same, or it adds up instead of averaging
// out.
TEST(StochasticRounding, ModulesOfOneNameAndRanksDrawNumbersOfTheirOwn) {
  const auto gradients = [](int rank) {
    torch::manual_seed(4);
    Linear a(64, 64), b(64, 64);
    {
      const torch::NoGradGuard no_grad;
      b->weight.copy_(a->weight);
    }
    const at::Tensor x = hpu(torch::randn({32, 64})), target = hpu(torch::randn({32, 64}));
    at::Tensor loss;
    {
      const fp8_autocast region(
          Fp8AutocastOptions{.recipe = habana_hybrid(), .group = std::make_shared<NamedRank>(rank)});
      loss = (a->forward(x) * target).sum() + (b->forward(x) * target).sum();
    }
    loss.backward();
    return std::vector<at::Tensor>{a->weight.grad().cpu(), b->weight.grad().cpu()};
  };
  const auto first = gradients(0), again = gradients(0), other = gradients(1);
  EXPECT_FALSE(same_bits(first[0], first[1]));
  EXPECT_FALSE(same_bits(first[0], other[0]));
  EXPECT_FALSE(same_bits(first[1], other[1]));
  EXPECT_TRUE(all_same(first, again));
}

// f64 of the same codes, rounded once; a sum in f32 may fall on the other side of a tie, which is rare.
TEST(BlockProducts, RoundSumAndBiasOnce) {
  torch::manual_seed(9);
  const at::Tensor x = hpu(torch::randn({64, 256}).to(at::kBFloat16)),
                   w = hpu(torch::randn({96, 256}).to(at::kBFloat16));
  recipes::BlockScaling squares, real;
  squares.x_block_scaling_dim = 2;
  real.power_of_two_scale = false;
  for (const recipes::Recipe& recipe : {recipes::Recipe(recipes::BlockScaling{}), recipes::Recipe(squares),
                                        recipes::Recipe(real), recipes::Recipe(recipes::MXFP8{})}) {
    for (const at::ScalarType bias_dtype : {at::kBFloat16, at::kFloat}) {
      const at::Tensor bias = hpu(torch::randn({96}) * 16).to(bias_dtype);
      const CastPlan of_x{.recipe = recipe, .dialect = recipes::Dialect::gaudi3, .role = Role::input},
          of_w{.recipe = recipe, .dialect = recipes::Dialect::gaudi3, .role = Role::weight};
      const runtime::Fp8Tensor a = quantize_operand(x, of_x).columns, b = quantize_operand(w, of_w).columns;
      const at::Tensor got = runtime::matmul(a, false, b, true, at::kBFloat16, bias).cpu();
      const at::Tensor exact = torch::matmul(runtime::dequantize(a, at::kFloat).cpu().to(at::kDouble),
                                             runtime::dequantize(b, at::kFloat).cpu().to(at::kDouble).t()) +
                               bias.cpu().to(at::kDouble);
      const double off = (got != exact.to(at::kBFloat16)).to(at::kDouble).mean().item<double>();
      EXPECT_LT(off, 0.002) << recipes::describe(recipe) << ", bias " << bias_dtype;
    }
  }
}

/// One run of the next case: a process of its own, whose environment says how many threads it has.
TEST(OneProcess, DISABLED_Trains) {
  if (!is_rank()) GTEST_SKIP() << "run by another case";
  kernels::set_num_threads(std::atoi(std::getenv("OMP_NUM_THREADS")));  // torch has read it itself
  std::ofstream out(std::getenv("FP8_TEST_OUT"), std::ios::binary);
  for (const recipes::Recipe& recipe :
       {recipes::Recipe(habana_hybrid(2)), recipes::Recipe(nvidia(3)), recipes::Recipe(recipes::CurrentScaling{}),
        recipes::Recipe(recipes::BlockScaling{}), recipes::Recipe(recipes::MXFP8{})}) {
    torch::manual_seed(4);
    torch::nn::Sequential model(torch::nn::Linear(256, 512), torch::nn::GELU(), torch::nn::Linear(512, 200));
    model->to(kHpu);
    const Task task{model.ptr(), [&](const at::Tensor& t) { return model->forward(t); }, hpu(torch::randn({128, 256})),
                    hpu(torch::randint(200, {128}, at::kLong))};
    const HPUPrecisionPlugin plugin = converted(task, recipe);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    for (const float loss : train(task, plugin, optimizer, 3))
      out.write(reinterpret_cast<const char*>(&loss), sizeof loss);
    for (const at::Tensor& p : values_of(*model))
      out.write(static_cast<const char*>(p.const_data_ptr()), static_cast<std::streamsize>(p.nbytes()));
  }
  out << at::get_num_threads() << kernels::num_threads();
}

TEST(OneProcess, HasTheSameBitsOnOneThreadAndOnMore) {
  const TempDir dir;
  std::vector<std::string> bytes;
  for (const std::string threads : {"1", "2"}) {
    const std::string file = (dir / threads).string();
    ASSERT_EQ(run_ranks("OneProcess.DISABLED_Trains", 1, {{"OMP_NUM_THREADS", threads}, {"FP8_TEST_OUT", file}}),
              all_pass(1));
    std::ifstream in(file, std::ios::binary);
    bytes.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    ASSERT_GT(bytes.back().size(), 1000000u);
    EXPECT_EQ(bytes.back().back(), threads[0]);  // as many as it was told
    bytes.back().resize(bytes.back().size() - 2);
  }
  EXPECT_TRUE(bytes[0] == bytes[1]);
}

}  // namespace
}  // namespace fp8::te
