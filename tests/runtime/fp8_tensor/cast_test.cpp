// SPDX-License-Identifier: Apache-2.0
// Casts and decodes of every layout, on hpu and cpu: sizes, dtypes, and the formulas by torch's own operators.
#include "fp8/runtime/fp8_tensor/cast.h"

#include "fp8/runtime/fp8_tensor/gemm.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using kernels::Dialect;
using kernels::Format;
using runtime::CastBeside;
using runtime::CastSpec;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;
using runtime::ScaleRule;

/// The largest magnitude of every tile of x, zero padded: pad, view as tiles, amax.
torch::Tensor tile_amax(const torch::Tensor& x, int64_t br, int64_t bc) {
  const int64_t rows = (x.size(0) + br - 1) / br, cols = (x.size(1) + bc - 1) / bc;
  const auto padded = torch::constant_pad_nd(x.to(torch::kFloat), {0, cols * bc - x.size(1), 0, rows * br - x.size(0)});
  return padded.abs().view({rows, br, cols, bc}).amax({1, 3});
}

/// One value per tile -> one per element of a [rows, cols] matrix.
torch::Tensor spread(const torch::Tensor& grid, int64_t br, int64_t bc, int64_t rows, int64_t cols) {
  return grid.repeat_interleave(br, 0).repeat_interleave(bc, 1).slice(0, 0, rows).slice(1, 0, cols);
}

torch::Tensor bytes(const torch::Tensor& t) { return t.cpu().view(torch::kByte); }

CastSpec blocks_of(int64_t rows, int64_t cols, bool power_of_two = false) {
  CastSpec spec{.layout = ScaleLayout::blocks(rows, cols), .rule = ScaleRule::max_over_amax};
  spec.power_of_two = power_of_two;
  return spec;
}

TEST(Cast, BlocksFollowTheFormulaOnBothDevices) {
  for (auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const auto x = (torch::randn({37, 300}) * 3).to(dtype);
    for (auto [br, bc] : {std::pair<int64_t, int64_t>{1, 128}, {128, 1}, {16, 16}, {64, 700}}) {
      const auto amax = tile_amax(x, br, bc);
      for (bool power_of_two : {false, true}) {
        auto scale = torch::full_like(amax, 448.0) / amax;
        if (power_of_two) scale = torch::exp2(torch::floor(torch::log2(scale.to(torch::kDouble)))).to(torch::kFloat);
        const auto product = x.to(torch::kFloat) * spread(scale, br, bc, 37, 300);
        const auto codes = product.clamp(-448, 448).to(torch::kFloat8_e4m3fn);
        for (const at::Device device : {at::Device(at::kCPU), kHpu}) {
          const auto q = runtime::quantize(x.to(device), blocks_of(br, bc, power_of_two));
          EXPECT_EQ(q.codes.device(), device);
          EXPECT_TRUE(torch::equal(q.grid.cpu(), scale.reciprocal())) << br << " x " << bc;
          EXPECT_TRUE(torch::equal(bytes(q.codes), codes.view(torch::kByte))) << br << " x " << bc;
          const auto want = codes.to(torch::kFloat) * spread(scale.reciprocal(), br, bc, 37, 300);
          for (auto out : {torch::kFloat, torch::kBFloat16, torch::kHalf})
            EXPECT_TRUE(torch::equal(runtime::dequantize(q, out).cpu(), want.to(out)));
        }
      }
    }
  }
}

TEST(Cast, MxFollowsTheFormula) {
  const auto x = torch::randn({70, 100}) * torch::exp2(torch::randint(-20, 20, {70, 1}));
  for (const bool columns : {false, true}) {
    const int64_t br = columns ? 32 : 1, bc = columns ? 1 : 32;
    const auto exponent = torch::ceil(torch::log2(tile_amax(x, br, bc).to(torch::kDouble) / 57344.0));
    const auto scale_inv = torch::exp2(exponent).to(torch::kFloat);
    const auto codes = (x / spread(scale_inv, br, bc, 70, 100)).clamp(-57344, 57344).to(torch::kFloat8_e5m2);
    auto q = runtime::quantize(
        x.to(kHpu), {.format = Format::E5M2, .layout = ScaleLayout::blocks(br, bc), .rule = ScaleRule::e8m0});
    EXPECT_EQ(q.grid.scalar_type(), torch::kFloat8_e8m0fnu);
    EXPECT_TRUE(torch::equal(bytes(q.grid), (exponent + 127).to(torch::kByte)));
    EXPECT_TRUE(torch::equal(q.grid.cpu().to(torch::kFloat), scale_inv));  // torch reads the same E8M0
    EXPECT_TRUE(torch::equal(bytes(q.codes), codes.view(torch::kByte)));
    const auto want = codes.to(torch::kFloat) * spread(scale_inv, br, bc, 70, 100);
    EXPECT_TRUE(torch::equal(runtime::dequantize(q, torch::kFloat).cpu(), want));
    q.grid = q.grid.view(torch::kByte);
    EXPECT_TRUE(torch::equal(runtime::dequantize(q, torch::kFloat).cpu(), want));
  }
}

// scale_inv = amax / 448 of the tensor, of each row, of each group: what activations get at the call.
TEST(Cast, AmaxOverMaxOfEveryLayout) {
  for (auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const auto x = (torch::randn({2, 19, 150}) * torch::exp2(torch::randint(-6, 6, {2, 19, 1}))).to(dtype);
    const auto wide = x.to(torch::kFloat).view({38, 150});
    for (const auto& [layout, cols] : {std::pair<ScaleLayout, int64_t>{ScaleLayout::per_tensor(), 0},
                                       {ScaleLayout::per_row(), 150},
                                       {ScaleLayout::blocks(1, 64), 64}}) {
      const auto q = runtime::quantize(x.to(kHpu), {.layout = layout, .rule = ScaleRule::amax_over_max});
      const auto scale_inv = (cols == 0 ? wide.abs().max().view({1, 1}) : tile_amax(wide, 1, cols)) / 448;
      if (cols == 0) {
        EXPECT_EQ(q.scale_inv, scale_inv.item<float>());
      } else {
        EXPECT_EQ(q.grid.sizes(), at::IntArrayRef({2, 19, cols == 64 ? 3 : 1}));
        EXPECT_TRUE(torch::equal(q.grid.cpu().view({38, -1}), scale_inv));
      }
      const auto inv = cols == 0 ? scale_inv.expand({38, 150}) : spread(scale_inv, 1, cols, 38, 150);
      const auto codes = (wide * inv.reciprocal()).clamp(-448, 448).to(torch::kFloat8_e4m3fn);
      EXPECT_TRUE(torch::equal(bytes(q.codes).view({38, 150}), codes.view(torch::kByte)));
      const auto values = runtime::dequantize(q, dtype).cpu();
      EXPECT_TRUE(torch::equal(values.view({38, 150}), (codes.to(torch::kFloat) * inv).to(dtype)));
    }
  }
}

// One rounding, from any dtype; the vendor's rounds scale and product to x's dtype first.
TEST(Cast, GivenScalesAndTheVendorsArithmetic) {
  const auto x = (torch::randn({33, 70}) * 30).to(torch::kBFloat16).to(kHpu), host = x.cpu();
  const float scale = 1.2345f;
  const auto q = runtime::quantize(x, {.scale = scale, .scale_inv = 1 / scale});
  EXPECT_TRUE(torch::equal(bytes(q.codes), bytes(runtime::quantize(x.to(torch::kFloat), {.scale = scale}).codes)));
  const auto once = (host.to(torch::kFloat) * scale).clamp(-448, 448).to(torch::kFloat8_e4m3fn);
  EXPECT_TRUE(torch::equal(bytes(q.codes), once.view(torch::kByte)));
  const auto vendor = runtime::quantize(x, {.scale = scale, .vendor = true});
  const auto twice = (host * torch::full({}, scale, torch::kBFloat16)).clamp(-448, 448);
  EXPECT_TRUE(torch::equal(bytes(vendor.codes), twice.to(torch::kFloat8_e4m3fn).view(torch::kByte)));
  EXPECT_FALSE(torch::equal(bytes(vendor.codes), bytes(q.codes)));
}

TEST(Cast, RowsAndColumnsOfGivenScales) {
  const auto x = torch::randn({5, 7}).to(kHpu);
  std::vector<float> scales{1, 2, 4, 8, 16, 32, 64};
  for (const bool rows : {true, false}) {
    CastSpec spec{.layout = rows ? ScaleLayout::per_row() : ScaleLayout::per_column(), .scales = scales.data()};
    Fp8Tensor q = runtime::quantize(x, spec);
    const auto factor = torch::tensor(scales).slice(0, 0, rows ? 5 : 7).view({rows ? 5 : 1, rows ? 1 : 7});
    EXPECT_TRUE(torch::equal(bytes(q.codes), (x.cpu() * factor).to(torch::kFloat8_e4m3fn).view(torch::kByte)));
    q.grid = factor.reciprocal();
    const auto values = q.codes.cpu().to(torch::kFloat) * q.grid;
    EXPECT_TRUE(torch::equal(runtime::dequantize(q, torch::kFloat).cpu(), values));
    Fp8Tensor turned = q;  // not contiguous, as a cast of columns leaves it
    turned.codes = q.codes.t();
    turned.grid = q.grid.t();
    turned.layout = rows ? ScaleLayout::per_column() : ScaleLayout::per_row();
    EXPECT_TRUE(torch::equal(runtime::dequantize(turned, torch::kFloat).cpu(), values.t()));
  }
}

TEST(Cast, BothFormatsAreWhatTwoCastsGive) {
  const auto x = (torch::randn({64, 300}) * 9).to(torch::kBFloat16).to(kHpu);
  float amax = 0;
  const CastSpec narrow{.scale = 3, .scale_inv = 1.0f / 3, .amax = &amax},
      wide{.format = Format::E5M2, .scale = 0.7f, .scale_inv = 1 / 0.7f};
  const auto both = runtime::quantize_both(x, narrow, wide);
  EXPECT_EQ(amax, x.abs().max().item<float>());
  EXPECT_TRUE(torch::equal(bytes(both.first.codes), bytes(runtime::quantize(x, narrow).codes)));
  EXPECT_TRUE(torch::equal(bytes(both.second.codes), bytes(runtime::quantize(x, wide).codes)));
  EXPECT_EQ(both.second.scale_inv, 1 / 0.7f);
}

// As a product reads them that sums along the rows.
TEST(Cast, TurnedCodesLieColumnByColumn) {
  const auto x = (torch::randn({70, 300}) * 9).to(torch::kBFloat16).to(kHpu);
  for (const bool stochastic : {false, true}) {
    CastSpec spec{.scale = 3, .scale_inv = 1.0f / 3};
    if (stochastic) spec.stochastic = 5;
    CastSpec turned = spec;
    turned.transpose = true;
    EXPECT_FALSE(spec.same_result(turned));
    EXPECT_TRUE(spec.same_codes(turned));
    const auto rows = runtime::quantize(x, spec), alone = runtime::quantize(x, turned);
    for (const bool first : {false, true}) {
      const auto both = runtime::quantize_both(x, first ? turned : spec, first ? spec : turned);
      const auto &plain = first ? both.second : both.first, &other = first ? both.first : both.second;
      EXPECT_TRUE(plain.codes.is_contiguous() && other.codes.t().is_contiguous());
      for (const auto& q : {plain, other}) EXPECT_TRUE(torch::equal(bytes(q.codes), bytes(rows.codes)));
    }
    EXPECT_TRUE(alone.codes.t().is_contiguous());
    EXPECT_TRUE(torch::equal(bytes(alone.codes), bytes(rows.codes)));
  }
  const CastSpec narrow{.scale = 3};
  CastSpec wide{.format = Format::E5M2, .scale = 0.7f, .scale_inv = 1 / 0.7f};
  wide.transpose = true;
  const auto both = runtime::quantize_both(x, narrow, wide);
  EXPECT_TRUE(torch::equal(bytes(both.first.codes), bytes(runtime::quantize(x, narrow).codes)));
  EXPECT_TRUE(torch::equal(bytes(both.second.codes), bytes(runtime::quantize(x, wide).codes)));
  EXPECT_TRUE(both.second.codes.t().is_contiguous());
  EXPECT_THROW(runtime::quantize(x.flatten(), wide), c10::Error) << "no matrix";
  wide.rule = ScaleRule::amax_over_max;
  EXPECT_THROW(runtime::quantize(x, wide), c10::Error) << "not given";
}

TEST(Cast, NanAndInfMakeNanOfAllThatSharesTheScale) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto x = torch::ones({4, 64});
    x[1][3] = bad;
    for (const auto& layout : {ScaleLayout::per_tensor(), ScaleLayout::per_row(), ScaleLayout::blocks(1, 32)}) {
      const auto q = runtime::quantize(x.to(kHpu), {.layout = layout, .rule = ScaleRule::amax_over_max});
      const auto nan = runtime::dequantize(q, torch::kFloat).cpu().isnan();
      const int64_t shared = layout.one() ? 256 : layout.cols == 0 ? 64 : 32;
      EXPECT_EQ(nan.sum().item<int64_t>(), shared);
    }
  }
}

TEST(Cast, TakesStridedAndEmptyMatrices) {
  const auto base = torch::randn({64, 96}).to(kHpu);
  CastSpec spec = blocks_of(8, 8, true);
  spec.format = Format::E5M2, spec.max = kernels::fp8_max(Format::E5M2, Dialect::gaudi2);
  for (const auto& x : {base.slice(1, 3, 70), base.t(), base.slice(0, 0, 64, 2), base.slice(1, 0, 96, 3),
                        base.slice(0, 5, 6).expand({9, 96})})
    for (const CastSpec& how : {spec, CastSpec{.scale = 2}}) {
      const auto a = runtime::quantize(x, how), b = runtime::quantize(x.contiguous(), how);
      EXPECT_TRUE(torch::equal(bytes(a.codes), bytes(b.codes)));
      EXPECT_TRUE(!a.grid.defined() || torch::equal(a.grid.cpu(), b.grid.cpu()));
    }
  for (auto sizes : {std::vector<int64_t>{0, 5}, {5, 0}, {0, 0}})
    for (const CastSpec& how :
         {CastSpec{.layout = ScaleLayout::blocks(1, 32), .rule = ScaleRule::e8m0},
          CastSpec{.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max}, CastSpec{}}) {
      const auto q = runtime::quantize(torch::empty(sizes).to(kHpu), how);
      EXPECT_EQ(q.codes.numel(), 0);
      EXPECT_EQ(runtime::dequantize(q, torch::kFloat).sizes(), at::IntArrayRef(sizes));
    }
}

TEST(Cast, DecodesAPartOfItsBlocks) {
  const auto whole = runtime::quantize(torch::randn({40, 24}).to(kHpu), blocks_of(16, 8));
  const auto values = runtime::dequantize(whole, torch::kFloat).cpu();
  for (int64_t first : {0, 5, 16, 20, 37}) {
    Fp8Tensor part = whole;
    part.codes = whole.codes.slice(0, first);
    part.layout.first_row = first;
    EXPECT_TRUE(torch::equal(runtime::dequantize(part, torch::kFloat).cpu(), values.slice(0, first))) << first;
  }
}

TEST(Cast, StochasticRoundingFollowsTheSeed) {
  const auto x = torch::full({64, 64}, 18.5f).to(kHpu);  // scale 16: 296, between 288 and 320
  const auto draw = [&](uint64_t seed) {
    CastSpec spec = blocks_of(64, 64, true);
    spec.stochastic = seed;
    return bytes(runtime::quantize(x, spec).codes);
  };
  EXPECT_TRUE(torch::equal(draw(1), draw(1)));
  EXPECT_FALSE(torch::equal(draw(1), draw(2)));
  const double mean = draw(1).view(torch::kFloat8_e4m3fn).to(torch::kDouble).mean().item<double>();
  EXPECT_NEAR(mean, 296.0, 5 * 32 * std::sqrt(0.25 * 0.75 / 4096));
}

TEST(Cast, NamesWhatItCannotTake) {
  const auto x = torch::randn({4, 4});
  const auto refused = [](const std::vector<std::string>& words, const torch::Tensor& t, const CastSpec& spec) {
    EXPECT_TRUE(throws_with(words, [&] { runtime::quantize(t, spec); }));
  };
  refused({"expected a matrix for blocks of 4 x 4"}, x[0], blocks_of(4, 4));
  refused({"expected x of dtype Float, BFloat16 or Half", "got Int"}, x.to(torch::kInt), {});
  refused({"expected blocks"}, x, blocks_of(0, 4));
  refused({"at least 1 x 1, got -1 x 4"}, x, blocks_of(-1, 4));
  refused({"MX blocks of 1 x 32 or 32 x 1, got 1 x 16"}, x,
          {.layout = ScaleLayout::blocks(1, 16), .rule = ScaleRule::e8m0});
  refused({"expected a rule"}, x, {.layout = ScaleLayout::blocks(1, 4)});
  refused({"expected the scales of rows"}, x, {.layout = ScaleLayout::per_row()});
  CastSpec epsilon = blocks_of(4, 4);
  epsilon.amax_epsilon = -1;
  refused({"amax_epsilon"}, x, epsilon);
  auto q = runtime::quantize(x, blocks_of(4, 4));
  EXPECT_TRUE(throws_with({"expected an output of dtype"}, [&] { runtime::dequantize(q, torch::kInt); }));
  q.grid = torch::ones({2, 3});
  q.layout = ScaleLayout::blocks(2, 2);
  EXPECT_TRUE(throws_with({"expected a grid of 2 x 2"}, [&] { runtime::dequantize(q, torch::kFloat); }));
}

// When codes are shared, and when they must not be.

bool shared(const Fp8Tensor& a, const Fp8Tensor& b) { return a.codes.is_same(b.codes); }

const CastSpec kRows{.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max};

TEST(CastOnce, SharesCodesOfTheSameCast) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const Fp8Tensor first = runtime::cast_once(x, x, kRows);
  EXPECT_TRUE(shared(first, runtime::cast_once(x, x, kRows)));
  EXPECT_TRUE(same_bits(first.codes.view(at::kByte), runtime::quantize(x, kRows).codes.view(at::kByte)));
  EXPECT_FALSE(shared(first, runtime::cast_once(x, x, {.scale = 2})));
  EXPECT_FALSE(shared(runtime::cast_once(x, x, {.scale = 2}), runtime::cast_once(x, x, {.scale = 4})));
  EXPECT_FALSE(shared(first, runtime::cast_once(x, x.to(at::kBFloat16), kRows)));
  EXPECT_TRUE(shared(first, runtime::cast_once(x, x, kRows))) << "others do not drive it out";
}

TEST(CastOnce, AnyChangeOfTheTensorCastsAgain) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const Fp8Tensor first = runtime::cast_once(x, x, kRows);
  x.view({-1}).slice(0, 0, 1).add_(1);  // through a view
  const Fp8Tensor second = runtime::cast_once(x, x, kRows);
  EXPECT_FALSE(shared(first, second));
  EXPECT_TRUE(same_bits(second.codes.view(at::kByte), runtime::quantize(x, kRows).codes.view(at::kByte)));
  const at::Tensor part = x.slice(0, 0, 2);
  EXPECT_EQ(runtime::cast_once(part, part, kRows).codes.size(0), 2);
  EXPECT_FALSE(shared(second, runtime::cast_once(x, x, kRows))) << "one tensor of the memory at a time";
}

TEST(CastOnce, WhatHasNoVersionOrDrawsNumbersIsCastEachTime) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const CastSpec stochastic{.stochastic = 7};
  EXPECT_FALSE(shared(runtime::cast_once(x, x, stochastic), runtime::cast_once(x, x, stochastic)));
  const c10::InferenceMode inference;
  const at::Tensor y = hpu(at::randn({4, 64}));
  EXPECT_FALSE(shared(runtime::cast_once(y, y, kRows), runtime::cast_once(y, y, kRows)));
}

TEST(CastOnce, WhatInferenceModeKeepsIsOrdinary) {
  const at::Tensor x = hpu(at::randn({4, 64})), y = hpu(at::randn({4, 64}));
  const CastSpec turned{.format = kernels::Format::E5M2};
  {
    const c10::InferenceMode inference;
    EXPECT_FALSE(runtime::cast_once(x, x, kRows).codes.is_inference());
    EXPECT_FALSE(runtime::cast_both_once(y, y, {.scale = 2}, turned).first.codes.is_inference());
    EXPECT_TRUE(c10::InferenceMode::is_enabled() && !at::GradMode::is_enabled());
    EXPECT_TRUE(at::ones({2}, on_hpu()).is_inference());
    const at::Tensor z = hpu(at::randn({4, 64}));
    runtime::keep_cast(x, {.scale = 8}, runtime::quantize(z, {.scale = 8}));  // of an inference tensor: not kept
  }
  EXPECT_FALSE(runtime::cast_once(x, x, {.scale = 8}).codes.is_inference());
  EXPECT_TRUE(same_bits(runtime::cast_once(x, x, kRows).codes.view(at::kByte),
                        runtime::quantize(x, kRows).codes.view(at::kByte)));
}

TEST(CastOnce, TellsTheAmaxOfEachAsker) {
  const at::Tensor x = hpu(at::tensor({1.0f, -3.0f, 2.0f}));
  float amax = 0;
  const Fp8Tensor silent = runtime::cast_once(x, x, {.scale = 2});
  EXPECT_FALSE(shared(silent, runtime::cast_once(x, x, {.scale = 2, .amax = &amax}))) << "it had to look";
  EXPECT_EQ(amax, 3.0f);
  amax = 0;
  EXPECT_TRUE(shared(silent, runtime::cast_once(x, x, {.scale = 2, .amax = &amax})));
  EXPECT_EQ(amax, 3.0f);
  EXPECT_EQ(runtime::amax_once(x, x), 3.0f);
  x.mul_(2);
  EXPECT_EQ(runtime::amax_once(x, x), 6.0f);
}

TEST(CastOnce, BothFormats) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const CastSpec narrow{.scale = 2}, wide{.format = kernels::Format::E5M2};
  const auto first = runtime::cast_both_once(x, x, narrow, wide), again = runtime::cast_both_once(x, x, narrow, wide);
  EXPECT_TRUE(shared(first.first, again.first) && shared(first.second, again.second));
  EXPECT_TRUE(shared(first.second, runtime::cast_once(x, x, wide)));
}

TEST(CastOnce, BothLayoutsOfOneCast) {
  const at::Tensor x = hpu(at::randn({4, 64})), y = hpu(at::randn({4, 64}));
  const CastSpec spec{.scale = 2};
  CastSpec turned = spec;
  turned.transpose = true;
  float amax = 0;
  CastSpec telling = spec;
  telling.amax = &amax;
  const auto first = runtime::cast_both_once(x, x, telling, turned);
  EXPECT_EQ(amax, x.abs().max().item<float>());
  const auto again = runtime::cast_both_once(x, x, spec, turned);
  EXPECT_TRUE(shared(first.first, again.first) && shared(first.second, again.second));
  EXPECT_TRUE(shared(first.first, runtime::cast_once(x, x, spec)));
  const Fp8Tensor before = runtime::cast_once(y, y, spec);
  const auto both = runtime::cast_both_once(y, y, spec, turned);
  EXPECT_TRUE(both.second.codes.t().is_contiguous());
  EXPECT_TRUE(same_bits(both.second.codes.view(at::kByte).contiguous(), before.codes.view(at::kByte)));
}

TEST(CastOnce, KeepsNothingLongerThanTheTensor) {
  at::Tensor x = hpu(at::randn({4, 64}));
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> codes(
      runtime::cast_once(x, x, kRows).codes.getIntrusivePtr());
  EXPECT_FALSE(codes.expired());
  x = at::Tensor();
  EXPECT_TRUE(codes.expired());
  at::Tensor y = hpu(at::randn({4, 64}));
  codes = decltype(codes)(runtime::cast_both_once(y, y, {}, {.transpose = true}).second.codes.getIntrusivePtr());
  y = at::Tensor();
  EXPECT_TRUE(codes.expired());
}

// Codes that a kernel writes beside a tensor: cast_once() finds exactly those that it would have made.

const CastSpec kEachRow{.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max};

/// As a kernel does that has written y.
void cast_beside(const at::Tensor& y, const CastSpec& spec) {
  const CastBeside cast(y, spec);
  const kernels::CastArgs rows = cast.rows();
  const std::int64_t n = y.size(-1), count = n == 0 ? 0 : y.numel() / n;
  const char* first = static_cast<const char*>(runtime::cpu_alias(y).const_data_ptr());
  for (std::int64_t r = 0; r < count && rows.codes != nullptr; ++r)
    kernels::cast_row(rows, runtime::float_type_of(y.scalar_type()),
                      first + r * n * static_cast<std::int64_t>(y.element_size()), r, n);
  cast.keep();
}

/// Whether cast_once() has no need to cast: it doesn't see a write through Tensor::data.
bool is_known(const at::Tensor& y, const CastSpec& spec) {
  y.data().zero_();
  return runtime::cast_once(y, y, spec).codes.view(at::kByte).count_nonzero().item<std::int64_t>() != 0;
}

TEST(CastBeside, IsTheCastOfItsTensorToTheBit) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto format : {kernels::Format::E4M3, kernels::Format::E5M2})
      for (const auto dialect : {kernels::Dialect::ocp, kernels::Dialect::gaudi2})
        for (CastSpec spec : {kEachRow, CastSpec{.scale = 3.3f, .scale_inv = 1 / 3.3f},
                              CastSpec{.scale = 3.3f, .scale_inv = 1 / 3.3f, .vendor = true}}) {
          spec.format = format, spec.max = kernels::fp8_max(format, dialect);
          at::Tensor values = at::randn({2, 3, 33}) * 100;
          values[0][1].zero_();
          values[1][0][5] = infinity, values[1][2][7] = nan;
          const at::Tensor y = hpu(values.to(dtype));
          const Fp8Tensor expected = runtime::quantize(y, spec);
          cast_beside(y, spec);
          const Fp8Tensor found = runtime::cast_once(y, y, spec);
          EXPECT_TRUE(same_bits(found.codes, expected.codes));
          EXPECT_TRUE(same_bits(found.grid, expected.grid));
          EXPECT_EQ(found.scale_inv, expected.scale_inv);
          EXPECT_TRUE(found.layout == expected.layout);
          EXPECT_TRUE(is_known(y, spec));
        }
}

TEST(CastBeside, OtherCastsAreMadeAsWithout) {
  const at::Tensor y = hpu(at::randn({3, 40}));
  cast_beside(y, kEachRow);
  const CastSpec other{.scale = 2, .scale_inv = 0.5f};
  EXPECT_TRUE(same_bits(runtime::cast_once(y, y, other).codes, runtime::quantize(y, other).codes));
  y.add_(1);
  EXPECT_TRUE(same_bits(runtime::cast_once(y, y, kEachRow).codes, runtime::quantize(y, kEachRow).codes));
}

TEST(CastBeside, MakesNoneWhereNobodyCouldFindIt) {
  const CastSpec blocks{.layout = ScaleLayout::blocks(1, 8), .rule = ScaleRule::amax_over_max},
      tensor{.rule = ScaleRule::amax_over_max}, stochastic{.stochastic = 3};
  const at::Tensor y = hpu(at::randn({3, 40}));
  for (const CastSpec& spec : {blocks, tensor, stochastic}) EXPECT_EQ(CastBeside(y, spec).rows().codes, nullptr);
  EXPECT_EQ(CastBeside(y, std::nullopt).rows().codes, nullptr);
  EXPECT_EQ(CastBeside(at::randn({3, 40}), kEachRow).rows().codes, nullptr) << "no memory of ours";
  EXPECT_EQ(CastBeside(hpu(at::randn({3, 0})), kEachRow).rows().codes, nullptr);
  EXPECT_NE(CastBeside(y, kEachRow).rows().codes, nullptr);
  EXPECT_FALSE(is_known(y, kEachRow)) << "not kept";
  const c10::InferenceMode inference;
  EXPECT_EQ(CastBeside(hpu(at::randn({3, 40})), kEachRow).rows().codes, nullptr) << "no version";
}

// Codes of any strides as dense rows: the same bytes that contiguous() gives.

void expect_rows(const at::Tensor& codes) {
  kernels::Scratch scratch;
  const runtime::DenseCodes dense(codes, scratch);
  const at::Tensor rows = codes.cpu().contiguous();
  EXPECT_EQ(std::memcmp(dense.data(), rows.const_data_ptr(), static_cast<std::size_t>(rows.numel())), 0)
      << codes.sizes() << " " << codes.strides();
}

TEST(DenseCodes, OfAnyStrides) {
  torch::manual_seed(1);
  const at::Tensor all = at::randint(0, 256, {3, 70, 130}, at::kByte).to(kHpu);
  for (const auto type : {at::kByte, at::kFloat8_e4m3fn}) {
    const at::Tensor codes = all.view(type);
    expect_rows(codes);
    expect_rows(codes.transpose(1, 2));
    expect_rows(codes[1].t());
    expect_rows(codes.narrow(2, 3, 50).transpose(1, 2));
    expect_rows(codes.narrow(1, 3, 50));
    expect_rows(codes.transpose(0, 1));
    expect_rows(codes.narrow(1, 0, 0).transpose(1, 2));
    expect_rows(codes.select(2, 5));
  }
}

TEST(DenseCodes, WhatIsDenseIsReadWhereItIs) {
  const at::Tensor codes = at::zeros({4, 8}, at::kByte).to(kHpu);
  kernels::Scratch scratch;
  EXPECT_EQ(runtime::DenseCodes(codes, scratch).data(), codes.const_data_ptr());
  EXPECT_NE(runtime::DenseCodes(codes.t(), scratch).data(), codes.const_data_ptr());
  const runtime::WeightCodes weight(codes, /*again=*/false, scratch);
  EXPECT_EQ(weight.layout(), kernels::Layout::row_major);
  EXPECT_EQ(weight.data(), codes.const_data_ptr());
}

}  // namespace
}  // namespace fp8::test
