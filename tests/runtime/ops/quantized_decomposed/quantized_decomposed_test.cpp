// SPDX-License-Identifier: Apache-2.0
// quantized_decomposed:: on hpu: float8 against the formula in f64 (not rounded to integers), integers against
// PyTorch's arithmetic on the CPU.
#include "fp8/runtime/ops/gemm/gemm.h"
#include "runtime/ops/op_call.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

using at::Tensor;

Tensor run(const char* name, const char* overload, torch::jit::Stack args) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow((std::string("quantized_decomposed::") + name).c_str(), overload);
  op.schema().checkAndNormalizeInputs(args);
  op.callBoxed(args);
  return args.back().toTensor();
}

double limit(at::ScalarType type) { return type == kE5M2 ? 57344 : type == kE4M3 ? 448 : 127; }

Tensor input(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  torch::manual_seed(8);
  return (at::randn(sizes) * 40).to(type);
}

/// Of an f32 result clamped to [min, max].
std::vector<int> clamped_codes(const Tensor& v, at::ScalarType type, double min, double max) {
  return codes_for(v.to(at::kDouble).clamp(min, max), type, limit(type));
}

TEST(QuantizePerTensor, Float8IsNotRoundedToIntegers) {
  for (const auto type : {kE4M3, kE5M2})
    for (const auto from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor x = input({6, 8}, from);
      const Tensor v = x.to(at::kFloat) / 3.0f + 2.0f;
      const auto expected = clamped_codes(v, type, -20, 100);
      EXPECT_EQ(codes_of(run("quantize_per_tensor", "", {hpu(x), 3.0, 2, -20, 100, code(type)})), expected);
      const Tensor scale = torch::tensor(3.0f), zero = torch::tensor(2);  // both 0-dim
      EXPECT_EQ(codes_of(run("quantize_per_tensor", "tensor", {hpu(x), hpu(scale), hpu(zero), -20, 100, code(type)})),
                expected);
      EXPECT_EQ(codes_of(run("quantize_per_tensor", "tensor2",
                             {hpu(x), hpu(scale), zero, torch::tensor(-20), hpu(torch::tensor(100)), code(type)})),
                expected);
    }
}

TEST(QuantizePerTensor, Float8SaturatesAsTheDeviceDoes) {
  const Tensor x = at::tensor({1000.f, -1000.f, NAN, 300.f}, on_hpu());
  EXPECT_EQ(codes_of(run("quantize_per_tensor", "", {x, 1.0, 0, -448, 448, code(kE4M3)})),
            (std::vector<int>{0x7E, 0xFE, 0x7F, code_of(300, false, 448)}));
  const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
  EXPECT_EQ(codes_of(run("quantize_per_tensor", "", {x, 1.0, 0, -448, 448, code(kE4M3)})),
            (std::vector<int>{0x77, 0xF7, 0x7F, 0x77}));
}

TEST(QuantizePerTensor, IntegersAsPyTorchDefinesThem) {
  for (const auto type : {at::kChar, at::kByte, at::kShort, at::kInt}) {
    const Tensor x = input({6, 8});
    const Tensor expected = at::clamp(at::round(x * (1.0 / 0.7)) + 10, 3, 100).to(type);
    EXPECT_TRUE(same_bits(run("quantize_per_tensor", "", {hpu(x), 0.7, 10, 3, 100, code(type)}), expected)) << type;
  }
}

TEST(QuantizePerChannel, Float8AndIntegers) {
  const Tensor scales = at::rand({8}) + 0.25, zeros = at::randint(-3, 4, {8}), x = input({2, 8, 5});
  const Tensor s = scales.view({1, 8, 1}), z = zeros.view({1, 8, 1});
  for (const std::int64_t axis : {1, -2}) {
    for (const auto type : {kE4M3, kE5M2})
      EXPECT_EQ(
          codes_of(run("quantize_per_channel", "", {hpu(x), hpu(scales), hpu(zeros), axis, -240, 240, code(type)})),
          clamped_codes(x * (1.0f / s) + z, type, -240, 240));
    EXPECT_TRUE(
        same_bits(run("quantize_per_channel", "", {hpu(x), hpu(scales), hpu(zeros), axis, -128, 127, code(at::kChar)}),
                  at::clamp(at::round(x * (1.0 / s)) + z, -128, 127).to(at::kChar)));
  }
}

TEST(QuantizePerChannel, AZeroDimZeroPointStandsForAllChannels) {
  const Tensor scales = at::rand({8}) + 0.25, x = input({8, 5});
  const Tensor one =
      run("quantize_per_channel", "", {hpu(x), hpu(scales), hpu(torch::tensor(0)), 0, -448, 448, code(kE4M3)});
  EXPECT_EQ(codes_of(one), clamped_codes(x * (1.0f / scales.view({8, 1})), kE4M3, -448, 448));
}

TEST(QuantizePerToken, Float8AndIntegers) {
  const Tensor x = input({2, 3, 7}), scales = at::rand({2, 3, 1}) + 0.25, zeros = at::randint(-3, 4, {2, 3, 1});
  EXPECT_EQ(codes_of(run("quantize_per_token", "", {hpu(x), hpu(scales), hpu(zeros), -448, 448, code(kE4M3)})),
            clamped_codes(x * (1.0f / scales) + zeros, kE4M3, -448, 448));
  EXPECT_TRUE(same_bits(run("quantize_per_token", "", {hpu(x), hpu(scales), hpu(zeros), -128, 127, code(at::kChar)}),
                        at::clamp(at::round(x * (1.0 / scales) + zeros), -128, 127).to(at::kChar)));
}

TEST(QuantizePerToken, AZeroDimZeroPointStandsForAllTokens) {
  const Tensor x = input({5, 7}), scales = at::rand({5}) + 0.25;
  const Tensor q = run("quantize_per_token", "", {hpu(x), hpu(scales), hpu(torch::tensor(3)), -448, 448, code(kE4M3)});
  EXPECT_EQ(codes_of(q), clamped_codes(x * (1.0f / scales.view({5, 1})) + 3, kE4M3, -448, 448));
}

TEST(Dequantize, Float8ValuesTimesScale) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor q = random_codes({4, 6}, type, 3), v = values_of(q).to(at::kFloat);
    const at::IValue none;
    const Tensor scale = torch::tensor(0.3f), zero = torch::tensor(2);
    const Tensor expected = (v - 2) * 0.3f;
    for (const auto out : {at::kFloat, at::kBFloat16, at::kHalf}) {
      EXPECT_TRUE(
          same_bits(run("dequantize_per_tensor", "", {q, 0.3, 2, 0, 0, code(type), code(out)}), expected.to(out)));
      EXPECT_TRUE(
          same_bits(run("dequantize_per_tensor", "tensor", {q, hpu(scale), hpu(zero), 0, 0, code(type), code(out)}),
                    expected.to(out)));
    }
    EXPECT_TRUE(
        same_bits(run("dequantize_per_tensor", "tensor2", {q, scale, zero, zero, zero, code(type), none}), expected));
    const Tensor scales = at::rand({6}) + 0.25, zeros = at::randint(-3, 4, {6});
    EXPECT_TRUE(same_bits(run("dequantize_per_channel", "", {q, hpu(scales), hpu(zeros), 1, 0, 0, code(type), none}),
                          (v - zeros) * scales));
    EXPECT_TRUE(
        same_bits(run("dequantize_per_channel", "", {q, hpu(scales), none, -1, 0, 0, code(type), code(at::kBFloat16)}),
                  (v * scales).to(at::kBFloat16)));
    const Tensor per_token = at::rand({4, 1}) + 0.25;
    EXPECT_TRUE(
        same_bits(run("dequantize_per_token", "",
                      {q, hpu(per_token), hpu(at::zeros({4, 1}, at::kLong)), 0, 0, code(type), code(at::kFloat)}),
                  v * per_token));
  }
}

TEST(Dequantize, IntegersAsPyTorchDefinesThem) {
  const Tensor q = at::randint(-100, 100, {4, 6}, at::kChar), scales = at::rand({6}), zeros = at::randint(-3, 4, {6});
  for (const auto out : {at::kFloat, at::kBFloat16}) {
    EXPECT_TRUE(same_bits(run("dequantize_per_tensor", "", {hpu(q), 0.3, 2, -128, 127, code(at::kChar), code(out)}),
                          (q.to(out) - 2) * 0.3));
    EXPECT_TRUE(same_bits(
        run("dequantize_per_channel", "", {hpu(q), hpu(scales), hpu(zeros), 1, -128, 127, code(at::kChar), code(out)}),
        ((q - zeros) * scales).to(out)));
  }
  const Tensor per_token = at::rand({4, 1}, at::kDouble), zero = at::zeros({4, 1}, at::kLong);
  EXPECT_TRUE(same_bits(run("dequantize_per_token", "",
                            {hpu(q), hpu(per_token), hpu(zero), -128, 127, code(at::kChar), code(at::kFloat)}),
                        ((q - zero) * per_token).to(at::kFloat)));
}

TEST(QuantizedDecomposed, RoundTripOfEveryCode) {
  for (const auto type : {kE4M3, kE5M2}) {
    std::vector<std::uint8_t> finite;
    for (int c = 0; c < 256; ++c)  // but -0: adding the zero point makes it 0
      if (c != 128 && std::isfinite(value_of(c, type == kE5M2))) finite.push_back(static_cast<std::uint8_t>(c));
    const Tensor q = hpu(at::tensor(finite, at::kByte).view(type));
    const std::int64_t max = static_cast<std::int64_t>(limit(type));
    const Tensor v = run("dequantize_per_tensor", "", {q, 0.125, 0, -max, max, code(type), kNone});
    const Tensor back = run("quantize_per_tensor", "", {v, 0.125, 0, -max, max, code(type)});
    EXPECT_EQ(codes_of(back), codes_of(q));
  }
}

TEST(QuantizedDecomposed, MetaGivesSizesAndDtypes) {
  const Tensor x = at::empty({3, 4}, at::kMeta), one = at::ones({1});
  EXPECT_EQ(run("quantize_per_tensor", "", {x, 1.0, 0, -448, 448, code(kE4M3)}).scalar_type(), kE4M3);
  EXPECT_EQ(run("quantize_per_tensor", "tensor2", {x, one, one, one, one, code(kE5M2)}).scalar_type(), kE5M2);
  EXPECT_EQ(run("quantize_per_channel", "", {x, one, one, 0, -128, 127, code(at::kChar)}).scalar_type(), at::kChar);
  const Tensor q = at::empty({3, 4}, at::TensorOptions(at::kMeta).dtype(kE4M3));
  const Tensor y = run("dequantize_per_channel", "", {q, one, kNone, 0, 0, 0, code(kE4M3), code(at::kHalf)});
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_EQ(y.sizes(), x.sizes());
}

TEST(QuantizedDecomposed, BadArgumentsAreNamed) {
  const Tensor x = at::ones({3, 4}, on_hpu()), two = at::ones({2}, on_hpu());
  const auto tensor = [&](std::int64_t min, std::int64_t max, at::ScalarType type) {
    run("quantize_per_tensor", "", {x, 1.0, 0, min, max, code(type)});
  };
  EXPECT_REFUSED(tensor(-449, 448, kE4M3), "quant_min >= -448", "-449");
  EXPECT_REFUSED(tensor(0, 128, at::kChar), "quant_max <= 127", "128");
  EXPECT_REFUSED(tensor(0, 1, at::kLong), "Unsupported dtype: Long");
  EXPECT_REFUSED(run("quantize_per_tensor", "", {x.to(at::kLong), 1.0, 0, 0, 1, code(kE4M3)}), "input of dtype Float",
                 "Long");
  EXPECT_REFUSED(run("quantize_per_tensor", "tensor", {x, two[0], two, 0, 1, code(kE4M3)}),
                 "zero_point of one element, got 2");
  EXPECT_REFUSED(run("quantize_per_channel", "", {x, two, two, 2, 0, 1, code(kE4M3)}), "axis in [-2, 1], got 2");
  EXPECT_REFUSED(run("quantize_per_channel", "", {x, two, two, 0, 0, 1, code(kE4M3)}),
                 "scales of 1 or 3 elements, got 2");
  EXPECT_REFUSED(run("quantize_per_token", "", {x, two, two, 0, 1, code(kE4M3)}),
                 "scales of 1 or 3 elements, one per token, got 2");
  EXPECT_REFUSED(run("dequantize_per_tensor", "", {x, 1.0, 0, 0, 0, code(kE4M3), kNone}),
                 "input of dtype Float8_e4m3fn, got Float");
}

// fp8::weight_only_linear and fp8::block_linear, called as TorchScript calls them, against f64 products of the decoded
// weight.

at::Tensor call_own(const char* name, torch::jit::Stack args) { return call_fp8(name, std::move(args)).toTensor(); }

TEST(WeightOnlyLinear, IsTheProductWithTheDecodedWeight) {
  for (const auto format : {kE4M3, kE5M2})
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const bool channels : {false, true})
        for (const auto& [m, n, k] : {std::tuple(1, 16, 64), std::tuple(5, 7, 33), std::tuple(17, 40, 128)}) {
          const at::Tensor w = random_codes({n, k}, format, 2);
          torch::manual_seed(1);
          const at::Tensor x = torch::randn({2, m, k}).to(type), bias = torch::randn({n}),
                           scale_inv = channels ? torch::rand({n}) + 0.5 : torch::full({1}, 0.37);
          const at::Tensor y = call_own("weight_only_linear", {hpu(x), w, hpu(scale_inv), hpu(bias)});
          EXPECT_EQ(y.scalar_type(), type);
          const at::Tensor decoded = values_of(w) * scale_inv.to(at::kDouble).view({-1, 1}), x64 = x.to(at::kDouble),
                           b64 = bias.to(at::kDouble);
          std::ostringstream what;
          what << format << " " << type << " " << m << "x" << n << "x" << k << (channels ? " channels" : "");
          expect_close(y, at::matmul(x64, decoded.t()) + b64, at::matmul(x64.abs(), decoded.t().abs()) + b64.abs(), k,
                       what.str());
        }
}

TEST(WeightOnlyLinear, WithoutColumnsTheBiasIsLeft) {
  const at::Tensor x = torch::empty({3, 0}, on_hpu()), w = random_codes({5, 0}, kE4M3, 1),
                   one = torch::ones({1}, on_hpu());
  const at::Tensor bias = torch::randn({5}, on_hpu());
  EXPECT_TRUE(same_bits(call_own("weight_only_linear", {x, w, one, bias}), bias.cpu().expand({3, 5})));
  EXPECT_TRUE(same_bits(call_own("weight_only_linear", {x, w, one, kNone}), torch::zeros({3, 5})));
  EXPECT_EQ(call_own("weight_only_linear", {torch::empty({0, 8}, on_hpu()), random_codes({5, 8}, kE4M3, 1), one, bias})
                .sizes(),
            at::IntArrayRef({0, 5}));
}

TEST(WeightOnlyLinear, NamesWhatDoesNotFit) {
  const at::Tensor x = torch::ones({2, 8}, on_hpu()), w = random_codes({5, 8}, kE4M3, 1),
                   one = torch::ones({1}, on_hpu());
  EXPECT_REFUSED(call_own("weight_only_linear", {x.to(at::kDouble), w, one, kNone}), "[weight_only_linear]",
                 "dtype Float, BFloat16 or Half", "Double");
  EXPECT_REFUSED(call_own("weight_only_linear", {x, x, one, kNone}), "[weight_only_linear]", "weight");
  EXPECT_REFUSED(call_own("weight_only_linear", {x.slice(1, 0, 7), w, one, kNone}), "x [..., K] and weight [N, K]",
                 "[2, 7]");
  EXPECT_REFUSED(call_own("weight_only_linear", {x, w, torch::ones({3}, on_hpu()), kNone}),
                 "scale_inv of 1 or 5 elements, got 3");
  EXPECT_REFUSED(call_own("weight_only_linear", {x, w, one, torch::ones({4}, on_hpu())}), "bias of 5 elements");
}

/// A grid of scales spread over the elements of [rows, cols].
at::Tensor spread(const at::Tensor& grid, std::int64_t block_rows, std::int64_t block_cols, std::int64_t first_row,
                  std::int64_t rows, std::int64_t cols) {
  const at::Tensor all = grid.cpu().to(at::kDouble).repeat_interleave(block_rows, 0).repeat_interleave(block_cols, 1);
  return all.slice(0, first_row, first_row + rows).slice(1, 0, cols);
}

TEST(BlockLinear, IsTheProductOfTheDecodedBlocks) {
  struct Case {
    std::int64_t m, n, k, block_rows, block_cols, first_row;
  };
  for (const Case& c : {Case{1, 32, 64, 16, 16, 0}, Case{5, 20, 50, 8, 12, 0}, Case{7, 9, 33, 4, 5, 6},
                        Case{3, 16, 24, 128, 128, 0}, Case{2, 5, 130, 3, 128, 4}})
    for (const bool codes : {false, true}) {
      const std::int64_t groups = (c.k + c.block_cols - 1) / c.block_cols,
                         grid_rows = (c.first_row + c.n + c.block_rows - 1) / c.block_rows;
      torch::manual_seed(5);
      const at::Tensor w = random_codes({c.n, c.k}, kE4M3, 3), w_scale = torch::rand({grid_rows, groups}) + 0.25,
                       x_scale = torch::rand({c.m, groups}) + 0.25;
      const at::Tensor x = codes ? random_codes({c.m, c.k}, kE4M3, 4) : hpu(torch::randn({c.m, c.k})),
                       bias = torch::randn({c.n});
      const at::Tensor y =
          call_own("block_linear", {x, codes ? at::IValue(hpu(x_scale)) : kNone, w, hpu(w_scale), c.block_rows,
                                    c.block_cols, c.first_row, hpu(bias), code(at::kFloat)});
      const at::Tensor x64 =
          codes ? values_of(x) * spread(x_scale, 1, c.block_cols, 0, c.m, c.k) : x.cpu().to(at::kDouble);
      const at::Tensor w64 = values_of(w) * spread(w_scale, c.block_rows, c.block_cols, c.first_row, c.n, c.k),
                       b64 = bias.to(at::kDouble);
      std::ostringstream what;
      what << c.m << "x" << c.n << "x" << c.k << " blocks " << c.block_rows << "x" << c.block_cols << " from "
           << c.first_row << (codes ? " codes" : "");
      expect_close(y, at::matmul(x64, w64.t()) + b64, at::matmul(x64.abs(), w64.abs().t()) + b64.abs(), 2 * c.k,
                   what.str());
    }
}

TEST(BlockLinear, NamesWhatDoesNotFit) {
  const at::Tensor x = torch::ones({2, 8}, on_hpu()), w = random_codes({4, 8}, kE4M3, 1),
                   grid = torch::ones({2, 2}, on_hpu());
  const auto run = [&](const at::Tensor& input, const at::IValue& x_scale, const at::Tensor& scales, std::int64_t rows,
                       std::int64_t first) {
    return call_own("block_linear", {input, x_scale, w, scales, rows, 4, first, kNone, code(at::kFloat)});
  };
  EXPECT_EQ(run(x, {}, grid, 2, 0).sizes(), at::IntArrayRef({2, 4}));
  EXPECT_REFUSED(run(x, {}, grid, 0, 0), "[block_linear]", "blocks of at least 1 x 1", "0 x 4");
  EXPECT_REFUSED(run(x, {}, grid, 2, 2), "[block_linear]", "scales of rows 2 to 6");
  EXPECT_REFUSED(run(x, torch::ones({2, 2}, on_hpu()), grid, 2, 0), "[block_linear]", "0 scales of x, got 4");
  EXPECT_REFUSED(run(random_codes({2, 8}, kE4M3, 1), {}, grid, 2, 0), "[block_linear]", "4 scales of x, got 0");
}

}  // namespace
}  // namespace fp8::test
