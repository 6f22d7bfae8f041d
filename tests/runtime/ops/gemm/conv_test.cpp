// SPDX-License-Identifier: Apache-2.0
// conv2d_fp8 against the f64 convolution of the dequantized operands.
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using Sizes = std::vector<std::int64_t>;

struct Convolution {
  const char* name;
  Sizes input, weight, stride = {1, 1}, padding = {0, 0}, dilation = {1, 1};
  std::int64_t groups = 1;
  bool bias = false;
};

const Convolution kCases[] = {
    {"plain", {2, 3, 8, 7}, {4, 3, 3, 3}},
    {"stride and padding", {2, 3, 8, 7}, {4, 3, 3, 3}, {2, 1}, {1, 2}},
    {"dilation", {2, 3, 9, 9}, {5, 3, 3, 2}, {1, 1}, {2, 1}, {2, 3}},
    {"groups", {2, 6, 8, 7}, {4, 3, 3, 3}, {1, 2}, {1, 1}, {1, 1}, 2, true},
    {"depthwise", {1, 4, 6, 6}, {8, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 4, true},
    {"kernel 1", {2, 16, 5, 5}, {7, 16, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, true},
    {"one value for both", {1, 2, 9, 9}, {3, 2, 3, 3}, {2}, {1}, {2}, 1, true},
    {"kernel as large as the input", {1, 2, 4, 3}, {3, 2, 4, 3}},
    {"empty batch", {0, 2, 4, 4}, {3, 2, 3, 3}},
};

void expect_convolution(const Convolution& c, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w,
                        const at::Tensor& bias, double scale) {
  const std::optional<at::Tensor> b =
      bias.defined() ? std::optional<at::Tensor>(bias.cpu().to(at::kDouble)) : std::nullopt;
  const at::Tensor vx = values_of(x) * scale, vw = values_of(w);
  const at::Tensor exact = at::conv2d(vx, vw, b, c.stride, c.padding, c.dilation, c.groups);
  ASSERT_EQ(y.sizes(), exact.sizes()) << c.name;
  EXPECT_TRUE(y.is_contiguous());
  if (y.numel() == 0) return;
  const at::Tensor magnitude = at::conv2d(vx.abs(), vw.abs(), b.has_value() ? std::optional<at::Tensor>(b->abs()) : b,
                                          c.stride, c.padding, c.dilation, c.groups);
  const double k = static_cast<double>(vw[0].numel()), unit = std::ldexp(1.0, -type_of(y.scalar_type()).digits);
  const at::Tensor allowed = magnitude * ((k + 4) * std::ldexp(1.0, -23)) + exact.abs() * unit * 1.001 + 1e-30;
  EXPECT_TRUE(((y.cpu().to(at::kDouble) - exact).abs() <= allowed).all().item<bool>()) << c.name;
}

TEST(Conv2dFp8, EqualsTheExactConvolution) {
  for (const Convolution& c : kCases) {
    const at::Tensor x = random_codes(c.input, kE4M3, 5), w = random_codes(c.weight, kE4M3, 6),
                     bias = c.bias ? at::randn({c.weight[0]}, on_hpu()) : at::Tensor();
    const at::IValue b = c.bias ? at::IValue(bias) : kNone;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor tensors = call("conv2d_fp8", "",
                                      {x, w, b, c.stride, c.padding, c.dilation, c.groups, code(type),
                                       at::full({1}, 0.5f), at::full({1}, 0.25f, on_hpu())})[0];
      EXPECT_EQ(tensors.scalar_type(), type);
      expect_convolution(c, tensors, x, w, bias, 0.125);
      const at::Tensor scalars =
          call("conv2d_fp8", "scalar", {x, w, b, c.stride, c.padding, c.dilation, c.groups, code(type), 0.5, 0.25})[0];
      EXPECT_TRUE(same_bits(scalars, tensors)) << c.name;
    }
  }
}

TEST(Conv2dFp8, DefaultsAreBf16AndScaleOne) {
  const Convolution c = kCases[0];
  const at::Tensor x = random_codes(c.input, kE5M2, 5), w = random_codes(c.weight, kE4M3, 6);
  for (const char* overload : {"", "scalar"}) {
    const at::Tensor y = call("conv2d_fp8", overload, {x, w})[0];
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_convolution(c, y, x, w, at::Tensor(), 1.0);
  }
}

TEST(Conv2dFp8, StridedOperands) {
  const Convolution c = kCases[0];
  const at::Tensor x = random_codes({2, 8, 7, 3}, kE4M3, 5).permute({0, 3, 1, 2}),
                   w = random_codes({3, 3, 3, 4}, kE4M3, 6).permute({3, 2, 0, 1});
  const at::Tensor y = call("conv2d_fp8", "", {x, w, kNone, c.stride, c.padding, c.dilation, 1, code(at::kFloat)})[0];
  expect_convolution(c, y, x, w, at::Tensor(), 1.0);
}

TEST(Conv2dFp8, AWeightScalePerOutputChannel) {
  const Convolution c = kCases[3];
  const at::Tensor x = random_codes(c.input, kE4M3, 5), w = random_codes(c.weight, kE4M3, 6),
                   scales = at::tensor({1., 2., 0.5, 4.}, at::kFloat);
  const auto run = [&](const at::Tensor& s) {
    return call("conv2d_fp8", "",
                {x, w, kNone, c.stride, c.padding, c.dilation, c.groups, code(at::kFloat), kNone, s})[0];
  };
  EXPECT_TRUE(same_bits(run(scales), run(at::ones({1})) * hpu(scales).view({1, 4, 1, 1})));  // powers of two: exact
}

TEST(Conv2dFp8, BadArgumentsAreNamed) {
  const at::Tensor x = random_codes({1, 4, 5, 5}, kE4M3, 5), w = random_codes({6, 4, 3, 3}, kE4M3, 6);
  const at::IValue none;
  const auto refused = [](std::vector<std::string> words, const torch::jit::Stack& args) {
    words.push_back("[conv2d_fp8]");
    EXPECT_TRUE(throws_with(words, [&] { call("conv2d_fp8", "", args); }));
  };
  refused({"input of dtype", "Float"}, {x.to(at::kFloat), w});
  refused({"[B, C, H, W]"}, {x[0], w});
  refused({"stride >= 1"}, {x, w, none, Sizes{0, 1}});
  refused({"padding"}, {x, w, none, Sizes{1, 1}, Sizes{-1, 0}});
  refused({"padding"}, {x, w, none, Sizes{1, 1}, Sizes{std::int64_t{1} << 62, 0}});
  refused({"dilation"}, {x, w, none, Sizes{1, 1}, Sizes{0, 0}, Sizes{std::int64_t{1} << 62, 1}});
  refused({"1 or 2 elements, got 3"}, {x, w, none, Sizes{1, 1, 1}});
  refused({"groups 3"}, {x, w, none, Sizes{1, 1}, Sizes{0, 0}, Sizes{1, 1}, 3});
  refused({"larger than the padded input"}, {x, random_codes({6, 4, 7, 7}, kE4M3, 1)});
  refused({"larger than the padded input"}, {x, w, none, Sizes{3, 3}, Sizes{0, 0}, Sizes{3, 3}});
  refused({"bias [6]"}, {x, w, at::ones({5}, on_hpu())});
  refused({"scale_input of 1 element"}, {x, w, none, Sizes{1, 1}, Sizes{0, 0}, Sizes{1, 1}, 1, none, at::ones({2})});
  refused({"scale_weight of 1 or 6 elements"},
          {x, w, none, Sizes{1, 1}, Sizes{0, 0}, Sizes{1, 1}, 1, none, none, at::ones({2})});
}

}  // namespace
}  // namespace fp8::test
