// SPDX-License-Identifier: Apache-2.0
// Scales and codes of both conventions against their formulas, element by element.
#include "fp8/quant/scheme/scheme.h"

#include "fp8/quant/model/convert.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/enum_names.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using recipes::Dialect;
using recipes::FloatType;

Scheme own(Dialect dialect, Granularity weights = Granularity::tensor) {
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
    const auto s = weight_scales(amax, own(dialect, Granularity::channel), "m");
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
    EXPECT_REFUSED(weight_scales({NAN}, s, "up_proj"), "up_proj");
    EXPECT_REFUSED(weight_scales({1.0f, INFINITY}, s, "up_proj"), "up_proj");
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
  cast_weight_rows(static_cast<const char*>(w.const_data_ptr()) + first * cols * w.element_size(), type, rows - first,
                   cols, first, scales, scheme, pieces.data() + first * cols);
  EXPECT_EQ(whole, pieces);
  const at::Tensor values = w.to(at::kFloat).contiguous();
  for (std::int64_t i = 0; i < w.numel(); ++i)
    ASSERT_EQ(whole[static_cast<std::size_t>(i)],
              code(values.const_data_ptr<float>()[i], static_cast<std::size_t>(i / cols)))
        << i;
}

constexpr std::pair<at::ScalarType, FloatType> kTypes[] = {
    {at::kFloat, FloatType::F32}, {at::kBFloat16, FloatType::BF16}, {at::kHalf, FloatType::F16}};

TEST(Scheme, OwnCodesAreTheNearestOfTheF32Product) {
  torch::manual_seed(1);
  const at::Tensor w = torch::randn({7, 33}) * torch::logspace(-3, 1, 7).unsqueeze(1);
  for (const auto& [dtype, type] : kTypes) {
    const at::Tensor typed = w.to(dtype);
    for (Dialect dialect : {Dialect::gaudi2, Dialect::ocp})
      for (auto granularity : {Granularity::tensor, Granularity::channel}) {
        const Scheme s = own(dialect, granularity);
        const auto scales =
            weight_scales(test::amax_reference(typed, granularity == Granularity::tensor ? 1 : 7), s, "m");
        expect_codes(typed, type, scales, s, [&](float v, std::size_t row) {
          return test::nearest_code(v * scales.scale[scales.scale.size() > 1 ? row : 0], s.fp8_max());
        });
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
      const bool channel = s.weight_method.granularity == recipes::Granularity::channel;
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
  expect_codes(w, FloatType::F32, scales, s,
               [&](float v, std::size_t) { return test::nearest_code(v * scales.scale[0], 240.0f); });
}

TEST(Scheme, E5M2HasItsOwnCodes) {
  Scheme s = inc("unit_scale", Dialect::gaudi3);
  s.format = recipes::Format::E5M2;
  const at::Tensor w = (torch::randn({3, 50}) * 1000).to(at::kBFloat16);
  const auto scales = weight_scales({1.0f}, s, "m");
  expect_codes(w, FloatType::BF16, scales, s,
               [&](float v, std::size_t) { return test::nearest_code(v, 57344.0f, test::e5m2_value); });
}

TEST(Scheme, ZeroRowsGiveScaleOneAndZeroCodes) {
  const at::Tensor w = torch::tensor({{0.0f, -0.0f}, {1.0f, -2.0f}});
  const Scheme s = own(Dialect::ocp, Granularity::channel);
  const auto scales = weight_scales(test::amax_reference(w, 2), s, "m");
  EXPECT_EQ(scales.scale_inv, (std::vector<float>{1.0f, 2.0f / 448.0f}));
  std::uint8_t codes[4];
  cast_weight_rows(w.const_data_ptr(), FloatType::F32, 2, 2, 0, scales, s, codes);
  EXPECT_EQ(codes[0], 0x00);
  EXPECT_EQ(codes[1], 0x80);  // -0 stays -0
  EXPECT_EQ(codes[3], 0xFE);  // -448
}

TEST(Scheme, DescribesItself) {
  EXPECT_EQ(own(Dialect::ocp, Granularity::channel).describe(), "E4M3 channel weights, dynamic token activations, ocp");
  Scheme s = own(Dialect::gaudi2);
  s.activations = ActivationScaling::static_tensor;
  EXPECT_EQ(s.describe(), "E4M3 tensor weights, static tensor activations, gaudi2");
}

TEST(Scheme, Names) {
  test::check_names<Convention>();
  test::check_names<WeightWord>();
  test::check_names<ActivationScaling>();
  test::check_names<Compute>();
}

Scheme blocks(std::int64_t rows, std::int64_t cols, bool power_of_two = false, Dialect dialect = Dialect::ocp) {
  Scheme s = own(dialect, Granularity::block);
  s.block = {rows, cols};
  s.power_of_two = power_of_two;
  return s;
}

/// amax of each block of a matrix, row by row of the grid.
std::vector<float> block_amax_reference(const at::Tensor& w, const Block& b) {
  const at::Tensor v = w.to(at::kFloat).abs();
  std::vector<float> amax;
  for (std::int64_t r = 0; r < w.size(0); r += b.rows)
    for (std::int64_t c = 0; c < w.size(1); c += b.cols)
      amax.push_back(v.slice(0, r, std::min(w.size(0), r + b.rows))
                         .slice(1, c, std::min(w.size(1), c + b.cols))
                         .max()
                         .item<float>());
  return amax;
}

TEST(Scheme, BlocksHaveScalesAndCodesOfTheirOwn) {
  torch::manual_seed(5);
  for (const auto& [rows, cols, block] : {std::tuple<std::int64_t, std::int64_t, Block>{256, 384, {128, 128}},
                                          {300, 200, {128, 128}},
                                          {7, 33, {4, 16}},
                                          {9, 5, {64, 64}},
                                          {5, 40, {1, 8}}}) {
    at::Tensor w = torch::randn({rows, cols}) * torch::logspace(-2, 2, rows).unsqueeze(1);
    w.slice(0, 0, block.rows).slice(1, 0, block.cols).zero_();
    for (const auto& [dtype, type] : kTypes)
      for (bool power_of_two : {false, true}) {
        const at::Tensor typed = w.to(dtype);
        const Scheme s = blocks(block.rows, block.cols, power_of_two, rows == 7 ? Dialect::gaudi2 : Dialect::ocp);
        const auto grid = scale_grid(s, rows, cols);
        const std::vector<float> amax = block_amax_reference(typed, block);
        ASSERT_EQ(grid.size(), static_cast<std::int64_t>(amax.size()));
        EXPECT_EQ(block_amax(typed.const_data_ptr(), type, rows, cols, s), amax);
        const WeightScales scales = weight_scales(amax, s, "m");
        for (std::size_t i = 0; i < amax.size(); ++i) {
          const float raw = test::own_scale_inv(amax[i], s.fp8_max());
          EXPECT_EQ(scales.scale_inv[i], power_of_two ? std::exp2(std::ceil(std::log2(raw))) : raw);
          EXPECT_EQ(scales.scale[i], 1.0f / scales.scale_inv[i]);
        }
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols)), cast(codes.size()), pieces;
        EXPECT_EQ(quantize_weight_blocks(typed.const_data_ptr(), type, rows, cols, s, "m", codes.data()),
                  scales.scale_inv);
        cast_weight_rows(typed.const_data_ptr(), type, rows, cols, 0, scales, s, cast.data());
        EXPECT_EQ(codes, cast);
        const at::Tensor values = typed.to(at::kFloat).contiguous();
        const auto place = [&](std::int64_t r, std::int64_t c) {
          return static_cast<std::size_t>(r / block.rows * grid.cols + c / block.cols);
        };
        for (std::int64_t i = 0; i < rows * cols; ++i)
          ASSERT_EQ(codes[static_cast<std::size_t>(i)],
                    test::nearest_code(values.const_data_ptr<float>()[i] * scales.scale[place(i / cols, i % cols)],
                                       s.fp8_max()))
              << i;
        std::vector<float> piece_scales;  // band by band, as a stream does
        for (std::int64_t row = 0; row < rows; row += block.rows) {
          const std::int64_t n = std::min(block.rows, rows - row);
          const void* data = static_cast<const char*>(typed.const_data_ptr()) + row * cols * typed.element_size();
          std::vector<std::uint8_t> piece(static_cast<std::size_t>(n * cols)), same(piece.size());
          const auto inv = quantize_weight_blocks(data, type, n, cols, s, "m", piece.data());
          cast_weight_rows(data, type, n, cols, row, scales, s, same.data());
          EXPECT_EQ(piece, same);
          EXPECT_EQ(scales.of_rows(row, n, s, cols).scale_inv, inv);
          pieces.insert(pieces.end(), piece.begin(), piece.end());
          piece_scales.insert(piece_scales.end(), inv.begin(), inv.end());
        }
        EXPECT_EQ(pieces, codes);
        EXPECT_EQ(piece_scales, scales.scale_inv);
        for (const auto& [first, n] : {std::pair<std::int64_t, std::int64_t>{0, rows},
                                       {rows / 3, rows - rows / 3},
                                       {rows / 2, 1},
                                       {1, rows / 2}}) {  // any rows
          std::vector<float> y(static_cast<std::size_t>(n * cols));
          decode_weight_rows(codes.data() + first * cols, n, cols, first, scales.scale_inv.data(), grid.size(), s,
                             y.data(), FloatType::F32);
          for (std::int64_t i = 0; i < n * cols; ++i) {
            const std::int64_t at = first * cols + i;
            ASSERT_EQ(y[static_cast<std::size_t>(i)], test::e4m3_value(codes[static_cast<std::size_t>(at)]) *
                                                          scales.scale_inv[place(at / cols, at % cols)]);
          }
        }
      }
  }
}

/// The least byte e with 448 * 2^(e - 127) >= amax: exact in f64.
int mx_exponent(double amax) {
  int e = 0;
  while (448.0 * std::ldexp(1.0, e - 127) < amax) ++e;
  return e;
}

TEST(Scheme, MxScalesAreTheLeastPowersThatHoldTheBlock) {
  EXPECT_EQ(blocks(1, 32, true).describe(), "E4M3 mx weights, dynamic token activations, ocp");
  EXPECT_FALSE(blocks(1, 32).is_mx() || blocks(32, 1, true).is_mx() || blocks(128, 128, true).is_mx());
  const Scheme s = blocks(1, 32, true);
  std::vector<float> amax = {0.0f, 448.0f, 1.0f, 0x1p-126f, 3e38f, 0x1.8p-149f, 448 * 0x1p-127f};
  for (int k = -110; k < 110; ++k) {
    const float edge = std::ldexp(448.0f, k);
    for (float a : {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, INFINITY), edge * 0.7f}) amax.push_back(a);
  }
  const auto n = static_cast<std::int64_t>(amax.size());
  const WeightScales scales = weight_scales(amax, s, "m");
  std::vector<float> w(amax.size() * 32);
  for (std::size_t i = 0; i < amax.size(); ++i) {
    EXPECT_EQ(scales.scale_inv[i], std::ldexp(1.0, mx_exponent(amax[i]) - 127)) << amax[i];
    EXPECT_EQ(scales.scale[i], std::ldexp(1.0, 127 - mx_exponent(amax[i]))) << amax[i];
    for (int c = 0; c < 32; ++c) w[i * 32 + static_cast<std::size_t>(c)] = amax[i] * (static_cast<float>(c - 31) / 31);
  }
  std::vector<std::uint8_t> codes(w.size());
  EXPECT_EQ(quantize_weight_blocks(w.data(), FloatType::F32, n, 32, s, "m", codes.data()), scales.scale_inv);
  std::vector<float> y(w.size());
  decode_weight_rows(codes.data(), n, 32, 0, scales.scale_inv.data(), n, s, y.data(), FloatType::F32);
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double scale = scales.scale_inv[i / 32];
    EXPECT_EQ(codes[i], test::nearest_code(static_cast<float>(w[i] / scale), 448)) << w[i];
    EXPECT_EQ(y[i], test::e4m3_value(codes[i]) * scale) << "down to the smallest of f32";
  }
  for (const float bad : {NAN, INFINITY}) {
    w[5] = bad;
    EXPECT_REFUSED(quantize_weight_blocks(w.data(), FloatType::F32, 1, 32, s, "up_proj", codes.data()), "up_proj",
                   std::isnan(bad) ? "nan" : "inf");
    EXPECT_REFUSED(weight_scales({bad}, s, "up_proj"), "up_proj");
  }
}

TEST(Scheme, BlocksRefuseWhatTheyCannotDo) {
  const std::vector<float> w = {1, 2, 3, NAN, 5, 6, INFINITY, 8};
  std::vector<std::uint8_t> codes(8);
  const Scheme s = blocks(2, 2);
  EXPECT_REFUSED(quantize_weight_blocks(w.data(), FloatType::F32, 2, 4, s, "up_proj", codes.data()), "up_proj", "nan");
  EXPECT_REFUSED(quantize_weight_blocks(w.data() + 4, FloatType::F32, 1, 4, s, "up_proj", codes.data()), "up_proj",
                 "inf");
  EXPECT_REFUSED(cast_weight_rows(w.data(), FloatType::F32, 1, 4, 1, {{1, 1, 1, 1}, {1, 1, 1, 1}}, s, codes.data()),
                 "multiple of 2", "row 1");
  EXPECT_TRUE(
      throws_with({"multiple of 2", "row 1"}, [&] { WeightScales{{1, 1, 1, 1}, {1, 1, 1, 1}}.of_rows(1, 1, s, 4); }));
  Scheme config = s;
  config.convention = Convention::inc;
  EXPECT_REFUSED(quantize_weight_blocks(w.data(), FloatType::F32, 1, 2, config, "up_proj", codes.data()), "up_proj",
                 "own convention");
}

// Scales under which most of a tensor becomes zero are warned of: in memory, in checkpoints, at the first call.

PlanOptions single_scale() {
  PlanOptions o{.dialect = recipes::Dialect::gaudi3,
                .config = configs::parse_quant_config(
                    io::Json{{"hp_dtype", "fp32"}, {"scale_method", "hw_aligned_single_scale"}}, "q.json")};
  return o;
}

struct NetImpl : torch::nn::Module {
  torch::nn::Linear small = register_module("small", torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
  torch::nn::Linear large = register_module("large", torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
  NetImpl() {
    torch::manual_seed(3);
    small->weight.data().copy_(torch::randn({32, 64}) * 0.05);
    large->weight.data().copy_(torch::randn({32, 64}) * 50);
    to(test::kHpu);
  }
};
TORCH_MODULE(Net);

std::string line_of(const std::vector<std::string>& lines, const std::string& text) {
  for (const auto& line : lines)
    if (line.find(text) != std::string::npos) return line;
  return "";
}

TEST(Underflow, CountsWhatBecomesZeroAndWasNot) {
  // E4M3: 2^-9 is the smallest code, 2^-10 a tie that goes to zero.
  const float values[] = {0.0f, -0.0f, 0x1p-10f, -0x1p-10f, 0x1.1p-10f, 1.0f, 0x1p-30f};
  const auto counted = underflow_of_scale(values, recipes::FloatType::F32, 7, 1.0f, recipes::Format::E4M3);
  EXPECT_EQ(counted.lost, 3);
  EXPECT_EQ(counted.values, 5);
  EXPECT_TRUE(counted.most());
  EXPECT_EQ(underflow_of_scale(values, recipes::FloatType::F32, 7, 2.0f, recipes::Format::E4M3).lost, 1);
  EXPECT_EQ(underflow_of_scale(values, recipes::FloatType::F32, 7, 0x1p-7f, recipes::Format::E5M2).lost, 3)
      << "E5M2 ends at 2^-16";
  const std::uint8_t codes[] = {0x00, 0x80, 0x00, 0x80, 0x01, 0x38, 0x00};
  const auto of_codes = underflow_of_codes(values, recipes::FloatType::F32, 7, codes);
  EXPECT_EQ(of_codes.lost, 3);
  EXPECT_EQ(of_codes.values, 5);
}

TEST(Underflow, AnAmaxAloneTellsForNormalValues) {
  EXPECT_TRUE(loses_most(0x1p-8f, 1.0f, recipes::Format::E4M3));
  EXPECT_FALSE(loses_most(0x1.2p-8f, 1.0f, recipes::Format::E4M3));
  EXPECT_FALSE(loses_most(0.0f, 1.0f, recipes::Format::E4M3));
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({1 << 16}) * (0x1p-8 / 4.5);  // amax near 2^-8
  const auto seen =
      underflow_of_scale(x.const_data_ptr(), recipes::FloatType::F32, x.numel(), 1.0f, recipes::Format::E4M3);
  EXPECT_TRUE(seen.most()) << seen.share();
}

TEST(Underflow, AFixedScaleThatLosesTheWeightsIsWarnedOf) {
  Net net;
  const auto report = convert(*net, single_scale());
  EXPECT_THAT(line_of(report.warnings, "most weights"),
              AllOf(HasSubstr("HW_ALIGNED_SINGLE_SCALE: in 1 of 2 modules most weights become zero"),
                    HasSubstr("the worst: small, ")));
}

TEST(Underflow, AScaleThatFitsIsNotWarnedOf) {
  Net net;
  EXPECT_EQ(line_of(convert(*net, {}).warnings, "become zero"), "");
}

TEST(Underflow, InputsThatWereMeasuredFarBelowTheirScaleAreWarnedOf) {
  PlanOptions o = single_scale();
  o.measurements.emplace();
  o.measurements->modules = {{"small", {{0.4f}}, std::nullopt, std::nullopt},
                             {"large", {{40.0f}}, std::nullopt, std::nullopt}};  // 0.4 / 128 < 2^-8
  const std::vector<ModuleInfo> modules = {{"small", "Linear", {32, 64}}, {"large", "Linear", {32, 64}}};
  EXPECT_THAT(line_of(make_plan(modules, o).warnings, "inputs"),
              AllOf(HasSubstr("in 1 of 2 modules most inputs become zero"), HasSubstr("'small'")));
}

TEST(Underflow, TheFirstInputThatIsLostIsWarnedOfOnce) {
  const torch::NoGradGuard no_grad;
  Net net;
  convert(*net, single_scale());
  const at::Tensor x = hpu(torch::randn({8, 64}) * 0.05);
  test::Warnings warnings;
  net->large->forward(hpu(torch::randn({8, 64}) * 1000));
  EXPECT_EQ(warnings.texts.size(), 0u);
  net->small->forward(x);
  net->small->forward(x);
  net->large->forward(x);
  EXPECT_THAT(warnings.texts, ElementsAre(AllOf(HasSubstr("small: "),
                                                HasSubstr("become zero under its static scale (scale_inv 128)"))));
}

TEST(Underflow, ACheckpointWhoseWeightsAreLostIsWarnedOf) {
  const test::TempDir dir;
  Net net;
  test::write_tensors(dir / "in", {{"small.weight", net->small->weight.detach().cpu()},
                                   {"large.weight", net->large->weight.detach().cpu()}});
  test::write_text(dir / "in" / "config.json", R"({"model_type": "test"})");
  for (const bool per_channel : {false, true}) {
    CheckpointOptions o;
    o.overwrite = true;
    o.plan = single_scale();
    if (per_channel) {  // one far outlier in each row, of which the scale is made
      o.plan.config.reset();
      at::Tensor w = torch::randn({32, 64}) * 1e-3;
      w.select(1, 0).fill_(1e3);
      test::write_tensors(dir / "in", {{"small.weight", w}, {"large.weight", net->large->weight.detach().cpu()}});
    }
    const auto report = quantize_checkpoint(dir / "in", dir / "out", o);
    EXPECT_THAT(line_of(report.warnings, "most weights"),
                AllOf(HasSubstr("in 1 of 2 modules"), HasSubstr("the worst: small")))
        << per_channel;
  }
}

}  // namespace
}  // namespace fp8::quant
