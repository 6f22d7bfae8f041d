// SPDX-License-Identifier: Apache-2.0
// fp8 attention: the formula in f64 on the values of the codes, P and dS cast in between by searching the nearest
// value. Where f32 and f64 disagree about a tie, the code may be one step off; the data here has no such ties but for P
// itself, whose codes are checked one by one.
#include "runtime/ops/attention/sdpa_reference.h"

namespace fp8::test {
namespace {

using runtime::DeviceKind;
using runtime::DeviceKindScope;

/// q, k, v as codes with their dequantization multipliers, and P's multiplier into codes.
struct Codes {
  at::Tensor q, k, v;
  double d_q = 0.125, d_k = 0.25, d_v = 0.5, q_s = 128, scale = 0.35;
  Codes(at::IntArrayRef qs, at::IntArrayRef ks, at::IntArrayRef vs, at::ScalarType type)
      : q(random_codes(qs, type, 1)), k(random_codes(ks, type, 2)), v(random_codes(vs, type, 3)) {}
  at::Tensor p64(const std::optional<at::Tensor>& mask = {}) const {
    return probabilities(wide(q), wide(k), scale * d_q * d_k, mask);
  }
};

/// Every code of P is the nearest to P * scale, give or take a relative 1e-5 of P.
void expect_codes_of(const at::Tensor& codes, const at::Tensor& p, double scale, double max, const char* what) {
  const bool e5m2 = codes.scalar_type() == kE5M2;
  const auto got = codes_of(codes);
  const at::Tensor flat = p.contiguous();
  ASSERT_EQ(codes.sizes(), p.sizes()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double v = flat.const_data_ptr<double>()[i] * scale;
    const int low = code_of(v * (1 - 1e-5), e5m2, max), high = code_of(v * (1 + 1e-5), e5m2, max);
    ASSERT_TRUE(got[i] >= low && got[i] <= high) << what << " " << i << ": code " << got[i] << " for " << v;
  }
}

struct Form {
  const char* name;
  std::vector<std::int64_t> q, k, v;
  bool causal;
};
const Form kForms[] = {{"plain", {2, 3, 9, 16}, {2, 3, 13, 16}, {2, 3, 13, 8}, false},
                       {"causal", {1, 2, 75, 16}, {1, 2, 75, 16}, {1, 2, 75, 16}, true},
                       {"long", {1, 2, 70, 32}, {1, 2, 600, 32}, {1, 2, 600, 40}, false},
                       {"long causal", {1, 1, 400, 16}, {1, 1, 400, 16}, {1, 1, 400, 16}, true},
                       {"grouped", {2, 2, 3, 6, 16}, {2, 2, 1, 7, 16}, {2, 2, 1, 7, 16}, true},
                       {"one query", {2, 4, 1, 16}, {2, 4, 300, 16}, {2, 4, 300, 16}, false}};

at::Tensor mask_of(const Form& f) {
  const std::int64_t queries = f.q[f.q.size() - 2], keys = f.k[f.k.size() - 2];
  return f.causal ? causal_mask(queries, keys) : at::zeros({queries, keys}, at::kDouble);
}

struct Fp8Sdpa : ::testing::TestWithParam<std::tuple<at::ScalarType, DeviceKind>> {
  at::ScalarType type() const { return std::get<0>(GetParam()); }
  double max() const { return type() == kE5M2 ? 57344 : std::get<1>(GetParam()) == DeviceKind::gaudi2 ? 240 : 448; }
};

TEST_P(Fp8Sdpa, ForwardIsTheFormula) {
  const DeviceKindScope scope(std::get<1>(GetParam()));
  for (const Form& f : kForms) {
    Codes c(f.q, f.k, f.v, type());
    for (const double q_s : {128.0, 300.0}) {  // 300 saturates on gaudi2
      const auto r = call("fp8_sdpa_fwd", "",
                          {c.q, c.k, c.v, kNone, 0.0, c.scale, f.causal, "none", one(c.d_q), one(c.d_k), one(c.d_v),
                           one(q_s), kNone, one(1 / q_s), true, kNone, "left"});
      ASSERT_EQ(r.size(), 4u);
      EXPECT_EQ(r[0].scalar_type(), at::kBFloat16);
      EXPECT_EQ(r[1].scalar_type(), type());
      const at::Tensor p = c.p64(mask_of(f));
      expect_codes_of(r[1], p, q_s, max(), f.name);
      const at::Tensor cast = values_of(r[1]) * (static_cast<double>(static_cast<float>(1 / q_s)) * c.d_v),
                       v = wide(c.v);
      expect_rounded(r[0], at::matmul(cast, v), at::matmul(cast, v.abs()), f.name);
      EXPECT_NEAR(r[3].item<float>(), p.max().item<double>(), 1e-5);
      EXPECT_EQ(r[3].sizes(), at::IntArrayRef({1}));
    }
  }
}

TEST_P(Fp8Sdpa, TheRecomputingFormGivesTheSame) {
  const DeviceKindScope scope(std::get<1>(GetParam()));
  for (const Form& f : kForms) {
    Codes c(f.q, f.k, f.v, type());
    const at::Tensor p = c.p64(mask_of(f)), cast = rounded_fp8(p * c.q_s, type() == kE5M2, max()) * (c.d_v / c.q_s),
                     v = wide(c.v), exact = at::matmul(cast, v),
                     step = at::matmul(p, v.abs()) * c.d_v * (type() == kE5M2 ? 0.25 : 0.125) / 50;
    const auto r = call("fp8_sdpa_recomp_fwd", "",
                        {c.q, c.k, c.v, kNone, 0.0, c.scale, f.causal, true, "none", one(c.d_q), one(c.d_k), one(c.d_v),
                         one(c.q_s), kNone, kNone, true, true, kNone, "left"});  // no d_scale_s: 1 / q_scale_s
    EXPECT_TRUE(((wide(r[0]) - exact).abs() <= exact.abs() * 0x1p-8 + step + 1e-30).all().item<bool>()) << f.name;
    EXPECT_EQ(r[1].scalar_type(), at::kBFloat16);
    EXPECT_EQ(r[2].scalar_type(), at::kBFloat16);
    EXPECT_NEAR(r[4].item<float>(), p.max().item<double>(), 1e-5);
    const double amax_o = exact.abs().max().item<double>();
    EXPECT_NEAR(r[5].item<float>(), amax_o, amax_o * 5e-3);
  }
}

TEST_P(Fp8Sdpa, OutputsInFp8AreScaledAndSaturate) {
  const DeviceKindScope scope(std::get<1>(GetParam()));
  Codes c({2, 3, 9, 16}, {2, 3, 13, 16}, {2, 3, 13, 8}, type());
  for (const double q_o : {64.0, 1e6}) {
    const auto fwd = call("fp8_sdpa_fwd", "",
                          {c.q, c.k, c.v, kNone, 0.0, c.scale, false, "none", one(c.d_q), one(c.d_k), one(c.d_v),
                           one(c.q_s), one(q_o), kNone, false, kNone, "left"});
    EXPECT_EQ(fwd[0].scalar_type(), type());
    EXPECT_EQ(fwd[3].item<float>(), 0.0f);
    const at::Tensor o = at::matmul(values_of(fwd[1]) / c.q_s * c.d_v, wide(c.v)).contiguous();
    const auto got = codes_of(fwd[0]);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double v = o.const_data_ptr<double>()[i] * q_o;
      const int a = code_of(v * (1 - 1e-5), type() == kE5M2, max()),
                b = code_of(v * (1 + 1e-5), type() == kE5M2, max());
      ASSERT_TRUE(got[i] == a || got[i] == b) << v;
    }
    const auto recomp = call("fp8_sdpa_recomp_fwd", "scalar",
                             {c.q, c.k, c.v, kNone, 0.0, c.scale, false, false, "none", c.d_q, c.d_k, c.d_v, c.q_s, q_o,
                              0.0, false, false, kNone, "left"});
    EXPECT_TRUE(same_bits(recomp[0], fwd[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Sdpa,
                         ::testing::Combine(::testing::Values(kE4M3, kE5M2),
                                            ::testing::Values(DeviceKind::gaudi2, DeviceKind::gaudi3)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == kE4M3 ? "E4M3_" : "E5M2_") +
                                  runtime::name_of(std::get<1>(info.param));
                         });

TEST(Fp8SdpaForms, TensorAndScalarScalesAreOne) {
  Codes c({2, 3, 9, 16}, {2, 3, 13, 16}, {2, 3, 13, 8}, kE4M3);
  const auto scalar = call("fp8_sdpa_recomp_fwd", "scalar",
                           {c.q, c.k, c.v, kNone, 0.0, c.scale, true, true, "none", c.d_q, c.d_k, c.d_v, c.q_s, 0.0,
                            1 / c.q_s, true, true, kNone, "left"});
  const auto tensor =
      call("fp8_sdpa_recomp_fwd", "",
           {c.q, c.k, c.v, kNone, 0.0, c.scale, true, true, "none", one(c.d_q), one(c.d_k), one(c.d_v), one(c.q_s),
            at::empty({0}, on_hpu()), one(1 / c.q_s), true, true, kNone, "left"});  // an empty scale is none
  for (std::size_t i = 0; i < scalar.size(); ++i) EXPECT_TRUE(same_bits(scalar[i], tensor[i])) << i;
  EXPECT_EQ(scalar[0].scalar_type(), at::kBFloat16);
}

TEST(Fp8SdpaForms, WithoutScalesTheMultipliersAreOne) {
  Codes c({1, 2, 5, 8}, {1, 2, 6, 8}, {1, 2, 6, 8}, kE4M3);
  const auto r = call(
      "fp8_sdpa_fwd", "",
      {c.q, c.k, c.v, kNone, 0.0, 0.01, false, "none", kNone, kNone, kNone, kNone, kNone, kNone, false, kNone, "left"});
  expect_codes_of(r[1], probabilities(wide(c.q), wide(c.k), 0.01), 1, 448, "P");
  const at::Tensor p = values_of(r[1]), v = wide(c.v);
  expect_rounded(r[0], at::matmul(p, v), at::matmul(p, v.abs()), "out");
}

TEST(Fp8SdpaForms, MeasuringInHighPrecision) {  // what a measurement calls: no scales, amax wanted
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor q = random_hpu({2, 3, 9, 8}, type, 1), k = random_hpu({2, 3, 9, 8}, type, 2),
                     v = random_hpu({2, 3, 9, 8}, type, 3);
    const at::Tensor p = probabilities(wide(q), wide(k), 0.4, causal_mask(9, 9)), out = at::matmul(p, wide(v)),
                     magnitude = at::matmul(p, wide(v).abs());
    const auto fwd =
        call("fp8_sdpa_fwd", "",
             {q, k, v, kNone, 0.0, 0.4, true, "fast", kNone, kNone, kNone, kNone, kNone, kNone, true, kNone, "left"});
    EXPECT_EQ(fwd[1].scalar_type(), type);
    expect_rounded(fwd[0], out, magnitude, "out");
    EXPECT_NEAR(fwd[3].item<float>(), 1.0, 1e-6);  // the first row sees one key
    const auto recomp = call("fp8_sdpa_recomp_fwd", "",
                             {q, k, v, kNone, 0.0, 0.4, true, false, "fast", kNone, kNone, kNone, kNone, kNone, kNone,
                              true, true, kNone, "left"});
    expect_rounded(recomp[0], out, magnitude, "out");
    EXPECT_NEAR(recomp[5].item<float>(), out.abs().max().item<double>(), 1e-5);
    EXPECT_EQ(recomp[1].sizes(), at::IntArrayRef({1}));
  }
}

TEST(Fp8SdpaForms, MasksPaddingAndDropout) {
  Codes c({2, 2, 9, 16}, {2, 2, 9, 16}, {2, 2, 9, 16}, kE4M3);
  const at::Tensor lengths = at::tensor({4, 0}, at::kInt).to(kHpu), seed = at::full({1}, 5, on_hpu(at::kInt));
  const auto r = call("fp8_sdpa_fwd_dropout_seed", "",
                      {seed, c.q, c.k, c.v, kNone, 0.25, c.scale, true, "none", one(c.d_q), one(c.d_k), one(c.d_v),
                       one(c.q_s), kNone, kNone, true, lengths, "left"});
  const at::Tensor p = c.p64(causal_mask(9, 9) + padding_mask({4, 0}, 9, true).unsqueeze(1));
  expect_codes_of(r[1], p, c.q_s, 448, "P");
  const at::Tensor dropped = values_of(r[1]) * r[2].cpu().to(at::kDouble) * (c.d_v / c.q_s / 0.75), v = wide(c.v);
  expect_rounded(r[0], at::matmul(dropped, v), at::matmul(dropped, v.abs()), "out");
  EXPECT_EQ(wide(r[0])[1].abs().max().item<double>(), 0.0);  // a sequence of no keys
}

/// The backward formulas on given P (values, after its dequantization), dS cast with ds_scale into E5M2.
std::vector<at::Tensor> backward(const Codes& c, const at::Tensor& p, const at::Tensor& p_for_dv,
                                 const at::Tensor& grad, double q_ds, double* amax) {
  const at::Tensor q = wide(c.q) * c.d_q, k = wide(c.k) * c.d_k, v = wide(c.v) * c.d_v;
  const at::Tensor dp = at::matmul(grad, v.transpose(-2, -1)), ds = p * (dp - (p * dp).sum(-1, true));
  *amax = ds.abs().max().item<double>();
  const at::Tensor cast = rounded_fp8(ds * q_ds, true, 57344) / q_ds;
  return {at::matmul(cast, k) * c.scale, at::matmul(cast.transpose(-2, -1), q) * c.scale,
          at::matmul(p_for_dv.transpose(-2, -1), grad)};
}

void expect_gradients(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& exact, double amax,
                      double tolerance, const char* what) {
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got[i].scalar_type(), at::kBFloat16);
    const double size = exact[i].abs().max().item<double>();
    EXPECT_LE((wide(got[i]) - exact[i]).abs().max().item<double>(), size * tolerance) << what << ", gradient " << i;
  }
  EXPECT_NEAR(got[3].item<float>(), amax, amax * tolerance) << what;
}

TEST(Fp8SdpaBackward, IsTheFormula) {
  for (const auto type : {kE4M3, kE5M2}) {
    Codes c({2, 2, 20, 16}, {2, 2, 24, 16}, {2, 2, 24, 8}, type);
    const at::Tensor p = c.p64(causal_mask(20, 24)), p8 = hpu((p * 128).to(at::kFloat)).to(type);
    const at::Tensor grad = random_codes({2, 2, 20, 8}, kE5M2, 4),
                     out = at::zeros({2, 2, 20, 8}, on_hpu(at::kBFloat16));
    const double d_do = 0.25, q_ds = 64;
    const at::Tensor p64 = values_of(p8) / 128;
    for (const bool undo : {false, true}) {  // d_scale_ds given, or 1 / q_scale_ds
      const auto got =
          call("fp8_sdpa_bwd", "",
               {grad, c.q, c.k, c.v, p8, kNone, true, 0.0, c.scale, one(c.d_q), one(c.d_k), one(c.d_v), one(1.0 / 128),
                one(d_do), undo ? kNone : at::IValue(one(1 / q_ds)), kNone, one(q_ds), true, out});
      double amax = 0;
      const auto exact = backward(c, p64, p64, wide(grad) * d_do, q_ds, &amax);
      expect_gradients(got, exact, amax, 0x1p-8, "P given");
    }
  }
}

TEST(Fp8SdpaBackward, RecomputesFromTheStatistics) {
  Codes c({2, 2, 20, 16}, {2, 2, 24, 16}, {2, 2, 24, 8}, kE4M3);
  const at::Tensor grad = random_codes({2, 2, 20, 8}, kE5M2, 4);
  const double d_do = 0.25, q_ds = 64;
  const auto saved = call("fp8_sdpa_recomp_fwd", "",
                          {c.q, c.k, c.v, kNone, 0.0, c.scale, true, true, "none", one(c.d_q), one(c.d_k), one(c.d_v),
                           one(c.q_s), kNone, kNone, false, false, kNone, "left"});
  const at::Tensor s = at::matmul(wide(c.q), wide(c.k).transpose(-2, -1)) * (c.scale * c.d_q * c.d_k) +
                       causal_mask(20, 24),
                   p = at::exp(s - wide(saved[1])) * wide(saved[2]);  // with m and linv as they were stored
  const auto got = call(
      "fp8_sdpa_recomp_bwd", "",
      {grad,   c.q,        c.k,        c.v,        kNone, saved[1],  saved[2], kNone,      true,      0.0,  c.scale,
       "none", one(c.d_q), one(c.d_k), one(c.d_v), kNone, one(d_do), kNone,    one(c.q_s), one(q_ds), true, saved[0]});
  double amax = 0;
  const auto exact = backward(c, p, rounded_fp8(p * c.q_s, false, 448) / c.q_s, wide(grad) * d_do, q_ds, &amax);
  expect_gradients(got, exact, amax, 0x1p-8, "recomputed");
}

TEST(Fp8SdpaBackward, HighPrecisionHasNoCasts) {
  const at::Tensor q = random_hpu({2, 3, 9, 8}, at::kFloat, 1), k = random_hpu({2, 3, 9, 8}, at::kFloat, 2),
                   v = random_hpu({2, 3, 9, 8}, at::kFloat, 3), grad = random_hpu({2, 3, 9, 8}, at::kFloat, 4);
  const auto saved = call("sdpa_fwd", "", {q, k, v, kNone, 0.0, 0.4, true, "none", kNone, "left"});
  const auto got = call("fp8_sdpa_bwd", "",
                        {grad, q, k, v, saved[1], kNone, true, 0.0, 0.4, kNone, kNone, kNone, kNone, kNone, kNone,
                         kNone, kNone, true, saved[0]});
  const at::Tensor q64 = wide(q).requires_grad_(true), k64 = wide(k).requires_grad_(true),
                   v64 = wide(v).requires_grad_(true), p = probabilities(q64, k64, 0.4, causal_mask(9, 9));
  const auto exact = torch::autograd::grad({at::matmul(p, v64)}, {q64, k64, v64}, {wide(grad)});
  const at::Tensor dp = at::matmul(wide(grad), wide(v).transpose(-2, -1)), pd = p.detach(),
                   ds = pd * (dp - (pd * dp).sum(-1, true));
  expect_gradients(got, exact, ds.abs().max().item<double>(), 0x1p-8, "f32");
}

TEST(Fp8SdpaRefusals, NameTheArgument) {
  Codes c({1, 2, 5, 8}, {1, 2, 6, 8}, {1, 2, 6, 8}, kE4M3);
  const at::Tensor bf16 = at::ones({1, 2, 5, 8}, on_hpu(at::kBFloat16));
  const auto fwd = [](const at::Tensor& q, const at::Tensor& k, const at::IValue& d_q, const at::IValue& q_s) {
    call("fp8_sdpa_fwd", "",
         {q, k, k, kNone, 0.0, 1.0, false, "none", d_q, kNone, kNone, q_s, kNone, kNone, false, kNone, "left"});
  };
  EXPECT_REFUSED(fwd(bf16, bf16, kNone, one(2)), "[hpu::fp8_sdpa_fwd]", "float8 beside q_scale_s", "BFloat16");
  EXPECT_REFUSED(fwd(c.q, bf16, kNone, kNone), "[hpu::fp8_sdpa_fwd]", "all of float8", "Float8_e4m3fn, BFloat16");
  EXPECT_REFUSED(fwd(c.q, c.k, at::ones({2}, on_hpu()), kNone), "[hpu::fp8_sdpa_fwd]",
                 "d_scale_q of one element, got 2");
  EXPECT_NE(error_of([&] { fwd(c.q, c.k, at::ones({1}, on_hpu(at::kInt)), kNone); }), "");
  const DeviceKindScope scope(DeviceKind::gaudi);
  EXPECT_NE(error_of([&] { fwd(c.q, c.k, kNone, kNone); }), "");  // the first generation has no fp8
  EXPECT_EQ(error_of([&] { fwd(bf16, bf16, kNone, kNone); }), "");
}

}  // namespace
}  // namespace fp8::test
