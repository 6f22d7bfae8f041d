// SPDX-License-Identifier: Apache-2.0
// Picked tokens against PyTorch's argmax, and against softmax and its cumulative sum in f64.
#include "fp8/tools/commands/evaluate/sampling.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <limits>

#include "fp8/runtime/fp8_tensor/dtypes.h"

namespace fp8::commands {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LogitsRow row_of(const at::Tensor& logits) {
  return {logits.const_data_ptr(), runtime::float_type_of(logits.scalar_type()), logits.numel()};
}

class SamplingTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static at::Tensor random(std::int64_t n) { return (at::randn({n}, at::kFloat) * 4).to(GetParam()); }
};

TEST_P(SamplingTest, TheLargestIsPyTorchs) {
  at::manual_seed(1);
  for (const std::int64_t n : {1, 2, 7, 31, 64, 1000, 32001}) {
    for (const double shift : {0.0, -100.0}) {
      const at::Tensor logits = random(n) + shift;
      const auto largest = largest_of(row_of(logits));
      ASSERT_TRUE(largest.has_value());
      EXPECT_EQ(largest->index, logits.argmax().item<std::int64_t>());
      EXPECT_EQ(largest->value, logits.max().item<float>());
    }
  }
}

TEST_P(SamplingTest, OfEqualOnesItIsTheFirst) {
  const auto first_of = [](const std::vector<float>& values) {
    return largest_of(row_of(at::tensor(values).to(GetParam()))).value().index;
  };
  EXPECT_EQ(first_of({1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(first_of({-1, -0.0f, 0, -0.0f}), 1);
  EXPECT_EQ(first_of({-1, 0, -0.0f, 0}), 1);
  EXPECT_EQ(first_of({-5, -2, -2, -7}), 1);
}

TEST_P(SamplingTest, NoNumberHasNoLargest) {
  for (const double wrong : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::int64_t i : {0, 500, 999}) {
      const at::Tensor logits = random(1000);
      logits[i] = wrong;
      EXPECT_FALSE(largest_of(row_of(logits)).has_value());
    }
  }
  const double most = GetParam() == at::kHalf ? 65504 : GetParam() == at::kBFloat16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
  EXPECT_EQ(largest_of(row_of(at::tensor({-most, most}, at::kDouble).to(GetParam()))).value().index, 1);
}

TEST_P(SamplingTest, DrawsFollowTheSoftmax) {
  at::manual_seed(2);
  std::mt19937_64 generator(3), same(3);
  for (const double temperature : {0.2, 1.0, 3.0}) {
    TokenDraw draw(temperature);
    for (const std::int64_t n : {1, 5, 300, 5000, 300}) {
      const at::Tensor logits = random(n);
      const auto until = at::softmax(logits.to(at::kDouble) / temperature, 0).cumsum(0);
      for (int i = 0; i < 50; ++i) {
        const double u = static_cast<double>(same() >> 11) * 0x1p-53;
        const auto expected = at::searchsorted(until, u, /*out_int32=*/false, /*right=*/true).item<std::int64_t>();
        const auto largest = largest_of(row_of(logits)).value().value;
        EXPECT_EQ(draw.draw(row_of(logits), largest, generator), expected) << "u " << u;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SamplingTest, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& test) { return c10::toString(test.param); });

}  // namespace
}  // namespace fp8::commands
