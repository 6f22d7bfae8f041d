// SPDX-License-Identifier: Apache-2.0
// fp8_gemm_v2 against f64 products of the dequantized operands. Allowed error: f32 sums of K exact products, and one
// rounding to the result's type.
#include "fp8/runtime/ops/gemm/gemm.h"

#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using Sizes = std::vector<std::int64_t>;

at::Tensor swapped(const at::Tensor& t) { return t.dim() > 1 ? t.transpose(-2, -1).contiguous() : t; }

struct Case {
  Sizes a, b;  ///< as [..., M, K] and [..., K, N], before transposition
};

const Case kShapes[] = {
    {{5, 33}, {33, 7}},
    {{1, 64}, {64, 16}},
    {{17, 40}, {40, 32}},
    {{2, 3, 5, 8}, {8, 6}},
    {{3, 5, 8}, {3, 8, 6}},
    {{2, 1, 5, 8}, {3, 8, 6}},
    {{5, 8}, {3, 8, 6}},
    {{4, 5, 8}, {1, 8, 6}},
    {{8}, {8, 6}},
    {{5, 8}, {8}},
    {{8}, {8}},
    {{8}, {3, 8, 6}},
    {{3, 5, 8}, {8}},
    {{0, 8}, {8, 6}},
    {{5, 8}, {8, 0}},
    {{0, 5, 8}, {8, 6}},
};

TEST(Gemm, AllShapesAndTranspositions) {
  for (const Case& c : kShapes)
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) {
        if ((trans_a && c.a.size() == 1) || (trans_b && c.b.size() == 1)) continue;
        const at::Tensor a = random_codes(c.a, kE4M3, 1), b = random_codes(c.b, kE4M3, 2), va = values_of(a),
                         vb = values_of(b);
        const at::Tensor y = call("fp8_gemm_v2", "scalar",
                                  {trans_a ? swapped(a) : a, trans_a, trans_b ? swapped(b) : b, trans_b, kNone,
                                   code(at::kFloat), 0.5, 0.37})[0];
        const double s = 0.5 * static_cast<double>(0.37f);
        std::ostringstream what;
        what << c.a << " x " << c.b << (trans_a ? " A^T" : "") << (trans_b ? " B^T" : "");
        expect_close(y, at::matmul(va, vb) * s, at::matmul(va.abs(), vb.abs()) * s, c.a.back(), what.str());
      }
}

TEST(Gemm, OperandsMayBeViews) {
  const at::Tensor a = random_codes({33, 5}, kE4M3, 1).t(), b = random_codes({7, 66}, kE4M3, 2).slice(1, 0, 66, 2).t(),
                   va = values_of(a), vb = values_of(b);
  const at::Tensor y = call("fp8_gemm_v2", "", {a, false, b, false, kNone, code(at::kFloat)})[0];
  expect_close(y, at::matmul(va, vb), at::matmul(va.abs(), vb.abs()), 33, "views");
}

TEST(Gemm, FormatsAndResultTypes) {
  for (const auto fa : {kE4M3, kE5M2})
    for (const auto fb : {kE4M3, kE5M2})
      for (const auto out : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor a = random_codes({6, 70}, fa, 3), b = random_codes({19, 70}, fb, 4), va = values_of(a),
                         vb = values_of(b).t();
        const at::Tensor y = call("fp8_gemm_v2", "", {a, false, b, true, kNone, code(out)})[0];
        EXPECT_EQ(y.scalar_type(), out);
        expect_close(y, at::matmul(va, vb), at::matmul(va.abs(), vb.abs()), 70, "formats");
      }
}

// Forward y = x w^T in E4M3, then dx = g w and dw = g^T x with g in E5M2, as NVIDIA's hybrid format has it: the
// operands of the backward products lie as the forward left them.
TEST(Gemm, BackwardProductsOfMixedFormats) {
  const std::int64_t m = 48, n = 80, k = 112;
  const at::Tensor x = random_codes({m, k}, kE4M3, 1), w = random_codes({n, k}, kE4M3, 2),
                   g = random_codes({m, n}, kE5M2, 3);
  const at::Tensor vx = values_of(x), vw = values_of(w), vg = values_of(g), scale = at::full({1}, 0.25f);
  const at::Tensor dx = call("fp8_gemm_v2", "", {g, false, w, false, kNone, code(at::kFloat), scale})[0];
  expect_close(dx, at::matmul(vg, vw) * 0.25, at::matmul(vg.abs(), vw.abs()) * 0.25, n, "dx");
  const at::Tensor dw = call("fp8_gemm_v2", "", {g, true, x, false, kNone, code(at::kFloat), scale, scale})[0];
  expect_close(dw, at::matmul(vg.t(), vx) / 16, at::matmul(vg.t().abs(), vx.abs()) / 16, m, "dw");
  at::Tensor sum = call("fp8_gemm_v2", "", {g, true, x, false, dw, code(at::kFloat), scale, scale, kNone, true})[0];
  expect_close(sum, at::matmul(vg.t(), vx) / 8, at::matmul(vg.t().abs(), vx.abs()) / 8, m + 1, "dw twice");
}

TEST(Gemm, TransposedOperandsGiveTheSameBits) {
  const auto product = [](const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b) {
    return call("fp8_gemm_v2", "", {a, trans_a, b, trans_b, kNone, code(at::kBFloat16)})[0];
  };
  const at::Tensor a = random_codes({200, 130}, kE5M2, 5), b = random_codes({200, 90}, kE4M3, 6);
  for (const auto& [part_a, part_b] :
       {std::pair<at::Tensor, at::Tensor>{a, b},
        {a.slice(1, 3, 100), b.slice(1, 10, 80)},
        {a.slice(0, 0, 200, 2), b.slice(0, 0, 200, 2)},
        {a.view({2, 100, 130}), b.view({2, 100, 90})},
        {a.view({2, 2, 50, 130}).transpose(0, 1), b.view({2, 2, 50, 90}).transpose(0, 1)}})
    EXPECT_TRUE(
        same_bits(product(part_a, true, part_b, false), product(swapped(part_a), false, swapped(part_b), true)));
}

TEST(Gemm, BiasAndAccumulateAreUnscaled) {
  const at::Tensor a = random_codes({6, 40}, kE4M3, 3), b = random_codes({40, 9}, kE4M3, 4), va = values_of(a),
                   vb = values_of(b);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    torch::manual_seed(8);
    const at::Tensor bias = (at::randn({9}) * 10).to(type), d = (at::randn({6, 9}) * 10).to(type);
    const at::Tensor scale_a = at::full({1}, 0.25f), scale_b = at::full({1}, 3.0f, on_hpu());
    for (const bool with_bias : {false, true})
      for (const bool with_d : {false, true}) {
        const at::Tensor y = call("fp8_gemm_v2", "",
                                  {a, false, b, false, with_d ? at::IValue(hpu(d)) : kNone, code(type), scale_a,
                                   scale_b, with_bias ? at::IValue(hpu(bias)) : kNone, with_d})[0];
        at::Tensor exact = at::matmul(va, vb) * 0.75, magnitude = at::matmul(va.abs(), vb.abs()) * 0.75;
        if (with_bias) exact = exact + bias.to(at::kDouble), magnitude = magnitude + bias.to(at::kDouble).abs();
        if (with_d) exact = exact + d.to(at::kDouble), magnitude = magnitude + d.to(at::kDouble).abs();
        expect_close(y, exact, magnitude, 40, "bias and D");
      }
  }
  const at::Tensor ignored =
      call("fp8_gemm_v2", "", {a, false, b, false, at::ones({6, 9}, on_hpu()), code(at::kFloat)})[0];
  EXPECT_TRUE(same_bits(
      ignored, call("fp8_gemm_v2", "", {a, false, b, false, kNone, code(at::kFloat)})[0]));  // D without accumulate
}

TEST(Gemm, ScalesPerRowAndPerColumn) {
  for (const Sizes& batch : {Sizes{}, Sizes{2}, Sizes{2, 3}})
    for (const bool one_weight : {true, false}) {
      Sizes sa = batch, sb = one_weight ? Sizes{} : batch;
      sa.insert(sa.end(), {6, 24});
      sb.insert(sb.end(), {24, 10});
      const at::Tensor a = random_codes(sa, kE4M3, 3), b = random_codes(sb, kE4M3, 4);
      const at::Tensor product = at::matmul(values_of(a), values_of(b)),
                       magnitude = at::matmul(values_of(a).abs(), values_of(b).abs());
      const at::Tensor columns = at::rand({10}) + 0.5, rows = at::rand({6}) + 0.5, one = at::full({1}, 0.5f);
      const at::Tensor per_token =
          at::rand(product.sizes().slice(0, product.dim() - 1)).unsqueeze(-1) + 0.5;  // one per row of every batch
      const auto run = [&](const at::Tensor& scale_a, const at::Tensor& scale_b, const at::IValue& shape,
                           const at::Tensor& factor) {
        const at::Tensor y =
            call("fp8_gemm_v2", "",
                 {a, false, b, false, kNone, code(at::kFloat), hpu(scale_a), hpu(scale_b), kNone, false, shape})[0];
        expect_close(y, product * factor.to(at::kDouble), magnitude * factor.to(at::kDouble), 24, "scales");
      };
      run(one, columns, Sizes{1, 10}, one * columns);
      run(one, columns, kNone, one * columns);
      run(one, columns.view({1, 10}), kNone, one * columns);
      run(one, rows, Sizes{6, 1}, one * rows.view({6, 1}));
      run(per_token, columns, kNone, per_token * columns);
      run(per_token, one, kNone, per_token * one);
      run(per_token, rows, Sizes{6, 1}, per_token * rows.view({6, 1}));
    }
}

TEST(Gemm, ScaleLists) {
  const at::Tensor a = random_codes({6, 24}, kE4M3, 3), b = random_codes({24, 4}, kE4M3, 4), va = values_of(a),
                   vb = values_of(b);
  const at::Tensor factor = at::tensor({1., 2., 0.5, 4.}, at::kDouble) * 0.25;
  const at::Tensor y = call(
      "fp8_gemm_v2", "scalar_list",
      {a, false, b, false, kNone, code(at::kFloat), c10::List<double>({0.25}), c10::List<double>({1, 2, 0.5, 4})})[0];
  expect_close(y, at::matmul(va, vb) * factor, at::matmul(va.abs(), vb.abs()) * factor, 24, "list");
}

TEST(Gemm, ARowScaleForOneRowAndAColumnScaleForOneColumn) {
  const at::Tensor a = random_codes({1, 24}, kE4M3, 3), b = random_codes({24, 1}, kE4M3, 4), va = values_of(a),
                   vb = values_of(b);
  for (const Sizes& shape : {Sizes{1, 1}, Sizes{1}}) {
    const at::Tensor y = call("fp8_gemm_v2", "",
                              {a, false, b, false, kNone, code(at::kFloat), at::full({1}, 2.0f), at::full({1}, 0.5f),
                               kNone, false, shape})[0];
    expect_close(y, at::matmul(va, vb), at::matmul(va.abs(), vb.abs()), 24, "one");
  }
}

TEST(Gemm, BadArgumentsAreNamed) {
  const at::Tensor a = random_codes({6, 24}, kE4M3, 3), b = random_codes({24, 4}, kE4M3, 4);
  const at::IValue none, f32 = code(at::kFloat);
  const auto gemm = [](const torch::jit::Stack& args) { call("fp8_gemm_v2", "", args); };
  EXPECT_REFUSED(gemm({a, false, b, false, none, f32, none, none, none, true}), "[fp8_gemm_v2]", "accumulate needs D");
  EXPECT_REFUSED(gemm({a, false, b, false, at::ones({6, 5}, on_hpu()), f32, none, none, none, true}), "[fp8_gemm_v2]",
                 "D of sizes [6, 4]");
  EXPECT_REFUSED(gemm({a, true, b, false, none, f32}), "[fp8_gemm_v2]", "inner dimensions");
  EXPECT_REFUSED(gemm({a, false, b, false, none, f32, none, none, at::ones({6}, on_hpu())}), "[fp8_gemm_v2]",
                 "bias of 4");
  EXPECT_REFUSED(gemm({a.to(at::kBFloat16), false, b, false, none, f32}), "[fp8_gemm_v2]", "A of dtype", "BFloat16");
  EXPECT_REFUSED(gemm({a, false, b, false, none, code(at::kDouble)}), "[fp8_gemm_v2]", "out_dtype", "Double");
  EXPECT_REFUSED(gemm({a, false, b, false, none, f32, at::ones({5})}), "[fp8_gemm_v2]", "A_scale_inv", "got 5");
  EXPECT_REFUSED(gemm({a, false, b, false, none, f32, none, at::ones({3})}), "[fp8_gemm_v2]", "B_scale_inv", "got 3");
  EXPECT_REFUSED(gemm({a, false, b, false, none, f32, none, at::ones({5}), none, false, Sizes{5, 1}}), "[fp8_gemm_v2]",
                 "B_scale_inv");
  EXPECT_REFUSED(gemm({a, false, b, false, none, f32, none, at::ones({4}), none, false, Sizes{1, 5}}),
                 "Number of scale elements (4)");
  EXPECT_NE(error_of([&] {
              gemm({random_codes({2, 3, 4}, kE4M3, 1), false, random_codes({3, 4, 5}, kE4M3, 1), false, none, f32});
            }),
            "");
}

// The deprecated fp8_gemm against the exact product; the result lands in `out`.

using at::Tensor;

TEST(Fp8GemmV1, WritesTheProductToOut) {
  const Tensor a = random_codes({5, 12}, kE4M3, 1), b = random_codes({7, 12}, kE4M3, 2),
               bias = at::randn({7}, on_hpu()), d = at::randn({5, 7}, on_hpu());
  const Tensor exact = at::matmul(values_of(a), values_of(b).t()) * 0.125 + bias.cpu().to(at::kDouble);
  for (const bool accumulate : {false, true}) {
    Tensor out = at::full({5, 7}, 99, on_hpu());
    const Tensor y = call("fp8_gemm", "",
                          {a, false, b, true, d, code(at::kFloat), at::full({1}, 0.5f, on_hpu()),
                           at::full({1}, 0.25f, on_hpu()), bias, accumulate, out})[0];
    EXPECT_EQ(y.unsafeGetTensorImpl(), out.unsafeGetTensorImpl());
    const Tensor expected = accumulate ? exact + d.cpu().to(at::kDouble) : exact;
    EXPECT_TRUE(at::allclose(out.cpu().to(at::kDouble), expected, 1e-5, 1e-5)) << accumulate;
  }
}

TEST(Fp8GemmV1, TransposedOperandsAndBf16) {
  const Tensor a = random_codes({12, 5}, kE4M3, 1), b = random_codes({12, 7}, kE4M3, 2);
  Tensor out = at::empty({5, 7}, on_hpu(at::kBFloat16));
  call("fp8_gemm", "",
       {a, true, b, false, at::empty({0}, on_hpu()), code(at::kBFloat16), kNone, kNone, kNone, false, out});
  const Tensor exact = at::matmul(values_of(a).t(), values_of(b));
  EXPECT_TRUE(at::allclose(out.cpu().to(at::kDouble), exact, std::ldexp(1.0, -8), 1e-5));
}

TEST(Fp8GemmV1, AWrongOutIsNamed) {
  const Tensor a = random_codes({5, 12}, kE4M3, 1), b = random_codes({7, 12}, kE4M3, 2),
               none = at::empty({0}, on_hpu());
  const auto with = [&](const Tensor& out) {
    call("fp8_gemm", "", {a, false, b, true, none, code(at::kFloat), kNone, kNone, kNone, false, out});
  };
  EXPECT_REFUSED(with(at::empty({7, 5}, on_hpu())), "[fp8_gemm]", "sizes [5, 7]", "[7, 5]");
  EXPECT_REFUSED(with(at::empty({5, 7}, on_hpu(at::kBFloat16))), "[fp8_gemm]", "dtype Float", "BFloat16");
}

// conv2d_fp8 against the f64 convolution of the dequantized operands.

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
