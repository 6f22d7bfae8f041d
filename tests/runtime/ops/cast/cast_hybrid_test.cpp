// SPDX-License-Identifier: Apache-2.0
// cast_to_fp8_hybrid against the rule of one cast written in f64, and what stochastic rounding does below the smallest
// E5M2 number in both modes of PT_HPU_STOCHASTIC_ROUNDING_MODE.
#include "runtime/ops/op_call.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using runtime::DeviceKind;
using runtime::DeviceKindScope;

constexpr const char* kRoundingMode = "PT_HPU_STOCHASTIC_ROUNDING_MODE";

/// Codes of x * scale by the vendor's rule: the scale and the product rounded to x's dtype.
std::vector<int> expected_codes(const at::Tensor& x, double scale, bool e5m2, double max) {
  const at::Tensor wide = x.cpu().to(at::kDouble).contiguous();
  const Type& type = type_of(x.scalar_type());
  const double s = rounded(static_cast<float>(scale), type);
  std::vector<int> codes;
  for (std::int64_t i = 0; i < wide.numel(); ++i)
    codes.push_back(code_of(rounded(wide.const_data_ptr<double>()[i] * s, type), e5m2, max));
  return codes;
}

/// Numbers over many magnitudes, with the special ones.
at::Tensor varied(at::IntArrayRef sizes, at::ScalarType type) {
  torch::manual_seed(11);
  at::Tensor x = at::randn(sizes) * at::exp2(at::randint(-20, 12, sizes));
  x.view(-1).slice(0, 0, 3).copy_(at::tensor({0.0f, -0.0f, -3e30f}));
  return hpu(x.to(type));
}

TEST(CastHybrid, GivesBothFormatsAndOneAmax) {
  for (const DeviceKind kind : {DeviceKind::gaudi2, DeviceKind::gaudi3}) {
    const DeviceKindScope scope(kind);
    const double e4m3_max = kind == DeviceKind::gaudi2 ? 240 : 448;
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const std::vector<std::int64_t>& sizes :
           std::vector<std::vector<std::int64_t>>{{3, 1001}, {2, 3, 20000}, {7}, {}}) {
        const at::Tensor x = sizes.empty() ? hpu(at::scalar_tensor(-2.7, type)) : varied(sizes, type);
        const auto y = call("cast_to_fp8_hybrid", "", {x, at::full({1}, 0.7f), at::full({}, 37.0f), false, true});
        EXPECT_EQ(y[0].scalar_type(), kE5M2);
        EXPECT_EQ(y[1].scalar_type(), kE4M3);
        EXPECT_EQ(y[0].sizes(), x.sizes());
        EXPECT_EQ(codes_of(y[0]), expected_codes(x, 0.7f, true, 57344));
        EXPECT_EQ(codes_of(y[1]), expected_codes(x, 37.0f, false, e4m3_max));
        EXPECT_EQ(y[2].dim(), 0);
        EXPECT_EQ(y[2].item<float>(), x.cpu().to(at::kFloat).abs().max().item<float>());
      }
    }
  }
}

TEST(CastHybrid, TakesAnyStridesAndNoScales) {
  const at::Tensor base = varied({40, 60}, at::kBFloat16);
  for (const at::Tensor& x : {base.t(), base.slice(1, 2, 50), base.slice(0, 0, 40, 3)}) {
    const auto y = call("cast_to_fp8_hybrid", "", {x});
    EXPECT_EQ(codes_of(y[0]), expected_codes(x, 1, true, 57344));
    EXPECT_EQ(codes_of(y[1]), expected_codes(x, 1, false, 448));
    EXPECT_EQ(y[2].sizes(), at::IntArrayRef({0}));
  }
  const at::Tensor per_row = at::rand({40, 1}) + 0.5,
                   odd = at::rand({40, 60}) + 0.5;  // a scale per row, one per element
  const auto y = call("cast_to_fp8_hybrid", "", {base, per_row, odd, false, true});
  EXPECT_TRUE(same_bits(y[0], call("cast_to_fp8_v2", "", {base, per_row, false, false, code(kE5M2)})[0]));
  EXPECT_TRUE(same_bits(y[1], call("cast_to_fp8_v2", "", {base, odd, false, false, code(kE4M3)})[0]));
  EXPECT_EQ(y[2].item<float>(), base.cpu().to(at::kFloat).abs().max().item<float>());
}

TEST(CastHybrid, RoundsOnlyE5M2Stochastically) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::full({200, 1000}, 18.5, on_hpu(type));  // E5M2 has 16 and 20
    torch::manual_seed(1);
    const auto y = call("cast_to_fp8_hybrid", "", {x, kNone, kNone, true, true});
    EXPECT_EQ(codes_of(y[1]), expected_codes(x, 1, false, 448));
    const at::Tensor values = values_of(y[0]);
    EXPECT_TRUE(((values == 16) | (values == 20)).all().item<bool>());
    EXPECT_NEAR(values.mean().item<double>(), 18.5, 5 * 4 * std::sqrt(0.625 * 0.375 / 2e5));
    torch::manual_seed(1);
    EXPECT_TRUE(same_bits(y[0], call("cast_to_fp8_hybrid", "", {x, kNone, kNone, true, false})[0]));
  }
}

TEST(CastHybrid, NamesWhatItCannotTake) {
  for (const auto type : {at::kHalf, at::kInt, kE4M3}) {
    EXPECT_REFUSED(call("cast_to_fp8_hybrid", "", {at::zeros({2, 2}, on_hpu()).to(type)}),
                   "[cast_to_fp8_hybrid] expected input of dtype Float or BFloat16, got");
  }
  const DeviceKindScope scope(DeviceKind::gaudi);
  EXPECT_NE(error_of([] { call("cast_to_fp8_hybrid", "", {at::zeros({2, 2}, on_hpu())}); }), "");
}

/// Mean of the E5M2 values, in units of 2^-16, of 2 * 10^5 copies of a bf16 x rounded stochastically.
double mean_in_units(const char* name, const at::Tensor& x) {
  torch::manual_seed(5);
  torch::jit::Stack args = {x, kNone, true, false, code(kE5M2)};
  if (std::string(name) == "cast_to_fp8_hybrid") args = {x, kNone, kNone, true, false};
  const at::Tensor values = values_of(call(name, "", args)[0]) * 65536;
  EXPECT_TRUE(((values == 0) | (values == 1)).all().item<bool>());
  return values.mean().item<double>();
}

TEST(StochasticMode, DecidesBelowTheSmallestE5M2Number) {
  constexpr double kSigma = 0.5 / 447;  // of the mean of 2 * 10^5 draws of 0 and 1, at most
  for (const char* op : {"cast_to_fp8_v2", "cast_to_fp8_hybrid"}) {
    for (const double units : {0.125, 0.5, 0.75}) {
      const at::Tensor x = at::full({200000}, std::ldexp(units, -16), on_hpu(at::kBFloat16));
      EXPECT_NEAR(mean_in_units(op, x), units, 5 * kSigma) << op;
      {
        const ScopedVariable mode(kRoundingMode, "1");
        EXPECT_NEAR(mean_in_units(op, x), units, 5 * kSigma) << op;
      }
      const ScopedVariable mode(kRoundingMode, "0");
      EXPECT_EQ(mean_in_units(op, x), 0.0) << op;
      EXPECT_NEAR(mean_in_units(op, x.to(at::kFloat)), units, 5 * kSigma) << "the mode is about bf16";
    }
  }
  const ScopedVariable mode(kRoundingMode, "0");
  const at::Tensor x =
      hpu(at::tensor({1.5f * 0x1p-16f, -0.9f * 0x1p-16f, 18.5f, -NAN}).to(at::kBFloat16)).repeat({500});
  const at::Tensor y = call("cast_to_fp8_v2", "", {x, kNone, true, false, code(kE5M2)})[0];
  const at::Tensor rows = at::tensor(codes_of(y)).view({500, 4});
  const auto both = [&](int column) {
    return rows.select(1, column).min().item<int>() < rows.select(1, column).max().item<int>();
  };
  EXPECT_TRUE(both(0) && both(2));                              // from the smallest number on nothing changes
  EXPECT_TRUE((rows.select(1, 1) == 0x80).all().item<bool>());  // the sign stays
  EXPECT_TRUE(((rows.select(1, 3) & 127) == 127).all().item<bool>());
}

TEST(StochasticMode, NamesAnotherValue) {
  const ScopedVariable mode(kRoundingMode, "2");
  const at::Tensor x = at::ones({4}, on_hpu(at::kBFloat16));
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {x, kNone, true, false, code(kE5M2)}),
                 "PT_HPU_STOCHASTIC_ROUNDING_MODE: found '2', allowed: 0, 1");
  call("cast_to_fp8_v2", "", {x, kNone, false, false, code(kE5M2)});  // rounding to nearest does not read the mode
}

}  // namespace
}  // namespace fp8::test
