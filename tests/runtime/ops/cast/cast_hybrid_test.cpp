// SPDX-License-Identifier: Apache-2.0
// cast_to_fp8_hybrid against the rule of one cast written in f64, and what stochastic rounding does below the smallest
// E5M2 number in both modes of PT_HPU_STOCHASTIC_ROUNDING_MODE.
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/script.h>

#include "runtime/ops/op_call.h"
#include "support/operator_call.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;
using runtime::DeviceKind;
using runtime::DeviceKindScope;
using Sizes = std::vector<std::int64_t>;

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
    for (const auto type : {at::kFloat, at::kBFloat16})
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
  for (const auto type : {at::kHalf, at::kInt, kE4M3})
    EXPECT_REFUSED(call("cast_to_fp8_hybrid", "", {at::zeros({2, 2}, on_hpu()).to(type)}),
                   "[cast_to_fp8_hybrid] expected input of dtype Float or BFloat16, got");
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
  for (const char* op : {"cast_to_fp8_v2", "cast_to_fp8_hybrid"})
    for (const double units : {0.125, 0.5, 0.75}) {
      const at::Tensor x = at::full({200000}, std::ldexp(units, -16), on_hpu(at::kBFloat16));
      EXPECT_NEAR(mean_in_units(op, x), units, 5 * kSigma) << op;
      within(ScopedVariable(kRoundingMode, "1"), [&] { EXPECT_NEAR(mean_in_units(op, x), units, 5 * kSigma) << op; });
      const ScopedVariable mode(kRoundingMode, "0");
      EXPECT_EQ(mean_in_units(op, x), 0.0) << op;
      EXPECT_NEAR(mean_in_units(op, x.to(at::kFloat)), units, 5 * kSigma) << "the mode is about bf16";
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

// convert_from_int4 / uint4 against arithmetic on the unpacked numbers, fake_quant_fp4 against its formula.

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
  for (const bool is_signed : {false, true})
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

TEST(ConvertFromInt4, GroupsOfRowsShareScaleAndZeroPoint) {
  const Tensor n = numbers(false, {12, 16}), zero = numbers(false, {3, 16}, 2), scale = at::rand({3, 16}) + 0.5;
  const Tensor expected = (n - zero.repeat_interleave(4, 0)).to(at::kFloat) * scale.repeat_interleave(4, 0);
  EXPECT_TRUE(same_bits(run(false, packed(n), scale, packed(zero), at::kFloat), expected));
}

TEST(ConvertFromInt4, Float8OutputsRoundOnceAndSaturate) {
  const Tensor n = numbers(true, {5, 24}), scale = at::rand({5, 24}) * 120;
  for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2})
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
    for (const auto type : {at::kFloat, at::kBFloat16})
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

// The meta functions say what the real ones give: sizes, dtypes, and the same refusals; and the ops run from
// TorchScript.

TEST(Meta, AgreesWithTheRealOps) {
  const at::Tensor x = at::randn({2, 5, 8}, on_hpu(at::kBFloat16)), q = x.to(kE4M3), w = random_codes({6, 8}, kE4M3, 1);
  const at::Tensor image = random_codes({2, 4, 9, 7}, kE4M3, 2), kernel = random_codes({6, 2, 3, 3}, kE4M3, 3),
                   one = at::full({1}, 0.5f, on_hpu());
  const at::IValue none;
  expect_meta_agrees("cast_to_fp8_v2", "", {x, one, false, true, code(kE4M3)});
  expect_meta_agrees("cast_to_fp8_v2", "", {x, none, false, false, code(at::kFloat8_e5m2)});
  expect_meta_agrees("cast_to_fp8_v2", "scalar", {x, 0.5, false, true, code(kE4M3)});
  expect_meta_agrees("cast_to_fp8_v2", "scalar_list", {x, c10::List<double>({0.5}), false, false, code(kE4M3)});
  expect_meta_agrees("cast_to_fp8", "", {x, none, false, at::empty_like(q), at::empty({1}, on_hpu())});
  expect_meta_agrees("cast_to_fp8_hybrid", "", {x, one, none, false, true});
  expect_meta_agrees("cast_to_fp8_hybrid", "", {x});
  expect_meta_agrees("cast_from_fp8", "", {q, one, code(at::kFloat)});
  expect_meta_agrees("cast_from_fp8", "scalar", {q, 0.5, code(at::kBFloat16)});
  expect_meta_agrees("cast_from_fp8", "scalar_list", {q, c10::List<double>({0.5}), code(at::kBFloat16)});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 0, 0});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 1, 0});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 2, 1, 1, true});
  expect_meta_agrees("calculate_scale_for_cast", "", {x, 2, 1, -1});
  expect_meta_agrees("fp8_gemm_v2", "", {q, false, w, true, none, code(at::kFloat), one, one});
  expect_meta_agrees("fp8_gemm_v2", "", {q[0][0], false, w, true, none, code(at::kBFloat16)});
  expect_meta_agrees("fp8_gemm_v2", "scalar", {q, false, w, true, none, code(at::kBFloat16), 1.0, 1.0});
  expect_meta_agrees("fp8_gemm_v2", "scalar_list",
                     {q[0], false, w, true, none, code(at::kFloat), c10::List<double>({1}), c10::List<double>({1})});
  expect_meta_agrees("conv2d_fp8", "", {image, kernel, none, Sizes{2, 1}, Sizes{1, 0}, Sizes{1, 2}, 2});
  expect_meta_agrees("conv2d_fp8", "scalar", {image, kernel, none, Sizes{1}, Sizes{1}, Sizes{1}, 2, code(at::kFloat)});
}

TEST(Meta, RefusesWhatTheRealOnesRefuse) {
  const at::Tensor q = at::empty({2, 5}, at::TensorOptions(at::kMeta).dtype(kE4M3)),
                   x = at::empty({2, 5}, at::TensorOptions(at::kMeta));
  EXPECT_REFUSED(call("fp8_gemm_v2", "", {q, false, q, false, kNone, code(at::kFloat)}), "inner dimensions");
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {q, kNone, false, true, code(kE4M3)}), "no amax for float8");
  EXPECT_REFUSED(call("cast_from_fp8", "scalar", {x, 1.0, code(at::kFloat)}), "[cast_from_fp8]");
  EXPECT_REFUSED(call("conv2d_fp8", "", {q, q}), "[conv2d_fp8]");
}

TEST(TorchScript, RunsTheOps) {
  ASSERT_EQ(code(kE4M3), 24);
  ASSERT_EQ(code(at::kFloat), 6);
  const auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"(
graph(%x : Tensor, %w : Tensor, %scale : float):
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %e4m3 : int = prim::Constant[value=24]()
  %f32 : int = prim::Constant[value=6]()
  %one : float = prim::Constant[value=1.]()
  %scale_inv : float = aten::div(%one, %scale)
  %q : Tensor, %amax : Tensor = hpu::cast_to_fp8_v2(%x, %scale, %no, %yes, %e4m3, %none)
  %y : Tensor = hpu::fp8_gemm_v2(%q, %no, %w, %yes, %none, %f32, %scale_inv, %one, %none, %no, %none)
  %both : (Tensor, Tensor) = prim::TupleConstruct(%y, %amax)
  return (%both))",
                      graph.get());
  torch::jit::CompilationUnit unit;
  auto* function = unit.create_function(c10::QualifiedName("f"), graph);
  const at::Tensor x = at::randn({3, 8}, on_hpu()), w = random_codes({5, 8}, kE4M3, 1);
  for (int run = 0; run < 3; ++run) {
    const auto result = (*function)({x, w, 16.0}).toTuple();
    const at::Tensor q = call("cast_to_fp8_v2", "scalar", {x, 16.0, false, false, code(kE4M3)})[0];
    EXPECT_TRUE(at::allclose(result->elements()[0].toTensor().cpu().to(at::kDouble),
                             at::matmul(values_of(q), values_of(w).t()) / 16, 1e-5, 1e-5));
    EXPECT_EQ(result->elements()[1].toTensor().item<float>(), x.abs().max().item<float>());
  }
}

TEST(InferenceModeAndGrad, RunTheSameKernels) {
  const at::Tensor x = at::randn({3, 8}, on_hpu()).requires_grad_(true);
  const at::Tensor a = call("cast_to_fp8_v2", "scalar", {x.detach(), 2.0, false, false, code(kE4M3)})[0];
  const c10::InferenceMode inference;
  EXPECT_TRUE(same_bits(call("cast_to_fp8_v2", "scalar", {x.detach(), 2.0, false, false, code(kE4M3)})[0], a));
}

// The registered schemas equal the vendor's (bridge 1.19), argument by argument, default by default.

TEST(Schemas, EqualTheVendors) { expect_schemas("casts, products and convolutions", 13); }

TEST(Schemas, CalculateScaleForCastHasThePositionalArguments) {
  const auto& arguments =
      c10::Dispatcher::singleton().findSchemaOrThrow("hpu::calculate_scale_for_cast", "").schema().arguments();
  auto names = collected(arguments, [](const auto& argument) { return argument.name(); });
  EXPECT_EQ(names, (std::vector<std::string>{"input", "maxMode", "scaleMode", "reduceAxis", "reduceKeepdim",
                                             "fullscale", "backoff"}));
  EXPECT_EQ(arguments[3].default_value()->toInt(), 0);
  EXPECT_FALSE(arguments[4].default_value()->toBool());
  EXPECT_EQ(arguments[5].default_value()->toDouble(), 1.0);
  EXPECT_EQ(arguments[6].default_value()->toDouble(), 1.0);
}

}  // namespace
}  // namespace fp8::test
