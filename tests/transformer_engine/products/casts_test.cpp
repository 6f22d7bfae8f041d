// SPDX-License-Identifier: Apache-2.0
// How often a training step casts: each operand once, both formats of HYBRID in one pass, an input that several layers
// share once where their scale is one. And that a product has the same bits, whoever asks for it.
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "fp8/transformer_engine/products/quantized_operand.h"
#include "support/op_events.h"
#include "support/ranks.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;

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
  torch::manual_seed(4);
  const at::Tensor x = hpu(torch::randn({96, 80}));
  StepScales scales;
  scales.scale = scales.hybrid_scale = {3.0f, 3.0f}, scales.scale_inv = scales.hybrid_scale_inv = {0.3f, 0.3f};
  for (const recipes::Recipe& recipe :
       std::vector<recipes::Recipe>{nvidia(1), habana_hybrid(), recipes::CurrentScaling{}}) {
    for (const Role role : {Role::input, Role::weight, Role::grad}) {
      CastPlan plan{.recipe = recipe, .dialect = recipes::Dialect::gaudi3, .role = role, .scales = &scales};
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
  at::Tensor y;
  {
    const fp8_autocast region(true, nvidia(1));
    y = model->forward(x);
  }
  y.sum().backward();
  std::fflush(stderr);
}

TEST(Trace, ListsTheCastsAndProductsOfATrainingStep) {
  const TempDir dir;
  const std::string file = (dir / "trace").string();
  ASSERT_EQ(run_ranks("TracedStep.DISABLED_Trains", 1, {{"FP8_TRACE", "1"}, {"FP8_TEST_OUT", file}}), all_pass(1));
  std::ifstream in(file);
  std::vector<std::string> ops;
  for (std::string line; std::getline(in, line);) {
    if (line.find("fp8 trace: fp8::") == 0 || line.find("fp8 trace: hpu::") == 0) ops.push_back(line.substr(11));
  }
  ASSERT_EQ(ops.size(), 6u);
  EXPECT_EQ(ops[0].substr(0, 28), "fp8::quantize [32, 64] Float");
  EXPECT_EQ(ops[1].substr(0, 28), "fp8::quantize [48, 64] Float");
  EXPECT_EQ(ops[2].find("hpu::fp8_gemm_v2 [32, 64] Float8_e4m3fn [48, 64] Float8_e4m3fn"), 0u);
  EXPECT_EQ(ops[3].substr(0, 28), "fp8::quantize [32, 48] Float");
  for (const auto& op : ops) EXPECT_NE(op.find(" | "), std::string::npos) << op << ": names no module";
}

}  // namespace
}  // namespace fp8::te
