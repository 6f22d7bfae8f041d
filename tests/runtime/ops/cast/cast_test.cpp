// SPDX-License-Identifier: Apache-2.0
// cast_to_fp8_v2 and cast_from_fp8 bit for bit against the vendor's rule written in f64: the scale rounded to the
// input's dtype, the product rounded in it, to nearest even, saturating at 240 (E4M3 on Gaudi2), 448 (E4M3 else), 57344
// (E5M2).
#include "runtime/ops/attention/sdpa_reference.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using runtime::DeviceKind;
using runtime::DeviceKindScope;

double saturation(bool e5m2, DeviceKind kind) { return e5m2 ? 57344.0 : kind == DeviceKind::gaudi2 ? 240.0 : 448.0; }

/// Every value of a 16-bit type; for f32 a sweep over all exponents with varied mantissas, and the ties of both
/// formats.
at::Tensor every_value(at::ScalarType type) {
  if (type != at::kFloat) return at::arange(65536, at::kInt).to(at::kShort).view(type);
  std::vector<float> values = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, 3.4e38f};
  for (std::uint32_t high = 0; high < 65536; ++high) {
    const std::uint32_t bits = high << 16 | (high * 40503u & 0xFFFF);
    float v;
    std::memcpy(&v, &bits, 4);
    values.push_back(v);
  }
  for (int code = 0; code < 126; ++code) {
    for (const bool e5m2 : {false, true}) {
      const float tie = static_cast<float>((value_of(code, e5m2) + value_of(code + 1, e5m2)) / 2);
      for (const float v : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e30f)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
  }
  return at::tensor(values);
}

void expect_rule(at::ScalarType type, bool e5m2, DeviceKind kind, double scale) {
  const DeviceKindScope scope(kind);
  const at::Tensor x = every_value(type);
  const auto out_type = e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  const auto got = codes_of(call("cast_to_fp8_v2", "scalar", {hpu(x), scale, false, false, code(out_type)})[0]);
  const at::Tensor wide = x.to(at::kDouble);
  const double* values = wide.const_data_ptr<double>();
  const double s = rounded(static_cast<float>(scale), type_of(type));
  int wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double product = rounded(values[i] * s, type_of(type));
    const int expected = code_of(product, e5m2, saturation(e5m2, kind));
    if (std::isnan(product) ? (got[i] & 127) != 127 : got[i] != expected) {
      if (++wrong < 4)
        ADD_FAILURE() << type << " x " << values[i] << " scale " << scale << ": code " << got[i] << ", expected "
                      << expected;
    }
  }
  EXPECT_EQ(wrong, 0);
}

class CastRule : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool, DeviceKind>> {};

TEST_P(CastRule, EqualsTheReferenceForEveryValue) {
  const auto [type, e5m2, kind] = GetParam();
  for (const double scale : {1.0, 0.3, 24.0, 0.0625, 1.7e5, 3.1e-6}) expect_rule(type, e5m2, kind, scale);
}

INSTANTIATE_TEST_SUITE_P(All, CastRule,
                         ::testing::Combine(::testing::Values(at::kBFloat16, at::kHalf, at::kFloat), ::testing::Bool(),
                                            ::testing::Values(DeviceKind::gaudi2, DeviceKind::gaudi3)),
                         [](const auto& info) {
                           return std::string(c10::toString(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_E5M2_" : "_E4M3_") +
                                  runtime::name_of(std::get<2>(info.param));
                         });

TEST(CastRule, TheProductIsRoundedInTheInputsType) {
  // bf16(0.3) = 77/256; 77/256 * 3.53125 (226/64) = 1.0621...: bf16 gives 1.0625, a tie of E4M3 that goes to the even
  // code 1.0.
  const at::Tensor x = at::full({1}, 3.53125, on_hpu(at::kBFloat16));
  const double product = rounded(3.53125 * 0.30078125, kBf16);
  EXPECT_EQ(product, 1.0625);
  EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "scalar", {x, 0.3, false, false, code(at::kFloat8_e4m3fn)})[0])[0],
            code_of(1.0625, false, 448));
}

TEST(CastSaturation, IsThePerDeviceMaximumWithBothRoundings) {
  const at::Tensor x = at::tensor({1e4, -1e4, 1e6, -1e6}, on_hpu());
  for (const bool stochastic : {false, true}) {
    for (const auto kind : {DeviceKind::gaudi2, DeviceKind::gaudi3}) {
      const DeviceKindScope scope(kind);
      const double max = saturation(false, kind);
      const at::Tensor e4m3 =
          values_of(call("cast_to_fp8_v2", "", {x, kNone, stochastic, false, code(at::kFloat8_e4m3fn)})[0]);
      EXPECT_TRUE(same_bits(e4m3, at::tensor({max, -max, max, -max}, at::kDouble)));
      const at::Tensor e5m2 =
          values_of(call("cast_to_fp8_v2", "", {x * 10, kNone, stochastic, false, code(at::kFloat8_e5m2)})[0]);
      EXPECT_TRUE(same_bits(e5m2, at::tensor({57344., -57344., 57344., -57344.}, at::kDouble)));
    }
  }
}

TEST(CastFrom, AllCodesAllTypesWithAScale) {
  const at::Tensor bytes = at::arange(256, at::kInt).to(at::kByte);
  for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const bool e5m2 = format == at::kFloat8_e5m2;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const double scale : {1.0, 0.3, 1.0 / 1024, 77.7}) {
        const at::Tensor y = call("cast_from_fp8", "scalar", {hpu(bytes.view(format)), scale, code(type)})[0];
        EXPECT_EQ(y.scalar_type(), type);
        const at::Tensor wide = y.cpu().to(at::kDouble);
        const double s = rounded(static_cast<float>(scale), type_of(type));
        for (int code = 0; code < 256; ++code) {
          const double got = wide.const_data_ptr<double>()[code],
                       expected = rounded(value_of(code, e5m2) * s, type_of(type));
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(got)) << code;
          } else {
            EXPECT_EQ(got, expected) << "code " << code << " scale " << scale << " " << type;
            EXPECT_EQ(std::signbit(got), std::signbit(expected));
          }
        }
      }
    }
  }
}

TEST(Stochastic, StaysBetweenTheNeighboursAndItsMeanIsTheValue) {
  torch::manual_seed(99);
  const int n = 100000;
  const at::Tensor x = at::full({n}, 18.5, on_hpu());
  struct Case {
    at::ScalarType format;
    double low, high, mean_within;
  };
  // E4M3 steps by 2 at 18.5, E5M2 by 4 (16, 20).
  for (const Case& c : {Case{at::kFloat8_e4m3fn, 18, 20, 0.4}, Case{at::kFloat8_e5m2, 16, 20, 0.8}}) {
    const at::Tensor y = values_of(call("cast_to_fp8_v2", "", {x, kNone, true, false, code(c.format)})[0]);
    EXPECT_TRUE(((y == c.low) | (y == c.high)).all().item<bool>());
    EXPECT_NEAR(y.narrow(0, 0, 1000).mean().item<double>(), 18.5, c.mean_within);
    const double p = (18.5 - c.low) / (c.high - c.low), sigma = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR((y == c.high).to(at::kDouble).mean().item<double>(), p, 5 * sigma);
  }
}

TEST(Stochastic, DiffersFromNearestExactValuesStayAndTheSeedDecides) {
  torch::manual_seed(3);
  const at::Tensor x = at::rand({64, 64}, on_hpu(at::kBFloat16)) * 200;
  const auto cast = [&](const at::Tensor& t, bool stochastic) {
    return call("cast_to_fp8_v2", "", {t, kNone, stochastic, false, code(at::kFloat8_e4m3fn)})[0];
  };
  const at::Tensor nearest = cast(x, false);
  torch::manual_seed(5);
  const at::Tensor a = cast(x, true), b = cast(x, true);
  torch::manual_seed(5);
  EXPECT_TRUE(same_bits(cast(x, true), a));
  EXPECT_FALSE(same_bits(a, b));
  EXPECT_FALSE(same_bits(a, nearest));
  EXPECT_TRUE(at::allclose(values_of(a), x.cpu().to(at::kDouble), 0.26, 1e-2));
  const at::Tensor exact = nearest.to(at::kFloat);
  EXPECT_TRUE(same_bits(cast(exact, true), nearest));
}

TEST(FirstGeneration, HasNoFp8) {
  const at::Tensor x = at::ones({2, 2}, on_hpu()), q = hpu(at::ones({2, 2}).to(at::kFloat8_e4m3fn)),
                   image = q.view({1, 1, 2, 2}), out = at::empty_like(q);
  const DeviceKindScope scope(DeviceKind::gaudi);
  const auto refused = [](const char* name, const char* overload, const torch::jit::Stack& args) {
    EXPECT_REFUSED(call(name, overload, args), "not supported on GAUDI", "gaudi2, gaudi3");
  };
  refused("cast_to_fp8_v2", "", {x, kNone, false, false, code(at::kFloat8_e4m3fn)});
  refused("cast_to_fp8", "", {x, kNone, false, out, at::empty({0}, on_hpu())});
  refused("cast_from_fp8", "scalar", {q, 1.0, code(at::kFloat)});
  refused("fp8_gemm_v2", "scalar", {q, false, q, false, kNone, code(at::kFloat), 1.0, 1.0});
  refused("conv2d_fp8", "scalar", {image, image});
}

// sum_fp8: with a float out_dtype the float sum of the same values, as the vendor promises; in fp8 that sum rounded
// once.

using Dims = std::vector<std::int64_t>;

TEST(SumFp8, EqualsTheFloatSum) {
  for (const auto type : {kE4M3, kE5M2}) {
    torch::manual_seed(1);
    const at::Tensor host = (at::randn({10, 20, 30}) * 10).to(type), x = host.to(kHpu), values = host.to(at::kFloat);
    for (const at::IValue& dim : {at::IValue(Dims{0}), at::IValue(Dims{1}), at::IValue(Dims{-1}),
                                  at::IValue(Dims{0, 1}), at::IValue(Dims{}), kNone}) {
      for (const bool keep : {false, true}) {
        const auto list = dim.isNone() ? Dims{} : dim.toIntVector();
        const at::Tensor exact = at::sum(values, list, keep);
        EXPECT_TRUE(same_bits(call("sum_fp8", "", {x, dim, keep, code(at::kFloat)})[0], exact));
        EXPECT_TRUE(same_bits(call("sum_fp8", "", {x, dim, keep, code(at::kBFloat16)})[0], exact.to(at::kBFloat16)));
        const at::Tensor own = call("sum_fp8", "", {x, dim, keep})[0];
        EXPECT_EQ(own.scalar_type(), type);
        const at::Tensor rounded = rounded_fp8(exact.to(at::kDouble), type == kE5M2, type == kE5M2 ? 57344 : 448);
        EXPECT_TRUE(same_bits(values_of(own), rounded));
      }
    }
  }
}

TEST(SumFp8, OtherInputsAndEdges) {
  const at::Tensor x = random_hpu({3, 4}, at::kBFloat16, 1);
  EXPECT_TRUE(same_bits(call("sum_fp8", "", {x, Dims{1}, false, code(at::kFloat)})[0],
                        at::sum(x.cpu().to(at::kFloat), Dims{1})));
  EXPECT_EQ(call("sum_fp8", "", {x.to(kE4M3).t(), Dims{0}})[0].sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(
      values_of(call("sum_fp8", "", {at::empty({0, 4}, on_hpu()).to(kE4M3), Dims{0}})[0]).abs().max().item<double>(),
      0.0);
  EXPECT_REFUSED(call("sum_fp8", "", {at::ones({2}, on_hpu(at::kInt))}), "[sum_fp8]", "Int");
  EXPECT_REFUSED(call("sum_fp8", "", {x, kNone, false, code(at::kLong)}), "[sum_fp8]", "out_dtype", "Long");
  EXPECT_NE(error_of([&] { call("sum_fp8", "", {x, Dims{2}}); }), "");
}

}  // namespace
}  // namespace fp8::test
