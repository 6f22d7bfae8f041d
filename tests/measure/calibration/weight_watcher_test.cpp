// SPDX-License-Identifier: Apache-2.0
// A watcher sees what the module takes and gives, whatever op stands between, and changes no bit of it.
#include <c10/core/InferenceMode.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/measure/calibration/watchers.h"
#include "measure/amax_by_aten.h"
#include "support/models_for_tests.h"

namespace fp8::measure {
namespace {

using test::hpu;
using test::same_bits;

/// One module's record after f(module) ran.
template <class Module, class F>
Measurement watched_weights(Module& module, F&& f) {
  torch::nn::Sequential holder;
  holder->push_back("m", module);
  const auto session = CalibrationSession::attach(*holder, {});
  f();
  const auto file = session->result();
  session->finalize();
  EXPECT_EQ(file.modules.size(), 1u);
  return file.modules.empty() ? Measurement{} : file.modules[0];
}

torch::nn::Linear linear(bool bias, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(5);
  torch::nn::Linear m(torch::nn::LinearOptions(12, 7).bias(bias));
  if (bias) torch::NoGradGuard(), m->bias.data().fill_(9);  // the bias decides the output's amax
  m->to(dtype);
  m->to(test::kHpu);
  return m;
}

TEST(WeightWatcher, LinearOfEveryRankIsMeasuredAndUnchanged) {
  for (bool bias : {true, false}) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::vector<std::int64_t>& sizes :
           {std::vector<std::int64_t>{12}, {3, 12}, {2, 3, 12}, {2, 2, 3, 12}}) {
        auto m = linear(bias, dtype);
        const at::Tensor x = hpu(torch::randn(sizes).to(dtype));
        const at::Tensor plain = m(x);
        at::Tensor y;
        const auto seen = watched_weights(m, [&] { y = m(x); });
        EXPECT_TRUE(same_bits(y, plain));
        EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(x)}}));
        ASSERT_TRUE(seen.outputs.has_value());
        EXPECT_EQ(*seen.outputs, (std::vector<Amax>{{largest(plain)}}))
            << "bias " << bias << ", rank " << sizes.size() << ", " << dtype;
        EXPECT_EQ(seen.weight, Amax{largest(m->weight)});
      }
    }
  }
}

TEST(WeightWatcher, WorksInEveryGradientMode) {
  auto m = linear(true);
  const at::Tensor x = hpu(torch::randn({2, 3, 12}));
  const at::Tensor plain = m(x);
  const auto no_grad = watched_weights(m, [&] {
    torch::NoGradGuard g;
    m(x);
  });
  const auto inference = watched_weights(m, [&] {
    c10::InferenceMode g;
    m(x);
  });
  EXPECT_EQ(*no_grad.outputs, (std::vector<Amax>{{largest(plain)}}));
  EXPECT_EQ(*inference.outputs, *no_grad.outputs);
  const at::Tensor learns = x.clone().requires_grad_(true);
  at::Tensor gradient;
  watched_weights(m, [&] {
    m(learns).sum().backward();
    gradient = learns.grad();
  });
  const at::Tensor again = x.clone().requires_grad_(true);
  m(again).sum().backward();
  EXPECT_TRUE(same_bits(gradient, again.grad()));
}

TEST(WeightWatcher, Conv2dIsMeasuredAndUnchanged) {
  torch::manual_seed(6);
  torch::nn::Conv2d m(torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2));
  m->to(test::kHpu);
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 4, 9, 8}, {4, 9, 8}}) {
    const at::Tensor x = hpu(torch::randn(sizes));
    const at::Tensor plain = m(x);
    at::Tensor y;
    const auto seen = watched_weights(m, [&] { y = m(x); });
    EXPECT_TRUE(same_bits(y, plain));
    EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(x)}}));
    EXPECT_EQ(*seen.outputs, (std::vector<Amax>{{largest(plain)}}));
  }
}

TEST(WeightWatcher, TheLargestOfAllCallsIsKept) {
  auto m = linear(false);
  const at::Tensor small = hpu(torch::randn({3, 12})), large = small * -4;
  const auto seen = watched_weights(m, [&] { m(small), m(large), m(small); });
  EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(large)}}));
  EXPECT_EQ(*seen.outputs, (std::vector<Amax>{{largest(m(large))}}));
}

TEST(WeightWatcher, AnInputWrittenInPlaceIsLookedAtAgain) {
  auto m = linear(false);
  at::Tensor x = hpu(torch::randn({3, 12}));
  const auto seen = watched_weights(m, [&] { m(x), x.mul_(3), m(x); });
  EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(x)}}));
}

TEST(WeightWatcher, DescribesItselfAndOwnsNothing) {
  auto m = linear(true);
  watched_weights(m, [&] {
    const auto* tag = runtime::find_tag(m->weight);
    ASSERT_NE(tag, nullptr);
    EXPECT_EQ(tag->handler->describe(), "measured");
    EXPECT_FALSE(tag->handler->owns_values());
    EXPECT_EQ(tag->module_names(), "m");
    m(hpu(torch::zeros({1, 12})));
  });
}

}  // namespace
}  // namespace fp8::measure
