// SPDX-License-Identifier: Apache-2.0
// Weights that are converted for fp8 training and do not train in fp8: gone, never run, or with derivatives taken by
// hand end the region, by name.
#include "fp8/transformer_engine/convert/convert_training.h"
#include "transformer_engine/convert/training_operators.h"

namespace fp8::test {
namespace {

// What an engine that shards a model from Python leaves: other tensors in the modules, which nobody here knows.
TEST(TrainingOperators, WeightsThatAreGoneEndTheRegionThatDidNotRunThem) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu()), other = at::randn({16, 16}, on_hpu());
  {
    const Model m;
    m.attach("nvidia");
  }
  const auto none_ran = enter("nvidia");
  at::linear(x, other);
  EXPECT_REFUSED(leave(none_ran), "'up', 'down'", "no product ran in fp8", "call fp8::attach_training after that");
  EXPECT_FALSE(te::is_fp8_enabled());
  leave(enter("nvidia"));  // told once

  Model m;
  m.attach("nvidia");
  m.b = at::Tensor();
  const auto one_ran = enter("nvidia");
  at::linear(x, m.a);
  EXPECT_REFUSED(leave(one_ran), "'down'", "no product ran in fp8");
}

TEST(TrainingOperators, AModelThatWasDroppedIsNotMissed) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  {
    const Model dropped;
    dropped.attach("nvidia");
  }
  const Model m;
  m.attach("nvidia");
  const auto region = enter("nvidia");
  at::linear(x, m.a);
  EXPECT_NO_THROW(leave(region));
}

/// A step of plain gradient descent on y = f(weights), in a region.
template <class F>
void descend(const Model& m, const std::string& recipe, F f) {
  const auto region = enter(recipe);
  at::Tensor y;
  try {
    y = f();
  } catch (...) {
    leave(region, /*failed=*/true);
    throw;
  }
  leave(region);
  y.to(at::kFloat).pow(2).mean().backward();
  const at::NoGradGuard no_grad;
  for (at::Tensor w : m.weights())
    if (w.grad().defined()) w.sub_(w.grad(), 0.1), w.mutable_grad() = at::Tensor();
}

/// The step that throws, from 1; 0: none of five.
template <class F>
std::pair<int, std::string> first_refused(const Model& m, const std::string& recipe, F f) {
  for (int step = 1; step <= 5; ++step) {
    const std::string error = error_of([&] { descend(m, recipe, f); });
    if (!error.empty()) return {step, error};
  }
  return {0, ""};
}

/// Takes the derivatives of a product to its own hands, as fused kernels of others do; in forward without forward mode,
/// as Python's functions are.
struct ByHand : torch::autograd::Function<ByHand> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    const c10::AutoFwGradMode as_python(false);
    return at::linear(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list g) {
    const auto saved = context->get_saved_variables();
    const at::Tensor dx = context->needs_input_grad(0) ? at::matmul(g[0], saved[1]) : at::Tensor();
    return {dx, at::matmul(g[0].t(), saved[0])};
  }
};

TEST(TrainingOperators, ABackwardByHandIsRefusedByName) {
  for (const char* recipe : {"habana-hybrid", "nvidia", "current", "mxfp8"}) {
    const Model m;
    m.attach(recipe);
    const at::Tensor x = at::randn({4, 16}, on_hpu());
    const auto [step, error] =
        first_refused(m, recipe, [&] { return ByHand::apply(at::relu(at::linear(x, m.a)), m.b); });
    EXPECT_EQ(step, 1) << recipe;
    EXPECT_THAT(error, HasSubstr("'down': its forward ran in fp8 inside of an autograd.Function"));
    EXPECT_NO_THROW(ByHand::apply(at::relu(at::linear(x, m.a)), m.b).sum().backward()) << "outside of fp8";
  }
}

TEST(TrainingOperators, WeightsThatAreSteppedAndDoNotTrainEndTheRegion) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  for (const char* recipe : {"nvidia", "current"}) {
    const Model by_hand, by_cast, plain;
    for (const Model* m : {&by_hand, &by_cast, &plain}) m->attach(recipe);
    const auto [hand, why] = first_refused(by_hand, recipe, [&] { return ByHand::apply(x, by_hand.a); });
    EXPECT_EQ(hand, 3) << recipe;
    EXPECT_THAT(why, HasSubstr("'up': converted for fp8 training, and their weights change"));
    const auto [cast, how] = first_refused(by_cast, recipe, [&] {
      return at::linear(at::relu(at::linear(x, by_cast.a)).to(at::kBFloat16), by_cast.b.to(at::kBFloat16));
    });
    EXPECT_EQ(cast, 3) << recipe;
    EXPECT_THAT(how, AllOf(HasSubstr("'down': converted"), Not(HasSubstr("'up'"))));
    EXPECT_EQ(first_refused(plain, recipe, [&] { return plain.forward(x); }).first, 0) << recipe;
  }
}

TEST(TrainingOperators, EvaluationWithScalesThatNeverMovedIsRefused) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  for (const auto& [recipe, changes, refused] : std::vector<std::tuple<std::string, int, bool>>{
           {"nvidia", 3, true}, {"nvidia", 1, false}, {"current", 3, false}}) {
    const Model m;
    m.attach(recipe);
    std::string error;
    const at::NoGradGuard no_grad;
    for (int i = 0; i <= 3; ++i) {
      const auto region = enter(recipe);
      m.forward(x);
      error += error_of([&, &region = region] { leave(region); });
      if (i < changes) at::Tensor(m.a).mul_(1.01);
    }
    EXPECT_EQ(error.find("'up': converted for fp8 training, and their weights change") != std::string::npos, refused)
        << recipe << changes << error;
  }
}

TEST(TrainingOperators, TwoRegionsInVainAreAnError) {
  settle();
  const Model m;
  m.attach("nvidia");
  const at::Tensor x = at::randn({4, 16}, on_hpu()), other = at::randn({16, 16}, on_hpu());
  const auto in_vain = [&] {
    const auto region = enter("nvidia");
    at::linear(x, other);
    leave(region);
  };
  {
    const at::NoGradGuard evaluation;
    in_vain();
    in_vain();
  }
  in_vain();
  EXPECT_TRUE(throws_with({"'up', 'down'", "two regions", "fp8::attach_training after it"}, in_vain));
}

}  // namespace
}  // namespace fp8::test
