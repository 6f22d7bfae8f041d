// SPDX-License-Identifier: Apache-2.0
// The convolution beside a first layer against its formula in loops.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "fp8/tools/models/decoder/deberta.h"

namespace fp8::models {
namespace {

TEST(Convolution, IsTheFormula) {
  constexpr std::int64_t kHidden = 6, kGroups = 2, kKernel = 5, kLength = 4;  // shorter than the kernel
  const c10::NoGradGuard no_grad;
  at::manual_seed(6);
  DecoderConfig config;
  config.shape.hidden = kHidden;
  config.norm = {.kind = NormSpec::Kind::layer, .eps = 1e-3, .bias = true};
  config.convolution = {.kernel = kKernel, .groups = kGroups, .activation = Activation::tanh};
  Convolution convolution(config);
  for (auto& item : convolution->named_parameters()) item.value().set_data(at::randn(item.value().sizes()));
  const auto parameters = convolution->named_parameters();
  const auto &weight = parameters["conv.weight"], &bias = parameters["conv.bias"];
  ASSERT_EQ(weight.sizes(), (std::vector<std::int64_t>{kHidden, kHidden / kGroups, kKernel}));
  const auto x = at::randn({2, kLength, kHidden}), y = at::randn(x.sizes());

  auto sum = y.clone();
  constexpr auto kWidth = kHidden / kGroups;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < kLength; ++t)
      for (std::int64_t o = 0; o < kHidden; ++o) {
        double value = bias[o].item<double>();
        for (std::int64_t i = 0; i < kWidth; ++i)
          for (std::int64_t n = 0; n < kKernel; ++n) {
            const auto from = t + n - kKernel / 2;
            if (from < 0 || from >= kLength) continue;
            value += weight[o][i][n].item<double>() * x[b][from][o / kWidth * kWidth + i].item<double>();
          }
        sum[b][t][o] += std::tanh(value);
      }
  const auto centred = sum - sum.mean(-1, /*keepdim=*/true);
  const auto expected =
      centred / (centred.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() * parameters["LayerNorm.weight"] +
      parameters["LayerNorm.bias"];
  EXPECT_LE((convolution->forward(x, y) - expected).abs().max().item<double>(), 1e-5);
}

}  // namespace
}  // namespace fp8::models
