// SPDX-License-Identifier: Apache-2.0
// Arithmetic, comparisons, sums, isclose and allclose of float8 tensors on hpu.

#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using at::Tensor;
using runtime::DeviceKind;
using runtime::DeviceKindScope;

TEST(Float8Mul, ByNumbersZeroDimTensorsAndItsLike) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({4, 6}, type, 1), y = random_codes({6}, type, 2);
    EXPECT_TRUE(same_bits(x * 1.0, x));
    EXPECT_EQ((x * 3).scalar_type(), type);
    EXPECT_EQ(codes_of(x * 1.7), codes_for(values_of(x).to(at::kFloat) * 1.7f, type));
    EXPECT_EQ(codes_of(x * torch::tensor(1.7f, on_hpu())), codes_for(values_of(x).to(at::kFloat) * 1.7f, type));
    EXPECT_EQ(codes_of(2.0 * x), codes_for(values_of(x) * 2, type));
    EXPECT_EQ(codes_of(x * y), codes_for(values_of(x) * values_of(y), type));
    Tensor in_place = x.clone();
    const void* data = in_place.data_ptr();
    in_place.mul_(0.5);
    EXPECT_EQ(in_place.data_ptr(), data);
    EXPECT_EQ(codes_of(in_place), codes_for(values_of(x) * 0.5, type));
  }
}

TEST(Float8Mul, SaturatesAsTheDeviceDoes) {
  const Tensor x = random_codes({64}, kE4M3, 1);
  EXPECT_EQ(codes_of(x * 1000.0), codes_for(values_of(x) * 1000, kE4M3, 448));
  const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
  EXPECT_EQ(codes_of(x * 1000.0), codes_for(values_of(x) * 1000, kE4M3, 240));
}

TEST(Float8Mul, AZeroDimFloat8FactorHasItsValue) {
  const Tensor x = at::randn({5}, on_hpu()), half = at::full({}, 0.5f, on_hpu()).to(kE4M3);
  EXPECT_TRUE(same_bits(x * half, x * 0.5));
}

TEST(Float8Mul, PromotionsThatPyTorchRefusesStayRefused) {
  const Tensor x = random_codes({6}, kE4M3, 1);
  EXPECT_REFUSED(x * at::ones({6}, on_hpu()), "Promotion for Float8 Types is not supported");
  EXPECT_REFUSED(x * random_codes({6}, kE5M2, 1), "Promotion for Float8 Types is not supported");
}

TEST(Float8Mul, ATaggedWeightIsRefusedByName) {
  Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "layer", std::make_shared<CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(w * 2.0, "aten::mul", "module 'layer'");
}

TEST(Float8Mul, OtherDtypesAsBefore) {
  const Tensor x = at::randn({4, 3}), y = at::randn({3});
  EXPECT_TRUE(same_bits(hpu(x) * hpu(y), x * y));
  EXPECT_TRUE(same_bits(hpu(x) * 2, x * 2));
  Tensor out = at::empty({4, 3}, on_hpu()), in_place = hpu(x);
  at::mul_out(out, hpu(x), hpu(y));
  EXPECT_TRUE(same_bits(out, x * y));
  EXPECT_TRUE(same_bits(in_place.mul_(3), x * 3));
  EXPECT_TRUE(same_bits(at::mul(hpu(x), at::Scalar(1.5)), x * 1.5));
}

/// Every code's value is exact in f64; the device's f32 result is f64's, rounded once.
Tensor f32(const Tensor& v) { return v.to(at::kFloat).to(at::kDouble); }

TEST(Float8Arithmetic, IsThatOfTheValuesInF32RoundedOnce) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({4, 6}, type, 1), y = random_codes({6}, type, 2), half = at::full({}, 0.5f, on_hpu());
    const Tensor a = values_of(x), b = values_of(y);
    const auto same = [&](const Tensor& got, const Tensor& want, const char* what) {
      EXPECT_EQ(got.scalar_type(), type) << what;
      EXPECT_EQ(got.device(), kHpu) << what;
      EXPECT_EQ(codes_of(got), codes_for(f32(want), type)) << what;
    };
    same(x + y, a + b, "add");
    same(at::add(x, y, 2), a + 2 * b, "add with alpha");
    same(x + 1.5, a + 1.5, "add a number");
    same(x + half, a + 0.5, "add a 0-dim tensor");
    same(x - y, a - b, "sub");
    same(x - 1, a - 1, "sub a number");
    same(1.0 - x, 1 - a, "rsub");
    same(x / 3, f32(a) / 3, "div by a number");
    same(-x, -a, "neg");
    same(x.abs(), a.abs(), "abs");
    const Tensor ones = at::full({6}, 2.f).to(type).to(kHpu);
    same(x / ones, a / 2, "div");
    same(at::div(x, ones, "floor"), at::floor(a / 2), "div with a rounding mode");
  }
}

TEST(Float8Arithmetic, InPlaceAndIntoAnOut) {
  const Tensor x = random_codes({4, 6}, kE4M3, 1), y = random_codes({4, 6}, kE4M3, 2), a = values_of(x),
               b = values_of(y);
  Tensor z = x.clone();
  const void* data = z.data_ptr();
  const auto* impl = z.unsafeGetTensorImpl();
  EXPECT_EQ(z.add_(y).unsafeGetTensorImpl(), impl);
  EXPECT_EQ(z.data_ptr(), data);
  EXPECT_EQ(codes_of(z), codes_for(a + b, kE4M3));
  z = x.clone();
  EXPECT_EQ(codes_of(z.sub_(1)), codes_for(a - 1, kE4M3));
  z = x.clone();
  EXPECT_EQ(codes_of(z.neg_()), codes_for(-a, kE4M3));
  z = x.clone();
  EXPECT_EQ(codes_of(z.abs_()), codes_for(a.abs(), kE4M3));
  Tensor out = at::empty({0}, on_hpu(kE4M3)), wide = at::empty({4, 6}, on_hpu()),
         flags = at::empty({0}, on_hpu(at::kBool));
  EXPECT_EQ(codes_of(at::add_out(out, x, y)), codes_for(a + b, kE4M3));
  EXPECT_EQ(out.sizes(), x.sizes());
  at::neg_out(wide, x);
  EXPECT_TRUE(same_bits(wide, (-a).to(at::kFloat)));
  at::lt_out(flags, x, y);
  EXPECT_TRUE(same_bits(flags, a < b));
  Tensor sum = at::ones({3}, on_hpu());
  sum.add_(at::full({}, 0.5f, on_hpu()).to(kE4M3));
  EXPECT_TRUE(same_bits(sum, at::full({3}, 1.5f)));
  Tensor whole = at::zeros({4, 6}, on_hpu(at::kInt));
  EXPECT_REFUSED(at::add_out(whole, x, y), "can't be cast");
}

TEST(Float8Arithmetic, SaturatesAsTheDeviceDoes) {
  const Tensor big = at::full({4}, 200.f).to(kE4M3).to(kHpu);
  EXPECT_EQ(codes_of(big + 1000.0), codes_for(at::full({4}, 448.0), kE4M3));
  EXPECT_EQ(codes_of(big - 1000.0), codes_for(at::full({4}, -448.0), kE4M3));
  const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
  EXPECT_EQ(codes_of(big + big), codes_for(at::full({4}, 240.0), kE4M3, 240));
}

TEST(Float8Comparison, IsThatOfTheValues) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({5, 7}, type, 3), y = random_codes({7}, type, 4), a = values_of(x), b = values_of(y);
    EXPECT_TRUE(same_bits(x == y, a == b));
    EXPECT_TRUE(same_bits(x != y, a != b));
    EXPECT_TRUE(same_bits(x < y, a < b));
    EXPECT_TRUE(same_bits(x <= y, a <= b));
    EXPECT_TRUE(same_bits(x > y, a > b));
    EXPECT_TRUE(same_bits(x >= y, a >= b));
    EXPECT_TRUE(same_bits(x == 1, a == 1));
    EXPECT_TRUE(same_bits(x < 0.5, a < 0.5));
    EXPECT_TRUE(same_bits(x.clone().gt_(0).to(at::kFloat), (a > 0).to(at::kFloat)));
  }
  const Tensor zeros = hpu(at::tensor({0, 128}, at::kByte).view(kE4M3)),
               nan = hpu(at::full({1}, 127, at::kByte).view(kE4M3));
  EXPECT_TRUE((zeros[0] == zeros[1]).item<bool>());
  EXPECT_FALSE((nan == nan).item<bool>());
  EXPECT_TRUE(nan.isnan().item<bool>());
}

TEST(Float8Sum, IsTheF32SumInTheDtypeAskedForOrItsOwn) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({3, 5}, type, 5), a = values_of(x);
    EXPECT_EQ(codes_of(x.sum()), codes_for(f32(a.sum()), type));
    EXPECT_EQ(codes_of(x.sum(0)), codes_for(f32(a.sum(0)), type));
    EXPECT_EQ(x.sum(at::IntArrayRef{1}, true).sizes(), at::IntArrayRef({3, 1}));
    EXPECT_TRUE(same_bits(x.sum(at::kFloat), a.sum().to(at::kFloat)));
    EXPECT_TRUE(same_bits(x.sum(at::IntArrayRef{1}, false, at::kFloat), a.sum(1).to(at::kFloat)));
    EXPECT_EQ(codes_of(x.sum(at::IntArrayRef{1}, false, kE5M2)), codes_for(f32(a.sum(1)), kE5M2));
    EXPECT_EQ(codes_of(x.sum()), codes_of(call("sum_fp8", "", {x})[0])) << "the vendor's operator";
    Tensor out = at::empty({3}, on_hpu());
    at::sum_out(out, x, at::IntArrayRef{1}, false, at::kFloat);
    EXPECT_TRUE(same_bits(out, a.sum(1).to(at::kFloat)));
  }
}

TEST(Float8Arithmetic, WhatPyTorchRefusesAndWhatATagRefusesStayRefused) {
  const Tensor x = random_codes({6}, kE4M3, 1), y = random_codes({6}, kE5M2, 1), plain = at::ones({6}, on_hpu());
  for (const auto& run : std::vector<std::function<void()>>{[&] { x + y; }, [&] { x - plain; },
                                                            [&] { (void)(x < plain); }, [&] { plain / x; }})
    EXPECT_TRUE(throws_with({"Promotion for Float8 Types is not supported"}, run));
  EXPECT_REFUSED(x + x.cpu(), "hpu:0 and cpu!");
  Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "layer", std::make_shared<CodesHandler>(0.5), 0.5);
  for (const auto& run :
       std::vector<std::function<void()>>{[&] { w + 1; }, [&] { w - w; }, [&] { w / 2; }, [&] { -w; }, [&] { w.abs(); },
                                          [&] { (void)(w == 1); }, [&] { w.sum(); }, [&] { w.isnan(); }})
    EXPECT_TRUE(throws_with({"module 'layer'"}, run));
}

TEST(Float8Arithmetic, OtherDtypesAsBefore) {
  const Tensor a = at::randn({3, 4}), b = at::randn({4}), i = at::randint(1, 9, {3, 4}, at::kLong);
  EXPECT_TRUE(same_bits(hpu(a) + hpu(b), a + b));
  EXPECT_TRUE(same_bits(at::add(hpu(a), hpu(b), 0.5), at::add(a, b, 0.5)));
  EXPECT_TRUE(same_bits(hpu(i) / 2, i / 2));
  EXPECT_TRUE(same_bits(at::div(hpu(i), 2, "trunc"), at::div(i, 2, "trunc")));
  EXPECT_TRUE(same_bits(1 - hpu(a), 1 - a));
  EXPECT_TRUE(same_bits(-hpu(a), -a));
  EXPECT_TRUE(same_bits(hpu(a).sum(at::IntArrayRef{0, 1}, true), a.sum(at::IntArrayRef{0, 1}, true)));
  EXPECT_TRUE(same_bits(hpu(i).sum(), i.sum()));
  EXPECT_TRUE(same_bits(hpu(a) < 0, a < 0));
  EXPECT_TRUE(same_bits(hpu(a).clone().eq_(hpu(a)), at::ones({3, 4})));
  EXPECT_TRUE(same_bits(hpu(at::complex(a, a)).abs(), at::complex(a, a).abs()));
  EXPECT_TRUE(same_bits(hpu(a.to(at::kBFloat16)) + hpu(b), a.to(at::kBFloat16) + b));
}

TEST(Float8IsClose, ComparesValues) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({4, 6}, type, 1);
    EXPECT_TRUE(at::allclose(x, x.clone()));
    const Tensor y = x * 1.5, expected = at::isclose(values_of(x), values_of(y), 0.1, 0.2);
    EXPECT_TRUE(same_bits(at::isclose(x, y, 0.1, 0.2), expected));
    EXPECT_FALSE(at::allclose(x, y));
    EXPECT_TRUE(at::allclose(x, y, 0.6, 0.1));
    const c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(at::isclose(x, y, 0.1, 0.2), expected));
  }
  const Tensor zeros = hpu(at::tensor({0, 128}, at::kByte).view(kE4M3));
  EXPECT_TRUE(at::allclose(zeros[0], zeros[1])) << "-0 equals 0";
  const Tensor nan = hpu(at::full({1}, 127, at::kByte).view(kE4M3));
  EXPECT_FALSE(at::allclose(nan, nan));
  EXPECT_TRUE(at::allclose(nan, nan, 1e-5, 1e-8, true));
}

TEST(Float8IsClose, ATaggedWeightsValuesHaveItsScale) {
  const Tensor values = hpu(at::tensor({1.f, 2.f, 4.f, -8.f})).view({2, 2});
  Tensor a = values.clone(), b = values.clone(), twice = values * 2;
  convert_to_codes(a, "a", std::make_shared<CodesHandler>(0.5), 0.5);
  convert_to_codes(b, "b", std::make_shared<CodesHandler>(0.25), 0.25);    // other codes, the same values
  convert_to_codes(twice, "c", std::make_shared<CodesHandler>(1.0), 1.0);  // a's codes, other values
  EXPECT_TRUE(at::allclose(a, b));
  EXPECT_FALSE(at::allclose(a, twice));
}

TEST(Float8IsClose, OtherDtypesAsBefore) {
  const Tensor x = at::randn({4}), y = x + 1e-9;
  EXPECT_TRUE(at::allclose(hpu(x), hpu(y)));
  EXPECT_TRUE(same_bits(at::isclose(hpu(x), hpu(x + 1)), at::isclose(x, x + 1)));
  EXPECT_REFUSED(at::isclose(random_codes({4}, kE4M3, 1), hpu(x)), "did not match");
}

// Gaudi2's E4M3 is IEEE-like: code 0x78 is infinity, 0x79 to 0x7F are NaN (with the sign of bit 7). On the other
// devices the same codes are 256 to 448 and NaN. Every operator that reads codes, against the formats in f64.

/// The value of an E4M3 code on Gaudi2.
double ieee(int code) {
  const int magnitude = code & 127;
  const double v = magnitude < 0x78 ? value_of(magnitude, false) : magnitude == 0x78 ? HUGE_VAL : std::nan("");
  return code & 128 ? -v : v;
}

Tensor codes_on_hpu(const std::vector<std::int64_t>& codes) {
  return hpu(at::tensor(codes, at::kLong).to(at::kByte).view(kE4M3));
}

Tensor all_codes() {
  std::vector<std::int64_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[static_cast<std::size_t>(i)] = i;
  return codes_on_hpu(codes);
}

void expect_ieee(const Tensor& got, double scale = 1) {
  const Tensor host = got.cpu().to(at::kDouble);
  for (int i = 0; i < 256; ++i) {
    const double v = host[i].item<double>(), want = ieee(i) * scale;
    EXPECT_TRUE(std::isnan(want) ? std::isnan(v) : v == want) << i << " got " << v;
  }
}

TEST(Gaudi2Codes, CastFromFp8GivesInfinityAndNan) {
  const Tensor codes = all_codes();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const DeviceKindScope gaudi2(DeviceKind::gaudi2);
    expect_ieee(call("cast_from_fp8", "", {codes, kNone, code(type)})[0]);
    expect_ieee(call("cast_from_fp8", "scalar", {codes, 0.5, code(type)})[0], 0.5);
  }
  for (const auto kind : {DeviceKind::gaudi3}) {
    const DeviceKindScope scope(kind);
    const Tensor v = call("cast_from_fp8", "", {codes, kNone, code(at::kFloat)})[0];
    EXPECT_EQ(v[0x78].item<float>(), 256.0f);
    EXPECT_EQ(v[0xFE].item<float>(), -448.0f);
  }
}

TEST(Gaudi2Codes, ProductsConvolutionsAndSumsMeetThem) {
  const DeviceKindScope gaudi2(DeviceKind::gaudi2);
  const Tensor x = codes_on_hpu({0x38, 0x78, 0x38, 0x38, 0x38, 0x38}).view({3, 2}),
               w = codes_on_hpu({0x38, 0x38, 0x38, 0xF9}).view({2, 2});  // 0x38 = 1
  const Tensor y = call("fp8_gemm_v2", "", {x, false, w, true, kNone, code(at::kFloat)})[0].cpu();
  EXPECT_EQ(y[0][0].item<float>(), HUGE_VALF);
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(std::isnan(y[r][1].item<float>()));
  EXPECT_EQ(y[1][0].item<float>(), 2.0f);
  EXPECT_EQ(y[2][0].item<float>(), 2.0f);
  const Tensor image = codes_on_hpu({0x38, 0x78, 0x38, 0x38}).view({1, 1, 2, 2}),
               kernel = codes_on_hpu({0x38}).view({1, 1, 1, 1});
  const Tensor conv = call("conv2d_fp8", "", {image, kernel})[0].cpu().to(at::kFloat).flatten();
  EXPECT_EQ(conv[0].item<float>(), 1.0f);
  EXPECT_EQ(conv[1].item<float>(), HUGE_VALF);
  EXPECT_EQ(call("sum_fp8", "", {codes_on_hpu({0x38, 0x78}), kNone, false, code(at::kFloat)})[0].item<float>(),
            HUGE_VALF);
  EXPECT_TRUE(
      std::isnan(call("sum_fp8", "", {codes_on_hpu({0xF8, 0x78}), kNone, false, code(at::kFloat)})[0].item<float>()));
}

TEST(Gaudi2Codes, SoftmaxAttentionAndExpertsMeetThem) {
  const DeviceKindScope gaudi2(DeviceKind::gaudi2);
  const Tensor row = codes_on_hpu({0x38, 0x79}).view({1, 2});
  const Tensor p = call("softmax_fp8", "Scalar_scales", {row, -1, 1.0, 1.0})[0];
  for (const int c : codes_of(p)) EXPECT_EQ(c & 0x7F, 0x7F) << "NaN";
  const Tensor q = codes_on_hpu({0x38, 0x38, 0x38, 0x38}).view({1, 2, 2}),
               v = codes_on_hpu({0x38, 0x38, 0x78, 0x38}).view({1, 2, 2});
  const Tensor out =
      call("fp8_sdpa_fwd", "",
           {q, q, v, kNone, 0.0, 1.0, false, "none", kNone, kNone, kNone, kNone, kNone, kNone, false, kNone, "left"})[0]
          .cpu()
          .to(at::kFloat)
          .view({2, 2});
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(out[r][0].item<float>(), HUGE_VALF);
    EXPECT_EQ(out[r][1].item<float>(), 1.0f);
  }
  const Tensor hidden = codes_on_hpu({0x38, 0x38, 0x38, 0x7A}).view({2, 2}),
               ones = codes_on_hpu({0x38, 0x38, 0x38, 0x38}).view({2, 2});
  const c10::List<Tensor> w12({at::cat({ones, ones})}), w3({ones});
  const c10::List<double> one({1.0});
  const Tensor moe = call("mixture_of_experts", "fp8_fused_weights_scalars_dynamic",
                          {hidden, at::zeros({2, 1}, on_hpu(at::kInt)), at::ones({2, 1}, on_hpu()), w12, w3, 1.0, one,
                           one, true, "relu", 0, 0})[0]
                         .cpu()
                         .to(at::kFloat);
  EXPECT_FALSE(std::isnan(moe[0][0].item<float>()));
  EXPECT_TRUE(std::isnan(moe[1][0].item<float>()));
}

TEST(Gaudi2Codes, AnOptimizersMomentsMeetThem) {
  const auto step = [](std::int64_t moment) {
    const Tensor w = at::zeros({2}, on_hpu()), m = codes_on_hpu({0x38, moment}), v = at::ones({2}, on_hpu()),
                 g = at::zeros({2}, on_hpu());
    const auto list = [](const Tensor& t) { return c10::List<Tensor>({t}); };
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("hpu::optimizer_adamw", "");
    torch::jit::Stack args{list(g),
                           list(w),
                           list(m),
                           list(v),
                           at::full({1}, -1.0, on_hpu()),
                           0.5,
                           0.5,
                           1e-6,
                           at::ones({1}, on_hpu()),
                           false,
                           list(at::ones({1}, on_hpu())),
                           kNone};
    op.callBoxed(args);
    return w.cpu();
  };
  EXPECT_TRUE(at::isfinite(step(0x7A)).all().item<bool>()) << "320 on gaudi3";
  const DeviceKindScope gaudi2(DeviceKind::gaudi2);
  EXPECT_TRUE(same_bits(at::isnan(step(0x7A)), at::tensor({0, 1}, at::kInt).to(at::kBool)));
}

TEST(Gaudi2Codes, ConversionsOnTheDeviceReadThemAndWriteNone) {
  const Tensor codes = all_codes();
  const std::vector<float> values = {300.f, -1e9f, 240.f, 1.f, NAN, HUGE_VALF};
  {
    const DeviceKindScope gaudi2(DeviceKind::gaudi2);
    expect_ieee(codes.to(at::kFloat));
    expect_ieee(codes.view({16, 16}).t().t().to(at::kBFloat16).flatten());
    expect_ieee(codes.to(at::kCPU, at::kDouble));
    EXPECT_EQ(codes_of(hpu(at::tensor(values)).to(kE4M3)), (std::vector<int>{0x77, 0xF7, 0x77, 0x38, 0x7F, 0x77}));
    EXPECT_TRUE(same_bits(codes.clone(), codes)) << "a copy of codes is a copy";
    EXPECT_EQ(codes.cpu().to(at::kFloat)[0x78].item<float>(), 256.0f) << "the host reads ocp";
  }
  EXPECT_EQ(codes.to(at::kFloat)[0x78].item<float>(), 256.0f);
}

TEST(Gaudi2Codes, ValuesThatFillSaturateBelowThem) {
  const DeviceKindScope gaudi2(DeviceKind::gaudi2);
  const auto options = on_hpu(kE4M3);
  const Tensor mask = hpu(at::tensor({1, 0}, at::kInt).to(at::kBool));
  EXPECT_EQ(codes_of(at::full({2}, 300.0, options)), (std::vector<int>{0x77, 0x77}));
  EXPECT_EQ(codes_of(at::full({1}, -1000, options)), (std::vector<int>{0xF7}));
  EXPECT_EQ(codes_of(at::full({1}, NAN, options)), (std::vector<int>{0x7F}));
  const Tensor x = at::full({2}, 1.0, options);
  EXPECT_EQ(codes_of(x), (std::vector<int>{0x38, 0x38}));
  EXPECT_EQ(codes_of(x.clone().fill_(at::full({}, 300.0f))), (std::vector<int>{0x77, 0x77}));
  EXPECT_EQ(codes_of(x.clone().fill_(HUGE_VAL)), (std::vector<int>{0x77, 0x77}));
  EXPECT_NE(error_of([&] { x.masked_fill(mask, 300.0); }), "") << "upstream has no kernel";
  EXPECT_EQ(codes_of(at::constant_pad_nd(x, {0, 1}, 300.0)), (std::vector<int>{0x38, 0x38, 0x77}));
}

TEST(Gaudi2Codes, ArithmeticOnCodesReadsThem) {
  const DeviceKindScope gaudi2(DeviceKind::gaudi2);
  const Tensor x = codes_on_hpu({0x38, 0x78, 0x79});
  EXPECT_TRUE(same_bits(at::isnan(x), at::tensor({0, 0, 1}, at::kInt).to(at::kBool)));
  EXPECT_TRUE(same_bits(at::isinf(x), at::tensor({0, 1, 0}, at::kInt).to(at::kBool)));
  EXPECT_EQ(codes_of(x * 1.0), (std::vector<int>{0x38, 0x77, 0x7F})) << "infinity saturates, NaN stays NaN";
}

}  // namespace
}  // namespace fp8::test
