// SPDX-License-Identifier: Apache-2.0
// cast_rows_dynamic: the scale of each row by its formula, the codes by the reference with that scale.
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;

TEST(CastRowsDynamic, ScalesEveryRowByItsOwnAmax) {
  struct Shape {
    std::size_t rows, cols;
  };
  for (Shape shape : {Shape{37, 129}, {2, 200'000}, {1, 1}}) {
    std::mt19937 random(13);
    std::normal_distribution<float> normal;
    std::vector<float> x(shape.rows * shape.cols);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i / shape.cols));
    for (SimdLevel level : levels()) {
      ScopedSimdLevel scoped(level);
      std::vector<std::uint8_t> codes(x.size());
      std::vector<float> scale_inv(shape.rows);
      CastArgs args = args_for(x.data(), FloatType::F32, shape.cols, kTargets[0], nullptr, codes.data());
      args.rows = static_cast<std::int64_t>(shape.rows);
      cast_rows_dynamic(args, scale_inv.data());
      for (std::size_t r = 0; r < shape.rows; ++r) {
        float amax = 0.0f;
        for (std::size_t c = 0; c < shape.cols; ++c) amax = std::max(amax, std::fabs(x[r * shape.cols + c]));
        ASSERT_EQ(scale_inv[r], amax / 448.0f);
        const Reference want =
            reference(&x[r * shape.cols], FloatType::F32, shape.cols, {1.0f / (amax / 448.0f)}, kTargets[0]);
        const auto first = codes.begin() + static_cast<std::ptrdiff_t>(r * shape.cols);
        expect_same({first, first + static_cast<std::ptrdiff_t>(shape.cols)}, want.codes, name_of(level));
      }
    }
  }
}

TEST(CastRowsDynamic, ZeroTinyAndNaNRows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0f, -0.0f, 1e-43f, 0.0f, 1.0f, nan};
  std::vector<std::uint8_t> codes(6);
  std::vector<float> scale_inv(3);
  CastArgs args = args_for(x.data(), FloatType::F32, 2, kTargets[0], nullptr, codes.data());
  args.rows = 3;
  cast_rows_dynamic(args, scale_inv.data());
  EXPECT_EQ(scale_inv[0], 1.0f);
  EXPECT_EQ(codes[0], 0x00);
  EXPECT_EQ(codes[1], 0x80);
  EXPECT_EQ(scale_inv[1], std::numeric_limits<float>::min());
  EXPECT_EQ(codes[2], 0x00);  // 1e-43 * 2^126 is far below half of 2^-9
  EXPECT_EQ(codes[3], 0x00);
  EXPECT_TRUE(std::isnan(scale_inv[2]));
  EXPECT_EQ(codes[4] & 0x7F, 0x7F);
}

TEST(CastRowsDynamic, StochasticBitsAreThoseOfTheWholeMatrix) {
  const std::vector<float> x = hard_inputs(30'000);
  std::vector<float> numbers;
  for (float v : x) numbers.push_back(std::isfinite(v) && std::fabs(v) < 1e6f ? v : 1.0f);
  std::vector<std::uint8_t> dynamic(numbers.size()), given(numbers.size());
  std::vector<float> scale_inv(30), scale(30);
  CastArgs args = args_for(numbers.data(), FloatType::F32, 1000, kTargets[0], nullptr, dynamic.data());
  args.rows = 30;
  args.stochastic = 3;
  cast_rows_dynamic(args, scale_inv.data());
  for (std::size_t r = 0; r < 30; ++r) scale[r] = 1.0f / scale_inv[r];
  args.codes = given.data();
  args.scales = scale.data();
  args.layout = ScaleLayout::per_row();
  cast_to_fp8(args);
  expect_same(dynamic, given, "dynamic");
}

}  // namespace
}  // namespace fp8::kernels
