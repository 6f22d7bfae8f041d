// SPDX-License-Identifier: Apache-2.0
// Weights with a scale per block, activations with one per group of a row: products, views, gradients, values and
// refusals, against f64 products of operands that the scalar reference quantized block by block.
#include "fp8/quant/damage/damage.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

/// Dequantized values in f64 of a matrix whose blocks [rows, cols] have a scale each.
at::Tensor by_blocks(const at::Tensor& matrix, std::int64_t rows, std::int64_t cols, float max = 448.0f) {
  at::Tensor out = torch::empty(matrix.sizes(), at::kDouble);
  for (std::int64_t r = 0; r < matrix.size(0); r += rows)
    for (std::int64_t c = 0; c < matrix.size(1); c += cols) {
      const auto cut = [&](const at::Tensor& t) {
        return t.slice(0, r, std::min(matrix.size(0), r + rows)).slice(1, c, std::min(matrix.size(1), c + cols));
      };
      cut(out).copy_(test::quantize_by_amax(cut(matrix), 1, max).values);
    }
  return out;
}

at::Tensor by_groups(const at::Tensor& x, std::int64_t group, float max = 448.0f) {
  return by_blocks(x.reshape({-1, x.size(-1)}), 1, group, max).reshape(x.sizes());
}

/// |got - want| <= rounding of got's dtype + f32 accumulation, per element.
::testing::AssertionResult close(const at::Tensor& got, const at::Tensor& xv, const at::Tensor& wv,
                                 const at::Tensor& bias = {}) {
  const double step = got.scalar_type() == at::kFloat ? 0x1p-24 : 0x1p-8;
  at::Tensor want = xv.matmul(wv.t()), size = xv.abs().matmul(wv.t().abs());
  if (bias.defined()) want = want + f64(bias), size = size + f64(bias).abs();
  if (got.sizes() != want.sizes())
    return ::testing::AssertionFailure() << "sizes " << got.sizes() << ", expected " << want.sizes();
  const double worst =
      ((f64(got) - want).abs() / (want.abs() * step * 1.01 + size * 0x1p-20 + 1e-30)).max().item<double>();
  if (worst <= 1.0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "off by " << worst << " times the bound";
}

PlanOptions block_options(const Block& block, ActivationScaling activations,
                          recipes::Dialect dialect = recipes::Dialect::ocp) {
  PlanOptions o{
      .activations = activations, .weights = Granularity::block, .block = block, .dialect = dialect, .include = {"w"}};
  return o;
}

/// One weight, converted under the name "w".
at::Tensor converted(const at::Tensor& w, const PlanOptions& options, const char* type = "Linear") {
  at::Tensor parameter = hpu(w).clone();
  convert(std::vector<measure::WeightModule>{{"w", type, parameter, std::nullopt}}, options);
  return parameter;
}

constexpr Block kBlocks[] = {{128, 128}, {8, 16}, {5, 7}, {1, 4}, {16, 12}, {6, 200}};

TEST(BlockScales, LinearOfEveryRankTypeAndBlock) {
  torch::manual_seed(21);
  for (const Block& block : kBlocks)
    for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token})
      for (auto dtype : {at::kFloat, at::kBFloat16})
        for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2}) {
          const float max = dialect == recipes::Dialect::gaudi2 ? 240.0f : 448.0f;
          const at::Tensor w = (torch::randn({37, 52}) * torch::logspace(-2, 1, 37).unsqueeze(1)).to(dtype),
                           bias = torch::randn({37}).to(dtype);
          const at::Tensor p = converted(w, block_options(block, activations, dialect)),
                           wv = by_blocks(w, block.rows, block.cols, max);
          EXPECT_EQ(
              dynamic_cast<const Fp8Handler&>(*runtime::find_tag(p)->handler).scheme().activations,
              activations == ActivationScaling::none ? ActivationScaling::none : ActivationScaling::dynamic_group);
          for (const std::vector<std::int64_t>& sizes :
               {std::vector<std::int64_t>{52}, {1, 52}, {19, 52}, {2, 3, 52}, {0, 52}}) {
            const at::Tensor x = torch::randn(sizes).to(dtype);
            const at::Tensor xv =
                activations == ActivationScaling::none || x.numel() == 0 ? f64(x) : by_groups(x, block.cols, max);
            const at::Tensor y = at::linear(hpu(x), p);
            EXPECT_EQ(y.scalar_type(), dtype);
            if (x.numel() == 0) {
              EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{0, 37}));
              continue;
            }
            EXPECT_TRUE(close(y, xv, wv))
                << block.rows << "x" << block.cols << " " << dtype << " x " << x.sizes() << " " << name_of(activations);
            if (x.dim() == 2) {
              EXPECT_TRUE(close(at::linear(hpu(x), p, hpu(bias)), xv, wv, bias));
            }
          }
        }
}

TEST(BlockScales, ViewsTakeTheirOwnScales) {
  torch::manual_seed(22);
  const at::Tensor w = torch::randn({40, 64}) * torch::logspace(-2, 1, 40).unsqueeze(1) * torch::logspace(-1, 1, 64);
  const at::Tensor wv = by_blocks(w, 16, 16);
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token}) {
    const at::Tensor p = converted(w, block_options({16, 16}, activations));
    const auto values = [&](const at::Tensor& x) {
      return activations == ActivationScaling::none ? f64(x) : by_groups(x, 16);
    };
    using Range = std::pair<std::int64_t, std::int64_t>;
    for (const auto& [first, rows] : {Range{0, 40}, {16, 16}, {3, 20}, {39, 1}, {10, 6}}) {  // within a block too
      const at::Tensor x = torch::randn({5, 64});
      EXPECT_TRUE(close(at::linear(hpu(x), p.narrow(0, first, rows)), values(x), wv.narrow(0, first, rows))) << first;
    }
    for (const auto& [first, cols] : {Range{0, 48}, {16, 40}, {32, 32}, {5, 30}, {63, 1}}) {
      const at::Tensor x = torch::randn({5, cols});
      EXPECT_TRUE(close(at::linear(hpu(x), p.narrow(1, first, cols)), values(x), wv.narrow(1, first, cols))) << first;
      EXPECT_TRUE(close(at::linear(hpu(x), p.narrow(0, 7, 21).narrow(1, first, cols)), values(x),
                        wv.narrow(0, 7, 21).narrow(1, first, cols)))
          << first;
    }
    const at::Tensor left = hpu(torch::randn({3, 40}));  // x @ w: no transposed kernel, the weight is dequantized
    EXPECT_TRUE(close(at::matmul(left, p), f64(left), wv.t()));
    EXPECT_TRUE(close(at::matmul(left.narrow(1, 0, 9), p.narrow(0, 11, 9).narrow(1, 5, 30)), f64(left.narrow(1, 0, 9)),
                      wv.narrow(0, 11, 9).narrow(1, 5, 30).t()));
  }
}

TEST(BlockScales, EmbeddingRowsAreTheDequantizedRows) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor w = torch::randn({21, 30}).to(dtype), wv = by_blocks(w, 4, 8);
    const at::Tensor p = converted(w, block_options({4, 8}, ActivationScaling::dynamic_token), "Embedding");
    const at::Tensor ids = hpu(torch::tensor({{20, 0, 3}, {3, 4, 12}}, at::kLong));
    EXPECT_TRUE(same_bits(at::embedding(p, ids),
                          wv.index_select(0, ids.cpu().reshape({-1})).reshape({2, 3, 30}).to(at::kFloat).to(dtype)));
  }
}

TEST(BlockScales, PowersOfTwoAreExactInBf16) {
  const at::Tensor w = torch::randn({33, 50}).to(at::kBFloat16);
  PlanOptions o = block_options({16, 16}, ActivationScaling::none);
  o.power_of_two = true;
  const at::Tensor p = converted(w, o);
  const auto& handler = dynamic_cast<const Fp8Handler&>(*runtime::find_tag(p)->handler);
  const at::Tensor inv = handler.weight_scale_inv().cpu();
  EXPECT_EQ(inv.sizes(), (std::vector<std::int64_t>{3, 4}));
  for (std::int64_t i = 0; i < inv.numel(); ++i)
    EXPECT_EQ(std::exp2(std::round(std::log2(inv.const_data_ptr<float>()[i]))), inv.const_data_ptr<float>()[i]);
  const at::Tensor in_bf16 = handler.all_values(p, at::kBFloat16), in_f32 = handler.all_values(p, at::kFloat);
  EXPECT_TRUE(same_bits(in_bf16.to(at::kFloat), in_f32));
  // Every value is within half a step of its code: 2^-4 of the value, or of the smallest step.
  EXPECT_TRUE(((f64(in_f32) - f64(w)).abs() <= f64(w).abs() * 0x1p-4 + f64(inv.max()) * 0x1p-10).all().item<bool>());
}

/// Values in f64 of a matrix in MXFP8: each 32 of a row under the least power of two that holds them.
at::Tensor by_mx(const at::Tensor& x) {
  const at::Tensor rows = f64(x).reshape({-1, x.size(-1)});
  at::Tensor out = rows.clone();
  for (std::int64_t r = 0; r < rows.size(0); ++r)
    for (std::int64_t c = 0; c < rows.size(1); c += 32) {
      const at::Tensor group = rows[r].slice(0, c, c + 32);
      const double scale = std::exp2(std::ceil(std::log2(group.abs().max().item<double>() / 448)));
      if (scale > 0)
        out[r].slice(0, c, c + 32).copy_(test::quantize_reference(group, {static_cast<float>(scale)}, 448).values);
    }
  return out.reshape(x.sizes());
}

TEST(BlockScales, MxCastsBothOperandsAsTrainingDoes) {
  torch::manual_seed(29);
  PlanOptions o;
  set_weights(o, WeightWord::mx);
  o.dialect = recipes::Dialect::ocp;
  o.include = {"w"};
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token}) {
    o.activations = activations;
    const bool none = activations == ActivationScaling::none;
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor w = (torch::randn({37, 96}) * torch::logspace(-3, 2, 37).unsqueeze(1)).to(dtype);
      w[3].slice(0, 32, 64).zero_();
      const at::Tensor p = converted(w, o), wv = by_mx(w);
      EXPECT_TRUE(same_bits(dynamic_cast<const Fp8Handler&>(*runtime::find_tag(p)->handler).all_values(p, at::kFloat),
                            wv.to(at::kFloat)));
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{96}, {1, 96}, {19, 96}, {2, 3, 96}}) {
        at::Tensor x = (torch::randn(sizes) * torch::logspace(-4, 3, 96)).to(dtype);
        x.reshape({-1, 96})[0].slice(0, 0, 32).zero_();
        EXPECT_TRUE(close(at::linear(hpu(x), p), none ? f64(x) : by_mx(x), wv)) << dtype << " x " << x.sizes();
      }
    }
  }
  Scheme s;
  set_weights(s, WeightWord::mx);
  s.activations = ActivationScaling::dynamic_group;
  const at::Tensor x = torch::randn({9, 64});
  const CastDamage input = input_damage(x.const_data_ptr(), recipes::FloatType::F32, 9, 64, s);
  EXPECT_NEAR(input.noise, (f64(x) - by_mx(x)).square().sum().item<double>(), 1e-6 * input.noise);
}

TEST(BlockScales, GradientsAreThoseOfTheValues) {
  torch::manual_seed(25);
  const at::Tensor w = torch::randn({24, 40}), wv = by_blocks(w, 16, 16);
  const at::Tensor p = converted(w, block_options({16, 16}, ActivationScaling::dynamic_token));
  at::Tensor x = hpu(torch::randn({6, 40})).requires_grad_(), bias = hpu(torch::randn({24})).requires_grad_();
  const at::Tensor dy = torch::randn({6, 24});
  at::linear(x, p, bias).backward(hpu(dy));
  EXPECT_TRUE(close(x.grad(), f64(dy), wv.t()));
  EXPECT_TRUE(torch::allclose(bias.grad().cpu(), dy.sum(0), 1e-5, 1e-6));
}

TEST(BlockScales, NaNAndInfStayInTheirRow) {
  torch::manual_seed(26);
  const at::Tensor p = converted(torch::randn({20, 48}), block_options({16, 16}, ActivationScaling::dynamic_token));
  at::Tensor x = torch::randn({4, 48});
  const at::Tensor clean = at::linear(hpu(x), p).cpu();
  x[1][3] = NAN;
  x[2][40] = INFINITY;
  x[3].slice(0, 16, 32).zero_();
  const at::Tensor y = at::linear(hpu(x), p).cpu();
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_TRUE(y[2].isnan().all().item<bool>());
  EXPECT_TRUE(y[3].isfinite().all().item<bool>());
  EXPECT_TRUE(same_bits(y[0], clean[0]));
}

/// Codes and scales put on by hand, as a reader of checkpoints does.
at::Tensor attached(const at::Tensor& w, Scheme scheme) {
  scheme.weights = Granularity::block;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(w.numel()));
  const auto inv = quantize_weight_blocks(w.const_data_ptr(), recipes::FloatType::F32, w.size(0), w.size(1), scheme,
                                          "w", codes.data());
  at::Tensor parameter = hpu(torch::zeros(w.sizes()));
  const at::Tensor bytes = torch::empty(w.sizes(), at::kByte);
  std::copy(codes.begin(), codes.end(), bytes.mutable_data_ptr<std::uint8_t>());
  attach_fp8({"w", "Linear", parameter, std::nullopt}, hpu(bytes).view(at::kFloat8_e4m3fn), inv, scheme, at::kFloat);
  return parameter;
}

TEST(BlockScales, OtherActivationsAndQdqMeetBlocksToo) {
  torch::manual_seed(27);
  const at::Tensor w = torch::randn({21, 40}), wv = by_blocks(w, 8, 16), x = torch::randn({5, 40});
  Scheme s;
  s.block = {8, 16};
  s.activations = ActivationScaling::static_tensor;
  set_input_scale(s, 3.0f, {}, "w");
  EXPECT_TRUE(
      close(at::linear(hpu(x), attached(w, s)), test::quantize_reference(x, {3.0f / 448.0f}, 448.0f).values, wv));
  s.activations = ActivationScaling::dynamic_token;
  EXPECT_TRUE(close(at::linear(hpu(x), attached(w, s)), test::quantize_by_amax(x, 5).values, wv));
  s.activations = ActivationScaling::dynamic_tensor;
  EXPECT_TRUE(close(at::linear(hpu(x), attached(w, s)), test::quantize_by_amax(x, 1).values, wv));
  s.activations = ActivationScaling::dynamic_group;
  s.compute = Compute::qdq;
  EXPECT_TRUE(close(at::linear(hpu(x), attached(w, s)), by_groups(x, 16), wv));
}

TEST(BlockScales, DamageIsThatOfTheCodes) {
  torch::manual_seed(28);
  const at::Tensor w = torch::randn({50, 70}) * torch::logspace(-3, 1, 70), wv = by_blocks(w, 16, 16),
                   x = torch::randn({9, 70}), xv = by_groups(x, 16);
  Scheme s;
  s.weights = Granularity::block;
  s.block = {16, 16};
  s.activations = ActivationScaling::dynamic_group;
  const WeightScales scales = weight_scales(block_amax(w.const_data_ptr(), recipes::FloatType::F32, 50, 70, s), s, "w");
  const auto noise = [](const at::Tensor& t, const at::Tensor& values) {
    return (f64(t) - values).square().sum().item<double>();
  };
  const CastDamage weight = weight_damage(w.const_data_ptr(), recipes::FloatType::F32, 50, 70, scales, s);
  EXPECT_NEAR(weight.noise, noise(w, wv), 1e-6 * weight.noise);
  EXPECT_EQ(weight.saturated, 0);
  const CastDamage input = input_damage(x.const_data_ptr(), recipes::FloatType::F32, 9, 70, s);
  EXPECT_NEAR(input.noise, noise(x, xv), 1e-6 * input.noise);
}

TEST(BlockScales, RefusalsNameWhatIsAllowed) {
  const at::Tensor w = torch::randn({20, 24});
  PlanOptions o = block_options({16, 16}, ActivationScaling::static_tensor);
  EXPECT_REFUSED(converted(w, o), "block scales", "dynamic ones or none");
  o = block_options({0, 16}, ActivationScaling::none);
  EXPECT_REFUSED(converted(w, o), "0 x 16", "at least 1");
  o = block_options({16, 16}, ActivationScaling::none);
  o.weights = Granularity::channel;
  o.power_of_two = true;
  EXPECT_REFUSED(converted(w, o), "e8m0", "block");
  EXPECT_REFUSED(converted(torch::full({4, 4}, NAN), block_options({2, 2}, ActivationScaling::none)), "w", "nan");
  const Plan plan =
      make_plan({{"conv", "Conv2d", {8, 3, 4, 4}}, {"w", "Linear", {20, 24}}, {"experts", "Linear", {2, 8, 8}}},
                block_options({16, 16}, ActivationScaling::none));
  ASSERT_EQ(plan.modules.size(), 1u);
  EXPECT_EQ(plan.modules[0].scheme.describe(), "E4M3 block 16x16 weights, high precision activations, ocp");
  ASSERT_EQ(plan.skipped.size(), 2u);
  EXPECT_EQ(plan.skipped[0].reason, "no block scales for type Conv2d");

  Scheme s;
  s.weights = Granularity::block;
  s.block = {16, 16};
  const auto attach = [&](const std::vector<float>& scales) {
    attach_fp8({"w", "Linear", hpu(torch::zeros({20, 24})), std::nullopt},
               hpu(torch::zeros({20, 24}, at::kByte)).view(at::kFloat8_e4m3fn), scales, s, at::kFloat);
  };
  EXPECT_REFUSED(attach({1, 1, 1}), "2 x 2 block scales, found 3");
  s.convention = Convention::inc;
  EXPECT_REFUSED(attach({1, 1, 1, 1}), "own convention", "INC");
  const at::Tensor p = converted(w, block_options({16, 16}, ActivationScaling::none));
  auto& handler = dynamic_cast<Fp8Handler&>(*runtime::find_tag(p)->handler);
  EXPECT_REFUSED(handler.set_weight_scale_inv(1.0f), "one weight scale, found 4");
  EXPECT_REFUSED(at::linear(hpu(torch::zeros({3, 23})), p), "24", "23");
}

}  // namespace
}  // namespace fp8::quant
