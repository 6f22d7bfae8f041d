// SPDX-License-Identifier: Apache-2.0
// The casts' other arguments: the forms of a scale, scale_shape, amax, fp8 inputs, strides, and
// calculate_scale_for_cast.
#include "fp8/runtime/ops/cast/cast.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

at::Tensor form_input(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  torch::manual_seed(41);
  return (at::randn(sizes) * 3).to(type).to(kHpu);
}

/// The rule with a factor that broadcasts: codes of round(x * round(scale)).
std::vector<int> expected_codes(const at::Tensor& x, const at::Tensor& scale, double max = 448) {
  const at::Tensor wide = x.cpu().to(at::kDouble).contiguous(),
                   factor = scale.cpu().to(x.scalar_type()).to(at::kDouble).expand(x.sizes()).contiguous();
  std::vector<int> codes;
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    codes.push_back(code_of(
        rounded(wide.const_data_ptr<double>()[i] * factor.const_data_ptr<double>()[i], type_of(x.scalar_type())), false,
        max));
  }
  return codes;
}

TEST(CastForms, TensorScalarAndListAreOne) {
  const at::Tensor x = form_input({5, 7});
  const auto expected = expected_codes(x, at::full({1}, 0.7f));
  for (const at::IValue& scale : {at::IValue(at::full({1}, 0.7f)), at::IValue(at::full({}, 0.7f, on_hpu())),
                                  at::IValue(at::full({1}, 0.7f, on_hpu(at::kBFloat16)))}) {
    EXPECT_EQ(codes_of(call("cast_to_fp8_v2", "", {x, scale, false, false, code(kE4M3)})[0]), expected);
  }
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
                        Case{{6}, {6}}, Case{{1, 6}, {1, 1}}}) {
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
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
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
