// SPDX-License-Identifier: Apache-2.0
// Where the bits of a step come from: stochastic rounding by seed, product, step and element, and never from the number
// of threads.

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "support/ranks.h"
#include "transformer_engine/training_models.h"

// What profilers are told of: the names of the operators that run while a function does, on any thread.
namespace fp8::test {
namespace {

class OpEvents {
 public:
  /// Names of our own operators and casts ("fp8::quantize", "hpu::fp8_gemm_v2"), in order.
  static std::vector<std::string> of(const std::function<void()>& run) {
    seen().clear();
    const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
    run();
    at::removeCallback(handle);
    return seen();
  }

  static long count(const std::vector<std::string>& events, const std::string& name) {
    return std::count(events.begin(), events.end(), name);
  }

 private:
  static std::vector<std::string>& seen() {
    static std::vector<std::string> names;
    return names;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& op) {
    static std::mutex mutex;
    const std::string name = op.name();
    const std::lock_guard<std::mutex> lock(mutex);
    if (name.starts_with("fp8::") || name.starts_with("hpu::")) seen().push_back(name);
    return nullptr;
  }
};

}  // namespace
}  // namespace fp8::test

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

/// The gradients of two steps; `after` runs after each.
std::vector<at::Tensor> two_steps(
    torch::nn::Sequential model, const at::Tensor& x, const std::function<void()>& after = [] {}) {
  for (int i = 0; i < 2; ++i) {
    const at::Tensor y = within(fp8_autocast(true, habana_hybrid()), [&] { return model->forward(x); });
    y.square().mean().backward();
    after();
  }
  return gradients_of(*model);
}

TEST(StochasticRounding, SameBitsOnAnyNumberOfThreads) {
  const int before = kernels::num_threads();
  std::vector<std::vector<at::Tensor>> runs;
  for (const int threads : {1, 4}) {
    kernels::set_num_threads(threads);
    torch::manual_seed(4);
    torch::nn::Sequential model(torch::nn::Linear(512, 512), torch::nn::ReLU(), torch::nn::Linear(512, 512));
    model->to(kHpu);
    convert_for_training(*model);
    runs.push_back(two_steps(model, hpu(torch::randn({256, 512}))));
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
    runs.push_back(two_steps(model, hpu(torch::randn({32, 64})), [&] {
      if (look) take_statistics(*model);
    }));
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
    test::within(torch::NoGradGuard(), [&] { b->weight.copy_(a->weight); });
    const at::Tensor x = hpu(torch::randn({32, 64})), target = hpu(torch::randn({32, 64}));
    const at::Tensor loss = test::within(
        fp8_autocast(Fp8AutocastOptions{.recipe = habana_hybrid(), .group = std::make_shared<NamedRank>(rank)}),
        [&] { return (a->forward(x) * target).sum() + (b->forward(x) * target).sum(); });
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
  for (const auto& recipe : Recipes{recipes::BlockScaling{}, squares, real, recipes::MXFP8{}})
    for (const at::ScalarType bias_dtype : {at::kBFloat16, at::kFloat}) {
      const at::Tensor bias = hpu(torch::randn({96}) * 16).to(bias_dtype);
      const OperandPlan of_x{.recipe = recipe, .dialect = recipes::Dialect::gaudi3, .role = Role::input},
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

/// One run of the next case: a process of its own, whose environment says how many threads it has.
TEST(OneProcess, DISABLED_Trains) {
  if (!is_rank()) GTEST_SKIP() << "run by another case";
  kernels::set_num_threads(std::atoi(std::getenv("OMP_NUM_THREADS")));  // torch has read it itself
  std::ofstream out(std::getenv("FP8_TEST_OUT"), std::ios::binary);
  for (const auto& recipe :
       Recipes{habana_hybrid(2), nvidia(3), recipes::CurrentScaling{}, recipes::BlockScaling{}, recipes::MXFP8{}}) {
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
    bytes.push_back(read_file(file));
    ASSERT_GT(bytes.back().size(), 1000000u);
    EXPECT_EQ(bytes.back().back(), threads[0]);  // as many as it was told
    bytes.back().resize(bytes.back().size() - 2);
  }
  EXPECT_TRUE(bytes[0] == bytes[1]);
}

// How often a training step casts: each operand once, both formats of HYBRID in one pass, an input that several layers
// share once where their scale is one. And that a product has the same bits, whoever asks for it.

struct Step {
  std::vector<std::string> forward, backward;
};

/// One step of `layers`, which all get the same x.
Step step_of(const std::vector<Linear>& layers, const recipes::Recipe& recipe, const at::Tensor& x) {
  at::Tensor loss;
  Step step;
  step.forward = OpEvents::of([&] {
    const fp8_autocast region(true, recipe);
    for (const Linear& layer : layers) {
      const at::Tensor y = Linear(layer)->forward(x).square().sum();
      loss = loss.defined() ? loss + y : y;
    }
  });
  step.backward = OpEvents::of([&] { loss.backward(); });
  return step;
}

TEST(Casts, AStepCastsEachOperandOnce) {
  torch::manual_seed(1);
  const at::Tensor x = hpu(torch::randn({32, 64})).requires_grad_(true);
  const Step step = step_of({Linear(64, 48)}, nvidia(1), x);
  EXPECT_EQ(step.forward, (std::vector<std::string>{"fp8::quantize", "fp8::quantize", "hpu::fp8_gemm_v2"}));
  EXPECT_EQ(step.backward, (std::vector<std::string>{"fp8::quantize", "hpu::fp8_gemm_v2", "hpu::fp8_gemm_v2"}));
}

TEST(Casts, HybridOperandsAreCastToBothFormatsInOnePass) {
  torch::manual_seed(1);
  const at::Tensor x = hpu(torch::randn({32, 64})).requires_grad_(true);
  const Step step = step_of({Linear(64, 48)}, habana_hybrid(), x);
  EXPECT_EQ(step.forward, (std::vector<std::string>{"fp8::quantize_both", "fp8::quantize_both", "hpu::fp8_gemm_v2"}));
  EXPECT_EQ(OpEvents::count(step.backward, "fp8::quantize"), 1);
}

TEST(Casts, LayersThatShareAnInputCastItOnce) {
  struct Case {
    recipes::Recipe recipe;
    long of_x, of_w;  ///< casts of one operand: blocks are cast along columns and along rows, squares serve both
  };
  for (const auto& [recipe, of_x, of_w] : {Case{nvidia(1), 1, 1}, Case{recipes::CurrentScaling{}, 1, 1},
                                           Case{recipes::BlockScaling{}, 2, 1}, Case{recipes::MXFP8{}, 2, 2}}) {
    std::vector<std::vector<at::Tensor>> runs;
    for (const bool share : {true, false}) {
      torch::manual_seed(2);
      std::vector<Linear> qkv;
      for (int i = 0; i < 3; ++i) qkv.emplace_back(64, 48);
      // Without its gradient no product reads weights along their rows.
      const at::Tensor x = hpu(torch::randn({32, 64})).requires_grad_(true);
      runs.emplace_back();
      for (int i = 0; i < 3; ++i) {        // the scales of delayed scaling follow each layer's own amaxes
        const at::Tensor one = x.clone();  // of this step
        const auto events = OpEvents::of([&] {
          const fp8_autocast region(true, recipe);
          for (auto& layer : qkv) runs.back().push_back(layer->forward(share ? one : one.clone()).detach().cpu());
        });
        const long casts = OpEvents::count(events, "fp8::quantize");
        EXPECT_EQ(casts, (share ? 1 : 3) * of_x + 3 * of_w) << recipes::describe(recipe);
      }
    }
    EXPECT_TRUE(all_same(runs[0], runs[1])) << recipes::describe(recipe);
  }
}

// What products along the rows read lies column by column: no product turns it.
TEST(Casts, OperandsOfOneScaleLieAsTheirProductsReadThem) {
  const at::Tensor x = hpu(torch::randn({96, 80}));
  StepScales scales;
  scales.scale = scales.hybrid_scale = {3.0f, 3.0f}, scales.scale_inv = scales.hybrid_scale_inv = {0.3f, 0.3f};
  for (const auto& recipe : Recipes{nvidia(1), habana_hybrid(), recipes::CurrentScaling{}})
    for (const Role role : {Role::input, Role::weight, Role::grad}) {
      OperandPlan plan{.recipe = recipe, .dialect = recipes::Dialect::gaudi3, .role = role, .scales = &scales};
      const OperandPair pair = quantize_operand(x, plan);
      EXPECT_TRUE(pair.columns.codes.is_contiguous()) << recipes::describe(recipe);
      EXPECT_TRUE(pair.rows.codes.t().is_contiguous()) << recipes::describe(recipe);
      plan.need_columns = false;
      const at::Tensor rows = quantize_operand(x, plan).rows.codes;
      EXPECT_TRUE(rows.t().is_contiguous());
      EXPECT_TRUE(same_bits(rows.view(at::kByte).contiguous(), pair.rows.codes.view(at::kByte).contiguous()));
      plan.need_columns = true, plan.both_stay = true;
      const OperandPair kept = quantize_operand(x, plan);
      EXPECT_EQ(kept.rows.codes.is_same(kept.columns.codes), pair.rows.codes.dtype() == pair.columns.codes.dtype());
    }
}

// Products of inference and of training are one function of their operands.
TEST(Casts, BlockProductsOfTrainingAreTheProductsOfTheirOperands) {
  torch::manual_seed(3);
  const at::Tensor x = hpu(torch::randn({32, 256}));
  for (const bool bias : {false, true}) {
    Linear layer(LinearOptions{.in_features = 256, .out_features = 128, .bias = bias});
    at::Tensor y;
    {
      const torch::NoGradGuard no_grad;
      const fp8_autocast region(true, recipes::BlockScaling{});
      y = layer->forward(x);
    }
    runtime::CastSpec spec{.layout = runtime::ScaleLayout::blocks(1, 128), .rule = runtime::ScaleRule::max_over_amax};
    spec.power_of_two = true;
    const auto qx = runtime::quantize(x, spec);
    spec.layout = runtime::ScaleLayout::blocks(128, 128);
    const auto qw = runtime::quantize(layer->weight.detach(), spec);
    const auto b = bias ? std::optional<at::Tensor>(layer->bias.detach()) : std::nullopt;
    EXPECT_TRUE(same_bits(y, runtime::matmul(qx, false, qw, true, at::kFloat, b)));
  }
}

/// One run of the next case, traced: the variable is read once per process.
TEST(TracedStep, DISABLED_Trains) {
  if (!is_rank()) GTEST_SKIP() << "run by another case";
  ASSERT_NE(std::freopen(std::getenv("FP8_TEST_OUT"), "w", stderr), nullptr);
  torch::manual_seed(1);
  torch::nn::Sequential model(Linear(64, 48));
  const at::Tensor x = hpu(torch::randn({32, 64})).requires_grad_(true);
  const at::Tensor y = test::within(fp8_autocast(true, nvidia(1)), [&] { return model->forward(x); });
  y.sum().backward();
  std::fflush(stderr);
}

TEST(Trace, ListsTheCastsAndProductsOfATrainingStep) {
  const TempDir dir;
  const std::string file = (dir / "trace").string();
  ASSERT_EQ(run_ranks("TracedStep.DISABLED_Trains", 1, {{"FP8_TRACE", "1"}, {"FP8_TEST_OUT", file}}), all_pass(1));
  std::ifstream in(file);
  std::vector<std::string> ops;
  for (std::string line; std::getline(in, line);)
    if (line.find("fp8 trace: fp8::") == 0 || line.find("fp8 trace: hpu::") == 0) ops.push_back(line.substr(11));
  ASSERT_EQ(ops.size(), 6u);
  EXPECT_EQ(ops[0].substr(0, 28), "fp8::quantize [32, 64] Float");
  EXPECT_EQ(ops[1].substr(0, 28), "fp8::quantize [48, 64] Float");
  EXPECT_THAT(ops[2], StartsWith("hpu::fp8_gemm_v2 [32, 64] Float8_e4m3fn [48, 64] Float8_e4m3fn"));
  EXPECT_EQ(ops[3].substr(0, 28), "fp8::quantize [32, 48] Float");
  for (const auto& op : ops) EXPECT_THAT(op, HasSubstr(" | ")) << op << ": names no module";
}

}  // namespace
}  // namespace fp8::te
