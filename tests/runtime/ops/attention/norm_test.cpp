// SPDX-License-Identifier: Apache-2.0
// rms_norm and its backward against the formula in f64 and its gradients by autograd.
#include "sdpa_reference.h"

namespace fp8::test {
namespace {

struct Types {
  at::ScalarType x, gamma;
};
const Types kTypes[] = {{at::kFloat, at::kFloat},
                        {at::kBFloat16, at::kBFloat16},
                        {at::kHalf, at::kHalf},
                        {at::kBFloat16, at::kFloat},
                        {at::kFloat, at::kHalf}};

TEST(RmsNorm, ForwardAndBackwardAreTheFormula) {
  const double epsilon = 3e-5;
  for (const Types& types : kTypes) {
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{32, 1, 40}, {8, 2, 2, 4}, {1, 2, 4, 17, 20}, {300, 33}, {7}}) {
      const at::Tensor x = random_hpu(sizes, types.x, 1), gamma = random_hpu({sizes.back()}, types.gamma, 2),
                       grad = random_hpu(sizes, types.x, 3);
      const at::Tensor x64 = wide(x).requires_grad_(true), g64 = wide(gamma).requires_grad_(true);
      const at::Tensor inverse = 1 / at::sqrt((x64 * x64).mean(-1, true) + epsilon), y = x64 * inverse * g64;
      const auto exact = torch::autograd::grad({y}, {x64, g64}, {wide(grad)});
      const auto result_type = types.x == types.gamma ? types.x : at::kFloat;
      for (const char* name : {"rms_norm", "rms_norm_fast"}) {
        const auto r = call(name, "", {x, gamma, epsilon});
        EXPECT_EQ(r[0].scalar_type(), result_type);
        EXPECT_EQ(r[1].scalar_type(), result_type);
        expect_rounded(r[0], y.detach(), y.detach(), name);
        expect_rounded(r[1], inverse.detach(), inverse.detach(), name);
        // The saved inverse carries the rounding of its dtype into the gradients.
        const double unit = std::ldexp(1.0, -type_of(result_type).digits);
        const auto g = call((std::string(name) + "_backward").c_str(), "", {grad, x, gamma, r[1], true, 0});
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(g[i].scalar_type(), result_type);
          ASSERT_EQ(g[i].sizes(), exact[i].sizes());
          const double size = exact[i].abs().max().item<double>();
          EXPECT_LE((wide(g[i]) - exact[i]).abs().max().item<double>(), size * (3 * unit + 1e-6)) << name << i << sizes;
        }
      }
    }
  }
}

TEST(RmsNorm, GradientTypesFollowAllInputs) {
  const at::Tensor x = random_hpu({4, 8}, at::kBFloat16, 1), gamma = random_hpu({8}, at::kBFloat16, 2);
  const auto r = call("rms_norm", "", {x, gamma, 1e-5});
  EXPECT_EQ(call("rms_norm_backward", "", {x, x, gamma, r[1], false, 1})[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(call("rms_norm_backward", "", {x.to(at::kFloat), x, gamma, r[1], false, 1})[0].scalar_type(), at::kFloat);
  EXPECT_EQ(call("rms_norm_backward", "", {x, x, gamma, r[1].to(at::kFloat), false, 1})[1].scalar_type(), at::kFloat);
}

TEST(RmsNorm, ViewsZerosAndEmptyInputs) {
  const at::Tensor x = random_hpu({8, 6}, at::kFloat, 1).t(), gamma = random_hpu({8}, at::kFloat, 2);
  const at::Tensor x64 = wide(x), exact = x64 / at::sqrt((x64 * x64).mean(-1, true)) * wide(gamma);
  expect_rounded(call("rms_norm", "", {x, gamma, 0.0})[0], exact, exact, "a view");
  EXPECT_EQ(call("rms_norm", "", {at::zeros({2, 8}, on_hpu()), gamma, 1e-5})[0].cpu().abs().max().item<float>(), 0.0f);
  EXPECT_EQ(call("rms_norm", "", {at::zeros({0, 8}, on_hpu()), gamma, 1e-5})[1].sizes(), at::IntArrayRef({0, 1}));
  const at::Tensor none = at::zeros({0, 8}, on_hpu());
  EXPECT_EQ(call("rms_norm_backward", "", {none, none, gamma, at::zeros({0, 1}, on_hpu()), true, 0})[1]
                .cpu()
                .abs()
                .max()
                .item<float>(),
            0.0f);
}

TEST(RmsNorm, BadArgumentsAreNamed) {
  const at::Tensor x = at::ones({2, 8}, on_hpu()), gamma = at::ones({8}, on_hpu()),
                   inverse = at::ones({2, 1}, on_hpu());
  EXPECT_TRUE(
      throws_with({"[rms_norm]", "gamma [N]", "[7]"}, [&] { call("rms_norm", "", {x, gamma.slice(0, 0, 7), 1e-5}); }));
  EXPECT_TRUE(throws_with({"[rms_norm]", "Double"}, [&] { call("rms_norm", "", {x.to(at::kDouble), gamma, 1e-5}); }));
  EXPECT_TRUE(
      throws_with({"[rms_norm]"}, [&] { call("rms_norm", "", {x.slice(1, 0, 0), gamma.slice(0, 0, 0), 1e-5}); }));
  EXPECT_TRUE(throws_with({"[rms_norm_backward]", "inverse_rms of"},
                          [&] { call("rms_norm_backward", "", {x, x, gamma, inverse[0], true, 0}); }));
  EXPECT_TRUE(throws_with({"[rms_norm_backward]", "grad_in of sizes"},
                          [&] { call("rms_norm_backward", "", {x[0], x, gamma, inverse, true, 0}); }));
  EXPECT_TRUE(throws_with({"[rms_norm_backward]", "bwd_mode 0 or 1, got 2"},
                          [&] { call("rms_norm_backward", "", {x, x, gamma, inverse, true, 2}); }));
}

}  // namespace
}  // namespace fp8::test
