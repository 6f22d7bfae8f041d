// SPDX-License-Identifier: Apache-2.0
// quantized_decomposed:: on hpu: float8 against the formula in f64 (not rounded to integers), integers against
// PyTorch's arithmetic on the CPU.
#include "runtime/ops/op_call.h"

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

/// code_of of every element of an f32 result, clamped to [min, max].
std::vector<int> codes_for(const Tensor& v, at::ScalarType type, double min, double max) {
  std::vector<int> codes;
  const Tensor flat = v.to(at::kDouble).flatten().contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    codes.push_back(
        code_of(std::min(std::max(flat.const_data_ptr<double>()[i], min), max), type == kE5M2, limit(type)));
  return codes;
}

TEST(QuantizePerTensor, Float8IsNotRoundedToIntegers) {
  for (const auto type : {kE4M3, kE5M2}) {
    for (const auto from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor x = input({6, 8}, from);
      const Tensor v = x.to(at::kFloat) / 3.0f + 2.0f;
      const auto expected = codes_for(v, type, -20, 100);
      EXPECT_EQ(codes_of(run("quantize_per_tensor", "", {hpu(x), 3.0, 2, -20, 100, code(type)})), expected);
      const Tensor scale = torch::tensor(3.0f), zero = torch::tensor(2);  // both 0-dim
      EXPECT_EQ(codes_of(run("quantize_per_tensor", "tensor", {hpu(x), hpu(scale), hpu(zero), -20, 100, code(type)})),
                expected);
      EXPECT_EQ(codes_of(run("quantize_per_tensor", "tensor2",
                             {hpu(x), hpu(scale), zero, torch::tensor(-20), hpu(torch::tensor(100)), code(type)})),
                expected);
    }
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
    for (const auto type : {kE4M3, kE5M2}) {
      EXPECT_EQ(
          codes_of(run("quantize_per_channel", "", {hpu(x), hpu(scales), hpu(zeros), axis, -240, 240, code(type)})),
          codes_for(x * (1.0f / s) + z, type, -240, 240));
    }
    EXPECT_TRUE(
        same_bits(run("quantize_per_channel", "", {hpu(x), hpu(scales), hpu(zeros), axis, -128, 127, code(at::kChar)}),
                  at::clamp(at::round(x * (1.0 / s)) + z, -128, 127).to(at::kChar)));
  }
}

TEST(QuantizePerChannel, AZeroDimZeroPointStandsForAllChannels) {
  const Tensor scales = at::rand({8}) + 0.25, x = input({8, 5});
  const Tensor one =
      run("quantize_per_channel", "", {hpu(x), hpu(scales), hpu(torch::tensor(0)), 0, -448, 448, code(kE4M3)});
  EXPECT_EQ(codes_of(one), codes_for(x * (1.0f / scales.view({8, 1})), kE4M3, -448, 448));
}

TEST(QuantizePerToken, Float8AndIntegers) {
  const Tensor x = input({2, 3, 7}), scales = at::rand({2, 3, 1}) + 0.25, zeros = at::randint(-3, 4, {2, 3, 1});
  EXPECT_EQ(codes_of(run("quantize_per_token", "", {hpu(x), hpu(scales), hpu(zeros), -448, 448, code(kE4M3)})),
            codes_for(x * (1.0f / scales) + zeros, kE4M3, -448, 448));
  EXPECT_TRUE(same_bits(run("quantize_per_token", "", {hpu(x), hpu(scales), hpu(zeros), -128, 127, code(at::kChar)}),
                        at::clamp(at::round(x * (1.0 / scales) + zeros), -128, 127).to(at::kChar)));
}

TEST(QuantizePerToken, AZeroDimZeroPointStandsForAllTokens) {
  const Tensor x = input({5, 7}), scales = at::rand({5}) + 0.25;
  const Tensor q = run("quantize_per_token", "", {hpu(x), hpu(scales), hpu(torch::tensor(3)), -448, 448, code(kE4M3)});
  EXPECT_EQ(codes_of(q), codes_for(x * (1.0f / scales.view({5, 1})) + 3, kE4M3, -448, 448));
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

}  // namespace
}  // namespace fp8::test
