// SPDX-License-Identifier: Apache-2.0
// Samples side by side are what torch::stack makes of them; samples that do not fit are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fp8/runtime/data/dataset.h"
#include "support/hpu_test.h"

namespace fp8::data {
namespace {

using ::testing::HasSubstr;

std::string numbered(std::size_t i) { return "sample " + std::to_string(i); }

TEST(StackSamples, IsTorchStack) {
  std::vector<Sample> samples;
  for (int i = 0; i < 3; ++i)
    samples.push_back({torch::randn({4, 2}).t(), torch::tensor(i), torch::zeros({0, 3}, torch::kBFloat16)});
  const auto batch = stack_samples(samples, false, numbered);
  ASSERT_EQ(batch.size(), 3u);
  for (std::size_t t = 0; t < 3; ++t)
    EXPECT_TRUE(test::same_bits(batch[t], torch::stack({samples[0][t], samples[1][t], samples[2][t]}))) << t;
  EXPECT_FALSE(batch[0].is_pinned());
  EXPECT_TRUE(stack_samples(samples, true, numbered)[0].is_pinned());
  EXPECT_TRUE(test::same_bits(stack_samples(samples, true, numbered)[0], batch[0]));
}

TEST(StackSamples, NamesWhatDoesNotFit) {
  const auto said = [](const std::vector<Sample>& samples) {
    return test::error_of([&] { stack_samples(samples, false, numbered); });
  };
  EXPECT_EQ(
      said({{torch::zeros({2})}, {torch::zeros({3})}}),
      "[data] sample 1: found Float of sizes [3] on cpu, allowed: Float of sizes [2] on cpu, as tensor 0 of sample 0");
  EXPECT_THAT(said({{torch::zeros({2})}, {torch::zeros({2}, torch::kLong)}}), HasSubstr("sample 1: found Long"));
  EXPECT_THAT(said({{torch::zeros({2})}, {}}), HasSubstr("sample 1: found 0 tensors, allowed: 1, as in sample 0"));
  EXPECT_THAT(said({{at::Tensor()}}), HasSubstr("sample 0: found no tensor"));
  EXPECT_THAT(said({{torch::zeros({2}, test::on_hpu())}}), HasSubstr("allowed: a dense tensor on the CPU"));
}

}  // namespace
}  // namespace fp8::data
