// SPDX-License-Identifier: Apache-2.0
// convert_from_int4 / uint4 against arithmetic on the unpacked numbers, fake_quant_fp4 against its formula.
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using at::Tensor;

/// Eight numbers of four bits per int32, the first least significant.
Tensor packed(const Tensor& numbers) {
  const Tensor groups = numbers.to(at::kLong).bitwise_and(15).unflatten(-1, {-1, 8});
  Tensor words = at::zeros(groups.sizes().slice(0, groups.dim() - 1), at::kLong);
  for (std::int64_t i = 0; i < 8; ++i) words = words.bitwise_or(groups.select(-1, i) * (std::int64_t{1} << (4 * i)));
  return at::where(words >= (std::int64_t{1} << 31), words - (std::int64_t{1} << 32), words).to(at::kInt);
}

Tensor numbers(bool is_signed, at::IntArrayRef sizes, std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return is_signed ? at::randint(-8, 8, sizes) : at::randint(0, 16, sizes);
}

const char* name(bool is_signed) { return is_signed ? "convert_from_int4" : "convert_from_uint4"; }

Tensor run(bool is_signed, const Tensor& words, const Tensor& scale, const Tensor& zero, at::ScalarType type) {
  return call(name(is_signed), "",
              {hpu(words), hpu(scale), zero.defined() ? at::IValue(hpu(zero)) : kNone, code(type)})[0];
}

TEST(ConvertFromInt4, TheFirstNumberIsTheLeastSignificant) {
  const Tensor words = at::full({1}, 0x12345678, at::kInt),
               negative = at::full({1}, static_cast<int>(0xFEDCBA98u), at::kInt);
  const Tensor one = at::ones({1});
  EXPECT_TRUE(
      same_bits(run(false, words, one, {}, at::kFloat), at::tensor({8., 7., 6., 5., 4., 3., 2., 1.}, at::kFloat)));
  EXPECT_TRUE(same_bits(run(false, negative, one, {}, at::kFloat),
                        at::tensor({8., 9., 10., 11., 12., 13., 14., 15.}, at::kFloat)));
  EXPECT_TRUE(same_bits(run(true, negative, one, {}, at::kFloat),
                        at::tensor({-8., -7., -6., -5., -4., -3., -2., -1.}, at::kFloat)));
}

TEST(ConvertFromInt4, ScalesAndZeroPoints) {
  for (const bool is_signed : {false, true}) {
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{80}, {4, 6, 32}}) {
      const Tensor n = numbers(is_signed, sizes), zero = numbers(is_signed, sizes, 2);
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Tensor scale = (at::randn(sizes) * 50).to(type), float_zero = (at::randn(sizes) * 5).to(type);
        EXPECT_TRUE(same_bits(run(is_signed, packed(n), scale, {}, type), n.to(type) * scale));
        EXPECT_TRUE(same_bits(run(is_signed, packed(n), scale, packed(zero), type), (n - zero).to(type) * scale));
        EXPECT_TRUE(same_bits(run(is_signed, packed(n), scale, float_zero, type), (n.to(type) - float_zero) * scale));
      }
    }
  }
}

TEST(ConvertFromInt4, GroupsOfRowsShareScaleAndZeroPoint) {
  const Tensor n = numbers(false, {12, 16}), zero = numbers(false, {3, 16}, 2), scale = at::rand({3, 16}) + 0.5;
  const Tensor expected = (n - zero.repeat_interleave(4, 0)).to(at::kFloat) * scale.repeat_interleave(4, 0);
  EXPECT_TRUE(same_bits(run(false, packed(n), scale, packed(zero), at::kFloat), expected));
}

TEST(ConvertFromInt4, Float8OutputsRoundOnceAndSaturate) {
  const Tensor n = numbers(true, {5, 24}), scale = at::rand({5, 24}) * 120;
  for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const auto kind : {runtime::DeviceKind::gaudi2, runtime::DeviceKind::gaudi3}) {
      const runtime::DeviceKindScope scope(kind);
      const bool e5m2 = type == at::kFloat8_e5m2;
      const double max = e5m2 ? 57344 : kind == runtime::DeviceKind::gaudi2 ? 240 : 448;
      const Tensor product = (n.to(at::kFloat) * scale).to(at::kDouble).flatten();
      std::vector<int> expected;
      for (std::int64_t i = 0; i < product.numel(); ++i)
        expected.push_back(code_of(product[i].item<double>(), e5m2, max));
      EXPECT_EQ(codes_of(run(true, packed(n), scale, {}, type)), expected);
    }
  }
}

TEST(ConvertFromInt4, MetaAndBadArguments) {
  const Tensor words = at::zeros({2, 3}, at::kInt), one = at::ones({1});
  const Tensor meta = call("convert_from_int4", "", {words.to(at::kMeta), one, kNone, code(at::kBFloat16)})[0];
  EXPECT_EQ(meta.sizes(), at::IntArrayRef({2, 24}));
  EXPECT_EQ(meta.scalar_type(), at::kBFloat16);
  EXPECT_EQ(run(false, words.slice(0, 0, 0), one, {}, at::kFloat).sizes(), at::IntArrayRef({0, 24}));
  EXPECT_REFUSED(run(false, one, one, {}, at::kFloat), "Only int input (weights) is supported");
  EXPECT_REFUSED(run(false, words, one, {}, at::kInt), "out_dtype", "Int");
  EXPECT_REFUSED(run(false, words, at::ones({5, 24}), {}, at::kFloat), "scale", "[2, 24]", "[5, 24]");
  EXPECT_REFUSED(run(false, words, one, at::ones({7}), at::kFloat), "zero_point", "[2, 24]", "[7]");
  EXPECT_REFUSED(run(false, words[0][0], one, {}, at::kFloat), "at least one dimension");
}

// --- fp4

std::vector<double> fp4_values(bool e2m1) {
  std::vector<double> values;
  for (int code = 0; code < 8; ++code) {
    if (!e2m1) values.push_back(code == 0 ? 0 : std::ldexp(1.0, code - 3));
    if (e2m1) values.push_back(code < 2 ? code * 0.5 : std::ldexp(2 + code % 2, code / 2 - 2));
  }
  return values;
}

/// To nearest, ties to the even code, in f64; |v| <= max.
double to_fp4(double v, const std::vector<double>& values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double now = std::abs(values[i] - std::abs(v)), before = std::abs(values[best] - std::abs(v));
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(values[best], v);
}

TEST(FakeQuantFp4, RoundsEverySliceByItsLargestMagnitude) {
  for (const bool e2m1 : {true, false}) {
    const auto values = fp4_values(e2m1);
    // Multiples of 1/8 up to the largest value: products are exact, and every tie is among them.
    const Tensor grid = at::arange(-8 * values.back(), 8 * values.back() + 1).to(at::kFloat) / 8;
    const Tensor x = at::stack({grid, grid * 4, grid / 1024, grid * 0});
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool transposed : {false, true}) {
        const Tensor input = hpu(transposed ? x.t().contiguous() : x).to(type);
        const Tensor y =
            call("fake_quant_fp4", "", {input, false, transposed ? -1 : 0, e2m1 ? "fp4_e2m1" : "fp4_e3m0"})[0];
        ASSERT_EQ(y.scalar_type(), type);
        const Tensor got = (transposed ? y.t() : y).cpu().to(at::kDouble);
        for (int row = 0; row < 4; ++row) {
          const double scale = row == 1 ? 4 : row == 2 ? 1.0 / 1024 : 1;
          for (std::int64_t i = 0; row < 3 && i < grid.numel(); ++i)
            ASSERT_EQ(got[row][i].item<double>(), to_fp4(grid[i].item<double>(), values) * scale)
                << e2m1 << row << " " << i;
        }
        EXPECT_EQ(got[3].abs().max().item<double>(), 0);
      }
    }
  }
}

TEST(FakeQuantFp4, StochasticRoundingIsUnbiasedAndReproducible) {
  const Tensor x = at::cat({at::full({1, 1}, 6.0, on_hpu()), at::full({1, 8000}, 0.1, on_hpu())}, 1);  // 0.1: below 0.5
  torch::manual_seed(3);
  const Tensor a = call("fake_quant_fp4", "", {x, true, 0, "fp4_e2m1"})[0].cpu();
  const Tensor b = call("fake_quant_fp4", "", {x, true, 0, "fp4_e2m1"})[0].cpu();
  torch::manual_seed(3);
  EXPECT_TRUE(same_bits(call("fake_quant_fp4", "", {x, true, 0, "fp4_e2m1"})[0], a));
  EXPECT_FALSE(same_bits(a, b));
  const Tensor small = a.slice(1, 1);
  EXPECT_TRUE(((small == 0) | (small == 0.5)).all().item<bool>());
  EXPECT_NEAR(small.mean().item<double>(), 0.1, 5 * 0.2 / std::sqrt(8000.0));  // five standard deviations
}

TEST(FakeQuantFp4, SlicesWithoutAScaleAreNaN) {
  const Tensor x = at::ones({3, 4}, on_hpu());
  x[0][1] = NAN;
  x[1][2] = INFINITY;
  const Tensor y = call("fake_quant_fp4", "", {x, false, 0, "fp4_e2m1"})[0].cpu();
  EXPECT_TRUE(y.slice(0, 0, 2).isnan().all().item<bool>());
  EXPECT_TRUE(same_bits(y[2], at::ones({4})));
}

TEST(FakeQuantFp4, MetaAndBadArguments) {
  const Tensor x = at::ones({3, 4}, on_hpu());
  EXPECT_EQ(call("fake_quant_fp4", "", {x.to(at::kMeta), false, 0, "fp4_e2m1"})[0].sizes(), x.sizes());
  EXPECT_EQ(call("fake_quant_fp4", "", {x.slice(0, 0, 0), false, 0, "fp4_e2m1"})[0].numel(), 0);
  EXPECT_REFUSED(call("fake_quant_fp4", "", {x, false, 0, "fp4"}), "Unrecognized FP4 dtype. Use naming \"fp4_eXmY\"",
                 "fp4");
  EXPECT_REFUSED(call("fake_quant_fp4", "", {x, false, 2, "fp4_e2m1"}), "axis in [-2, 1], got 2");
  EXPECT_REFUSED(call("fake_quant_fp4", "", {x.to(at::kLong), false, 0, "fp4_e2m1"}), "input of dtype", "Long");
}

}  // namespace
}  // namespace fp8::test
