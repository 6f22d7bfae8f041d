// SPDX-License-Identifier: Apache-2.0
// Gaudi2's E4M3 is IEEE-like: code 0x78 is infinity, 0x79 to 0x7F are NaN (with the sign of bit 7). On the other
// devices the same codes are 256 to 448 and NaN. Every operator that reads codes, against the formats in f64.
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using at::Tensor;
using runtime::DeviceKind;
using runtime::DeviceKindScope;

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
