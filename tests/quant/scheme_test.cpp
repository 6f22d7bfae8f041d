// SPDX-License-Identifier: Apache-2.0
// Scales and codes of both conventions against their formulas, element by element.
#include "fp8/quant/scheme.h"

#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

using recipes::Dialect;
using recipes::FloatType;
using test::throws_with;

Scheme own(Dialect dialect, WeightGranularity weights = WeightGranularity::tensor) {
  Scheme s;
  s.dialect = dialect;
  s.weights = weights;
  return s;
}

Scheme inc(const char* method, Dialect dialect, FloatType hp = FloatType::BF16) {
  Scheme s = own(dialect);
  s.convention = Convention::inc;
  s.hp = hp;
  s.weight_method = recipes::scale_method_from_name(method).weight;
  return s;
}

TEST(Scheme, OwnScalesAreAmaxOverMax) {
  for (Dialect dialect : {Dialect::gaudi2, Dialect::gaudi3, Dialect::ocp}) {
    const float max = dialect == Dialect::gaudi2 ? 240.0f : 448.0f;
    const std::vector<float> amax = {0.7f, 448.0f, 0.0f, 1e-3f, 3e38f};
    const auto s = weight_scales(amax, own(dialect, WeightGranularity::channel), "m");
    ASSERT_EQ(s.scale_inv.size(), amax.size());
    for (std::size_t i = 0; i < amax.size(); ++i) {
      const float inv = amax[i] == 0 ? 1.0f : amax[i] / max;
      EXPECT_EQ(s.scale_inv[i], inv) << amax[i];
      EXPECT_EQ(s.scale[i], 1.0f / inv) << amax[i];
    }
  }
}

TEST(Scheme, IncScalesAreTakenInBf16) {
  // weight: raw = bf16(amax / (448 * 0.5)), POW2 rounds up; IDENTITY keeps it.
  for (float amax : {0.7f, 1.0f, 3.14159f, 0.02f}) {
    const float raw = test::to_bf16(test::to_bf16(amax) / test::to_bf16(224.0f));
    const auto identity = weight_scales({amax}, inc("maxabs_arbitrary", Dialect::gaudi3), "m");
    EXPECT_EQ(identity.scale_inv[0], raw) << amax;
    EXPECT_EQ(identity.scale[0], test::to_bf16(1.0f / raw)) << amax;
    const auto pow2 = weight_scales({amax}, inc("maxabs_pow2", Dialect::gaudi3), "m");
    EXPECT_EQ(pow2.scale_inv[0], std::exp2(std::ceil(std::log2(raw)))) << amax;
  }
  // gaudi2's hardware knows 16, 1, 1/16, 1/256: raw 1/120 -> 2^-6 -> the next of them.
  EXPECT_EQ(weight_scales({1.0f}, inc("maxabs_hw", Dialect::gaudi2), "m").scale_inv[0], 0x1p-4f);
  EXPECT_EQ(weight_scales({1.0f}, inc("unit_scale", Dialect::gaudi2), "m").scale_inv[0], 1.0f);
}

TEST(Scheme, InputScalesAlike) {
  Scheme s = own(Dialect::ocp);
  set_input_scale(s, 12.5f, {}, "m");
  EXPECT_EQ(s.input_scale_inv, 12.5f / 448.0f);
  EXPECT_EQ(s.input_scale, 1.0f / (12.5f / 448.0f));
  Scheme i = inc("maxabs_hw", Dialect::gaudi2);
  set_input_scale(i, 3.0f, recipes::scale_method_from_name("maxabs_hw").activation, "m");  // 3 / 60 = 0.05 -> 2^-4
  EXPECT_EQ(i.input_scale_inv, 0x1p-4f);
  EXPECT_EQ(i.input_scale, 16.0f);
  EXPECT_EQ(scale_for(s, 0.25f, "m"), 4.0f);
  EXPECT_EQ(scale_for(i, test::to_bf16(0.3f), "m"), test::to_bf16(1.0f / test::to_bf16(0.3f)));
}

TEST(Scheme, NaNAndInfAreNamed) {
  for (const Scheme& s : {own(Dialect::ocp), inc("maxabs_hw", Dialect::gaudi3)}) {
    EXPECT_TRUE(throws_with({"up_proj"}, [&] { weight_scales({NAN}, s, "up_proj"); }));
    EXPECT_TRUE(throws_with({"up_proj"}, [&] { weight_scales({1.0f, INFINITY}, s, "up_proj"); }));
  }
}

/// w of dtype, cast in one go and in two pieces, against `code(value, row)`.
template <class Code>
void expect_codes(const at::Tensor& w, FloatType type, const WeightScales& scales, const Scheme& scheme, Code code) {
  const std::int64_t rows = w.size(0), cols = w.size(1);
  std::vector<std::uint8_t> whole(static_cast<std::size_t>(rows * cols)), pieces(whole.size());
  cast_weight_rows(w.const_data_ptr(), type, rows, cols, 0, scales, scheme, whole.data());
  const std::int64_t first = rows / 2;
  cast_weight_rows(w.const_data_ptr(), type, first, cols, 0, scales, scheme, pieces.data());
  cast_weight_rows(static_cast<const char*>(w.const_data_ptr()) + first * cols * w.element_size(), type, rows - first, cols, first, scales, scheme,
                   pieces.data() + first * cols);
  EXPECT_EQ(whole, pieces);
  const at::Tensor values = w.to(at::kFloat).contiguous();
  for (std::int64_t i = 0; i < w.numel(); ++i) {
    ASSERT_EQ(whole[static_cast<std::size_t>(i)], code(values.const_data_ptr<float>()[i], static_cast<std::size_t>(i / cols))) << i;
  }
}

constexpr std::pair<at::ScalarType, FloatType> kTypes[] = {{at::kFloat, FloatType::F32}, {at::kBFloat16, FloatType::BF16}, {at::kHalf, FloatType::F16}};

TEST(Scheme, OwnCodesAreTheNearestOfTheF32Product) {
  torch::manual_seed(1);
  const at::Tensor w = torch::randn({7, 33}) * torch::logspace(-3, 1, 7).unsqueeze(1);
  for (const auto& [dtype, type] : kTypes) {
    const at::Tensor typed = w.to(dtype);
    for (Dialect dialect : {Dialect::gaudi2, Dialect::ocp}) {
      for (auto granularity : {WeightGranularity::tensor, WeightGranularity::channel}) {
        const Scheme s = own(dialect, granularity);
        const auto scales = weight_scales(test::amax_reference(typed, granularity == WeightGranularity::tensor ? 1 : 7), s, "m");
        expect_codes(typed, type, scales, s, [&](float v, std::size_t row) {
          return test::nearest_code(v * scales.scale[scales.scale.size() > 1 ? row : 0], s.fp8_max());
        });
      }
    }
  }
}

TEST(Scheme, IncCodesRoundTheProductToBf16First) {
  torch::manual_seed(2);
  const at::Tensor w = torch::randn({6, 40});
  for (const auto& [dtype, type] : kTypes) {
    const at::Tensor typed = w.to(dtype);
    for (const char* method : {"maxabs_hw", "maxabs_arbitrary", "act_maxabs_pow2_weights_pcs_maxabs_pow2"}) {
      Scheme s = inc(method, Dialect::gaudi3);
      const bool channel = s.weight_method.granularity == recipes::Granularity::PCS;
      const auto scales = weight_scales(test::amax_reference(typed, channel ? 6 : 1), s, "m");
      ASSERT_EQ(scales.scale.size(), channel ? 6u : 1u);
      expect_codes(typed, type, scales, s, [&](float v, std::size_t row) {
        return test::nearest_code(test::to_bf16(test::to_bf16(v) * scales.scale[channel ? row : 0]), s.fp8_max());
      });
    }
  }
}

TEST(Scheme, IncInF32RoundsOnce) {
  torch::manual_seed(3);
  const at::Tensor w = torch::randn({4, 16});
  const Scheme s = inc("maxabs_arbitrary", Dialect::gaudi2, FloatType::F32);
  const auto scales = weight_scales(test::amax_reference(w, 1), s, "m");
  EXPECT_EQ(scales.scale_inv[0], test::amax_reference(w, 1)[0] / 120.0f);
  expect_codes(w, FloatType::F32, scales, s, [&](float v, std::size_t) { return test::nearest_code(v * scales.scale[0], 240.0f); });
}

TEST(Scheme, E5M2HasItsOwnCodes) {
  Scheme s = inc("unit_scale", Dialect::gaudi3);
  s.format = recipes::Format::E5M2;
  const at::Tensor w = (torch::randn({3, 50}) * 1000).to(at::kBFloat16);
  const auto scales = weight_scales({1.0f}, s, "m");
  expect_codes(w, FloatType::BF16, scales, s, [&](float v, std::size_t) { return test::nearest_code(v, 57344.0f, test::e5m2_value); });
}

TEST(Scheme, ZeroRowsGiveScaleOneAndZeroCodes) {
  const at::Tensor w = torch::tensor({{0.0f, -0.0f}, {1.0f, -2.0f}});
  const Scheme s = own(Dialect::ocp, WeightGranularity::channel);
  const auto scales = weight_scales(test::amax_reference(w, 2), s, "m");
  EXPECT_EQ(scales.scale_inv, (std::vector<float>{1.0f, 2.0f / 448.0f}));
  std::uint8_t codes[4];
  cast_weight_rows(w.const_data_ptr(), FloatType::F32, 2, 2, 0, scales, s, codes);
  EXPECT_EQ(codes[0], 0x00);
  EXPECT_EQ(codes[1], 0x80);  // -0 stays -0
  EXPECT_EQ(codes[3], 0xFE);  // -448
}

TEST(Scheme, DescribesItself) {
  EXPECT_EQ(own(Dialect::ocp, WeightGranularity::channel).describe(), "E4M3 channel weights, dynamic token activations, ocp");
  Scheme s = own(Dialect::gaudi2);
  s.activations = ActivationScaling::static_tensor;
  EXPECT_EQ(s.describe(), "E4M3 tensor weights, static tensor activations, gaudi2");
  EXPECT_STREQ(name_of(Convention::own), "own");
  EXPECT_STREQ(name_of(Convention::inc), "inc");
}

}  // namespace
}  // namespace fp8::quant
