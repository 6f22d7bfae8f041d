// SPDX-License-Identifier: Apache-2.0
// cast_to_fp8_v2 and cast_from_fp8 bit for bit against the vendor's rule written in f64: the scale rounded to the
// input's dtype, the product rounded in it, to nearest even, saturating at 240 (E4M3 on Gaudi2), 448 (E4M3 else), 57344
// (E5M2).
#include "fp8/runtime/ops/cast/cast.h"

#include "runtime/ops/attention/sdpa_reference.h"

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
  for (int code = 0; code < 126; ++code)
    for (const bool e5m2 : {false, true}) {
      const float tie = static_cast<float>((value_of(code, e5m2) + value_of(code + 1, e5m2)) / 2);
      for (const float v : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e30f)}) {
        values.push_back(v);
        values.push_back(-v);
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
  EXPECT_EQ(rounded(3.53125 * 0.30078125, kBf16), 1.0625);
  EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "scalar", {x, 0.3, false, false, code(at::kFloat8_e4m3fn)})[0])[0],
            code_of(1.0625, false, 448));
}

TEST(CastSaturation, IsThePerDeviceMaximumWithBothRoundings) {
  const at::Tensor x = at::tensor({1e4, -1e4, 1e6, -1e6}, on_hpu());
  for (const bool stochastic : {false, true})
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

TEST(CastFrom, AllCodesAllTypesWithAScale) {
  const at::Tensor bytes = at::arange(256, at::kInt).to(at::kByte);
  for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const bool e5m2 = format == at::kFloat8_e5m2;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
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
                                  at::IValue(Dims{0, 1}), at::IValue(Dims{}), kNone})
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

// The casts' other arguments: the forms of a scale, scale_shape, amax, fp8 inputs, strides, and
// calculate_scale_for_cast.

at::Tensor form_input(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  torch::manual_seed(41);
  return (at::randn(sizes) * 3).to(type).to(kHpu);
}

/// The rule with a factor that broadcasts: codes of round(x * round(scale)).
std::vector<int> expected_codes(const at::Tensor& x, const at::Tensor& scale, double max = 448) {
  const at::Tensor factor = scale.cpu().to(x.scalar_type()).to(at::kDouble);
  at::Tensor product = (x.cpu().to(at::kDouble) * factor).contiguous();
  double* values = product.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < product.numel(); ++i) values[i] = rounded(values[i], type_of(x.scalar_type()));
  return codes_for(product, kE4M3, max);
}

TEST(CastForms, TensorScalarAndListAreOne) {
  const at::Tensor x = form_input({5, 7});
  const auto expected = expected_codes(x, at::full({1}, 0.7f));
  for (const at::IValue& scale : {at::IValue(at::full({1}, 0.7f)), at::IValue(at::full({}, 0.7f, on_hpu())),
                                  at::IValue(at::full({1}, 0.7f, on_hpu(at::kBFloat16)))})
    EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "", {x, scale, false, false, code(kE4M3)})[0]), expected);
  EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "scalar", {x, static_cast<double>(0.7f), false, false, code(kE4M3)})[0]),
            expected);
  EXPECT_EQ(
      codes_of(call("cast_to_fp8_v2", "scalar_list", {x, c10::List<double>({0.7f}), false, false, code(kE4M3)})[0]),
      expected);
}

TEST(CastForms, ScalesBroadcastByTheirShape) {
  struct Case {
    std::vector<std::int64_t> input, shape;
  };
  for (const Case& c : {Case{{4, 6}, {1, 6}}, Case{{4, 6}, {4, 1}}, Case{{4, 6}, {6}}, Case{{2, 4, 6}, {1, 4, 1}},
                        Case{{2, 4, 6}, {2, 1, 6}}, Case{{2, 4, 6}, {2, 4, 1}}, Case{{2, 4, 6}, {2, 4, 6}},
                        Case{{6}, {6}}, Case{{1, 6}, {1, 1}}})
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const at::Tensor x = form_input(c.input, type);
      const std::int64_t n = c10::multiply_integers(c.shape);
      const at::Tensor scale = at::arange(1, n + 1, at::kFloat) * 0.37f;
      const auto expected = expected_codes(x, scale.view(c.shape));
      std::vector<double> list;
      for (std::int64_t i = 0; i < n; ++i) list.push_back(scale[i].item<float>());
      EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "", {x, hpu(scale), false, false, code(kE4M3), c.shape})[0]), expected)
          << c.shape;
      EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "", {x, hpu(scale.view(c.shape)), false, false, code(kE4M3)})[0]),
                expected)
          << c.shape;
      EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "scalar_list",
                              {x, c10::List<double>(list), false, false, code(kE4M3), c.shape})[0]),
                expected)
          << c.shape;
      // and on the way out
      const at::Tensor q = call("cast_to_fp8_v2", "", {x, kNone, false, false, code(kE4M3)})[0];
      const at::Tensor y = call("cast_from_fp8", "", {q, hpu(scale), code(at::kFloat), c.shape})[0];
      EXPECT_TRUE(same_bits(y, (values_of(q) * scale.view(c.shape).to(at::kDouble)).to(at::kFloat))) << c.shape;
    }
}

TEST(CastForms, AScaleThatDoesNotFitThrows) {
  const at::Tensor x = form_input({4, 6});
  EXPECT_REFUSED(
      call("cast_to_fp8_v2", "", {x, at::ones({3}), false, false, code(kE4M3), std::vector<std::int64_t>{1, 6}}),
      "Number of scale elements (3) is not equal to number of scale_shape elements (6).");
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {x, at::ones({5}), false, false, code(kE4M3)}),
                 "broadcasts to the input's sizes [4, 6], got sizes [5]");
  EXPECT_REFUSED(call("cast_to_fp8_hybrid", "", {x, kNone, at::ones({5}), false, false}),
                 "broadcasts to the input's sizes [4, 6], got sizes [5]");
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {x, at::ones({3, 4, 6}), false, false, code(kE4M3)}),
                 "broadcasts to the input's sizes");
  EXPECT_REFUSED(call("cast_from_fp8", "", {x.to(kE4M3), at::ones({3, 4, 6}), code(at::kFloat)}),
                 "broadcasts to the input's sizes");
}

TEST(Amax, IsTheUnscaledMaximumOrAbsent) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const at::Tensor& x :
         {form_input({4, 6}, type), form_input({4, 6}, type).t(), form_input({2, 4, 6}, type).transpose(0, 2),
          form_input({0, 3}, type), form_input({}, type)}) {
      const auto with = call("cast_to_fp8_v2", "scalar", {x, 0.25, false, true, code(kE4M3)});
      EXPECT_EQ(with[1].scalar_type(), at::kFloat);
      EXPECT_EQ(with[1].dim(), 0);
      EXPECT_EQ(with[1].device(), kHpu);
      EXPECT_EQ(with[1].item<float>(), x.numel() == 0 ? 0.0f : x.cpu().to(at::kFloat).abs().max().item<float>());
      EXPECT_EQ(call("cast_to_fp8_v2", "scalar", {x, 0.25, false, false, code(kE4M3)})[1].sizes(),
                at::IntArrayRef({0}));
    }
  const auto odd_shape =
      call("cast_to_fp8_v2", "", {form_input({2, 4, 6}), at::rand({1, 4, 1}), false, true, code(kE4M3)});
  EXPECT_EQ(odd_shape[1].item<float>(), form_input({2, 4, 6}).abs().max().item<float>());
}

TEST(CastForms, StridedInputsGiveTheirValues) {
  for (const at::Tensor& x :
       {form_input({4, 6}).t(), form_input({8, 6}).slice(0, 0, 8, 2), form_input({4, 12}).slice(1, 0, 12, 2),
        form_input({3, 4, 5}).permute({2, 0, 1}), form_input({1, 6}).expand({4, 6})}) {
    const at::Tensor q = call("cast_to_fp8_v2", "", {x, kNone, false, false, code(kE4M3)})[0];
    EXPECT_EQ(q.sizes(), x.sizes());
    EXPECT_EQ(codes_of(q), expected_codes(x, at::ones({1})));
    EXPECT_TRUE(same_bits(call("cast_from_fp8", "scalar", {q.transpose(0, 1), 0.5, code(at::kFloat)})[0],
                          (values_of(q) * 0.5).to(at::kFloat).transpose(0, 1)));
  }
}

TEST(Fp8Inputs, KeepTheirTypeAndHaveNoAmax) {
  const at::Tensor q = form_input({4, 6}).to(kE4M3), e5m2 = form_input({4, 6}).to(at::kFloat8_e5m2);
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {q, kNone, false, true, code(kE4M3)}),
                 "CastToFp8V2 must have no amax for float8.");
  EXPECT_REFUSED(
      call("cast_to_fp8_v2", "", {e5m2, kNone, false, false, code(kE4M3)}),
      "CastToFp8V2 input and output must have the same dtype for float8, but are Float8_e5m2 and Float8_e4m3fn");
  for (const bool stochastic : {false, true}) {
    EXPECT_TRUE(same_bits(call("cast_to_fp8_v2", "", {q, kNone, stochastic, false, code(kE4M3)})[0], q));
    EXPECT_TRUE(
        same_bits(call("cast_to_fp8_v2", "scalar", {e5m2, 1.0, stochastic, false, code(at::kFloat8_e5m2)})[0], e5m2));
  }
  const at::Tensor doubled = call("cast_to_fp8_v2", "scalar", {q, 2.0, false, false, code(kE4M3)})[0];
  EXPECT_TRUE(same_bits(values_of(doubled), (values_of(q) * 2).clamp(-448, 448)));
}

TEST(CastForms, OtherTypesAreRefused) {
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {at::ones({2}, on_hpu(at::kDouble)), kNone, false, false, code(kE4M3)}),
                 "[cast_to_fp8_v2]", "got Double");
  EXPECT_REFUSED(call("cast_to_fp8_v2", "", {at::ones({2}, on_hpu()), kNone, false, false, code(at::kBFloat16)}),
                 "[cast_to_fp8_v2]", "got BFloat16");
  EXPECT_REFUSED(call("cast_from_fp8", "scalar", {at::ones({2}, on_hpu()), 1.0, code(at::kFloat)}), "[cast_from_fp8]",
                 "got Float");
  EXPECT_REFUSED(call("cast_from_fp8", "scalar", {at::ones({2}, on_hpu()).to(kE4M3), 1.0, code(at::kInt)}),
                 "[cast_from_fp8]", "got Int");
}

TEST(DeprecatedCast, FillsOutAndAmax) {
  const at::Tensor x = form_input({4, 6});
  at::Tensor out = at::empty({4, 6}, on_hpu(kE4M3)), amax = at::full({1}, -1.0f, on_hpu()),
             none = at::empty({0}, on_hpu());
  const auto results = call("cast_to_fp8", "", {x, at::full({1}, 0.5f), false, out, amax});
  EXPECT_EQ(results[0].unsafeGetTensorImpl(), out.unsafeGetTensorImpl());
  EXPECT_EQ(codes_of(out), expected_codes(x, at::full({1}, 0.5f)));
  EXPECT_EQ(amax.item<float>(), x.abs().max().item<float>());
  call("cast_to_fp8", "", {x, kNone, false, out, none});
  EXPECT_EQ(codes_of(out), expected_codes(x, at::ones({1})));
  EXPECT_REFUSED(call("cast_to_fp8", "", {form_input({2, 2}), kNone, false, out, none}), "[cast_to_fp8]", "sizes");
  EXPECT_REFUSED(call("cast_to_fp8", "", {x.to(at::kHalf), kNone, false, out, none}), "[cast_to_fp8]", "Half");
  EXPECT_REFUSED(call("cast_to_fp8", "", {x, kNone, false, out, at::empty({1}, on_hpu(at::kHalf))}), "[cast_to_fp8]",
                 "amax");
}

at::Tensor scale_for(const at::Tensor& x, std::int64_t max_mode, std::int64_t scale_mode, std::int64_t axis = 0,
                     bool keepdim = false, double full = 1, double backoff = 1) {
  return call("calculate_scale_for_cast", "", {x, max_mode, scale_mode, axis, keepdim, full, backoff})[0];
}

TEST(CalculateScale, FollowsTheFormulas) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = form_input({3, 4, 5}, type), host = x.cpu().to(at::kDouble);
    const double tolerance = type == at::kFloat ? 1e-7 : 5e-3;
    const auto near = [&](const at::Tensor& got, const at::Tensor& expected) {
      EXPECT_EQ(got.scalar_type(), type);
      EXPECT_EQ(got.sizes(), expected.sizes());
      EXPECT_TRUE(at::allclose(got.cpu().to(at::kDouble), expected, tolerance, 0));
    };
    EXPECT_TRUE(same_bits(scale_for(x, 0, 0), x));
    near(scale_for(x, 1, 0, 0, false, 240, 0.5), (host.abs().max() / 120).view({1}));
    for (const std::int64_t axis : {0, 1, 2, -1, -3}) {
      near(scale_for(x, 2, 0, axis, false, 448), host.abs().amax(axis) / 448);
      near(scale_for(x, 2, 0, axis, true, 448, 0.9), host.abs().amax(axis, true) / 448 / 0.9);
    }
    const at::Tensor p = scale_for(x, 2, 1, 1, false, 240),
                     expected = at::exp2(at::ceil(at::log2(host.abs().amax(1) / 240)));
    EXPECT_TRUE(same_bits(p, expected.to(type)));
  }
}

TEST(CalculateScale, PowersOfTwoStay) {
  const at::Tensor x = at::tensor({0.25, 1.0, 8.0, 1.0000001, 0.0, 5.0}, on_hpu());
  EXPECT_TRUE(same_bits(scale_for(x, 0, 1), at::tensor({0.25, 1.0, 8.0, 2.0, 0.0, 8.0}, at::kFloat)));
}

TEST(CalculateScale, BadModesThrow) {
  EXPECT_REFUSED(scale_for(form_input({2, 2}), 3, 0), "maxMode", "got 3");
  EXPECT_REFUSED(scale_for(form_input({2, 2}), 1, 2), "scaleMode", "got 2");
  EXPECT_REFUSED(scale_for(form_input({2, 2}), 2, 0, 2), "reduceAxis", "got 2");
  EXPECT_REFUSED(scale_for(at::ones({2}, on_hpu(at::kLong)), 1, 0), "got Long");
  EXPECT_NE(error_of([] { scale_for(form_input({}), 2, 0); }), "");
}

}  // namespace
}  // namespace fp8::test
