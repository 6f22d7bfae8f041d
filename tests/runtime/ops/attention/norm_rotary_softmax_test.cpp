// SPDX-License-Identifier: Apache-2.0
// rms_norm and its backward against the formula in f64 and its gradients by autograd.
#include "runtime/ops/attention/sdpa_reference.h"

namespace fp8::test {
namespace {

struct Types {
  at::ScalarType x, gamma;
};
const Types kTypes[] = {{at::kFloat, at::kFloat},
                        {at::kBFloat16, at::kBFloat16},
                        {at::kHalf, at::kHalf},
                        {at::kBFloat16, at::kFloat},
                        {at::kFloat, at::kHalf}};

TEST(RmsNorm, ForwardAndBackwardAreTheFormula) {
  const double epsilon = 3e-5;
  for (const Types& types : kTypes)
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{32, 1, 40}, {8, 2, 2, 4}, {1, 2, 4, 17, 20}, {300, 33}, {7}}) {
      const at::Tensor x = random_hpu(sizes, types.x, 1), gamma = random_hpu({sizes.back()}, types.gamma, 2),
                       grad = random_hpu(sizes, types.x, 3);
      const at::Tensor x64 = wide(x).requires_grad_(true), g64 = wide(gamma).requires_grad_(true);
      const at::Tensor inverse = 1 / at::sqrt((x64 * x64).mean(-1, true) + epsilon), y = x64 * inverse * g64;
      const auto exact = torch::autograd::grad({y}, {x64, g64}, {wide(grad)});
      const auto result_type = types.x == types.gamma ? types.x : at::kFloat;
      for (const char* name : {"rms_norm", "rms_norm_fast"}) {
        const auto r = call(name, "", {x, gamma, epsilon});
        EXPECT_EQ(r[0].scalar_type(), result_type);
        EXPECT_EQ(r[1].scalar_type(), result_type);
        expect_rounded(r[0], y.detach(), y.detach(), name);
        expect_rounded(r[1], inverse.detach(), inverse.detach(), name);
        // The saved inverse carries the rounding of its dtype into the gradients.
        const double unit = std::ldexp(1.0, -type_of(result_type).digits);
        const auto g = call((std::string(name) + "_backward").c_str(), "", {grad, x, gamma, r[1], true, 0});
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(g[i].scalar_type(), result_type);
          ASSERT_EQ(g[i].sizes(), exact[i].sizes());
          const double size = exact[i].abs().max().item<double>();
          EXPECT_LE((wide(g[i]) - exact[i]).abs().max().item<double>(), size * (3 * unit + 1e-6)) << name << i << sizes;
        }
      }
    }
}

TEST(RmsNorm, GradientTypesFollowAllInputs) {
  const at::Tensor x = random_hpu({4, 8}, at::kBFloat16, 1), gamma = random_hpu({8}, at::kBFloat16, 2);
  const auto r = call("rms_norm", "", {x, gamma, 1e-5});
  EXPECT_EQ(call("rms_norm_backward", "", {x, x, gamma, r[1], false, 1})[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(call("rms_norm_backward", "", {x.to(at::kFloat), x, gamma, r[1], false, 1})[0].scalar_type(), at::kFloat);
  EXPECT_EQ(call("rms_norm_backward", "", {x, x, gamma, r[1].to(at::kFloat), false, 1})[1].scalar_type(), at::kFloat);
}

TEST(RmsNorm, ViewsZerosAndEmptyInputs) {
  const at::Tensor x = random_hpu({8, 6}, at::kFloat, 1).t(), gamma = random_hpu({8}, at::kFloat, 2);
  const at::Tensor x64 = wide(x), exact = x64 / at::sqrt((x64 * x64).mean(-1, true)) * wide(gamma);
  expect_rounded(call("rms_norm", "", {x, gamma, 0.0})[0], exact, exact, "a view");
  EXPECT_EQ(call("rms_norm", "", {at::zeros({2, 8}, on_hpu()), gamma, 1e-5})[0].cpu().abs().max().item<float>(), 0.0f);
  EXPECT_EQ(call("rms_norm", "", {at::zeros({0, 8}, on_hpu()), gamma, 1e-5})[1].sizes(), at::IntArrayRef({0, 1}));
  const at::Tensor none = at::zeros({0, 8}, on_hpu());
  EXPECT_EQ(call("rms_norm_backward", "", {none, none, gamma, at::zeros({0, 1}, on_hpu()), true, 0})[1]
                .cpu()
                .abs()
                .max()
                .item<float>(),
            0.0f);
}

TEST(RmsNorm, BadArgumentsAreNamed) {
  const at::Tensor x = at::ones({2, 8}, on_hpu()), gamma = at::ones({8}, on_hpu()),
                   inverse = at::ones({2, 1}, on_hpu());
  EXPECT_REFUSED(call("rms_norm", "", {x, gamma.slice(0, 0, 7), 1e-5}), "[rms_norm]", "gamma [N]", "[7]");
  EXPECT_REFUSED(call("rms_norm", "", {x.to(at::kDouble), gamma, 1e-5}), "[rms_norm]", "Double");
  EXPECT_REFUSED(call("rms_norm", "", {x.slice(1, 0, 0), gamma.slice(0, 0, 0), 1e-5}), "[rms_norm]");
  EXPECT_REFUSED(call("rms_norm_backward", "", {x, x, gamma, inverse[0], true, 0}), "[rms_norm_backward]",
                 "inverse_rms of");
  EXPECT_REFUSED(call("rms_norm_backward", "", {x[0], x, gamma, inverse, true, 0}), "[rms_norm_backward]",
                 "grad_in of sizes");
  EXPECT_REFUSED(call("rms_norm_backward", "", {x, x, gamma, inverse, true, 2}), "[rms_norm_backward]",
                 "bwd_mode 0 or 1, got 2");
}

// Rotary position embedding against x * cos + rotate(x) * sin written with tensors in f64, its backward against
// autograd.

using Sizes = std::vector<std::int64_t>;

at::Tensor rotate(const at::Tensor& x, bool pairwise) {
  if (pairwise) {
    const at::Tensor even = x.slice(-1, 0, x.size(-1), 2), odd = x.slice(-1, 1, x.size(-1), 2);
    return at::stack({-odd, even}, -1).flatten(-2);
  }
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

struct Case {
  Sizes input, table;
  std::int64_t offset, mode;
};

/// Forward and backward of one call; sin and cos as the rows that meet the input, in f64.
void expect_rotary(const at::Tensor& x, const at::Tensor& sin, const at::Tensor& cos, const at::IValue& ids,
                   std::int64_t offset, std::int64_t mode, const at::Tensor& sin64, const at::Tensor& cos64) {
  const at::Tensor x64 = wide(x).requires_grad_(true), exact = x64 * cos64 + rotate(x64, mode == 1) * sin64;
  const at::Tensor magnitude = (wide(x) * cos64).abs() + (rotate(wide(x), mode == 1) * sin64).abs();
  expect_rounded(call("rotary_pos_embedding", "", {x, sin, cos, ids, offset, mode})[0], exact.detach(), magnitude,
                 "forward");
  const at::Tensor grad = random_hpu(x.sizes(), x.scalar_type(), 9);
  const at::Tensor dx = torch::autograd::grad({exact}, {x64}, {wide(grad)})[0];
  expect_rounded(call("rotary_pos_embedding_backward", "", {grad, sin, cos, ids, offset, mode})[0], dx,
                 at::full_like(dx, magnitude.max().item<double>()), "backward");
}

TEST(Rotary, TablesBroadcast) {
  const Case cases[] = {
      {{64, 8, 64}, {64, 1, 64}, 0, 0},   {{6, 2, 8}, {6, 1, 11}, 3, 0}, {{8, 2, 32, 8}, {8, 1, 1, 8}, 0, 0},
      {{2, 4, 2, 8}, {1, 4, 1, 8}, 0, 1}, {{3, 5, 16}, {5, 16}, 0, 1},   {{7, 6}, {6}, 0, 0},
      {{0, 2, 8}, {1, 8}, 0, 0}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const Case& c : cases) {
      const at::Tensor x = random_hpu(c.input, type, 1), sin = random_hpu(c.table, type, 2),
                       cos = random_hpu(c.table, type, 3);
      if (x.numel() == 0) {
        EXPECT_EQ(call("rotary_pos_embedding", "", {x, sin, cos, kNone, c.offset, c.mode})[0].sizes(), x.sizes());
        continue;
      }
      const std::int64_t end = c.offset + c.input.back();
      expect_rotary(x, sin, cos, kNone, c.offset, c.mode, wide(sin).slice(-1, c.offset, end),
                    wide(cos).slice(-1, c.offset, end));
    }
}

TEST(Rotary, PositionsChooseRowsOfTheTable) {
  const at::Tensor ids = at::randint(0, 50, {2, 5}, at::kLong);
  for (const Sizes& table : {Sizes{1, 1, 50, 8}, Sizes{50, 8}}) {
    const at::Tensor sin = random_hpu(table, at::kFloat, 2), cos = random_hpu(table, at::kFloat, 3);
    for (const bool wide_input : {true, false}) {
      const at::Tensor x = random_hpu(wide_input ? Sizes{2, 3, 5, 8} : Sizes{2, 5, 8}, at::kFloat, 1);
      const auto rows = [&](const at::Tensor& t) {
        const at::Tensor picked = wide(t).view({50, 8}).index({ids});  // [2, 5, 8]
        return wide_input ? picked.unsqueeze(1) : picked;
      };
      for (const auto type : {at::kLong, at::kInt})
        for (const std::int64_t mode : {0, 1})
          expect_rotary(x, sin, cos, hpu(ids.to(type)), 0, mode, rows(sin), rows(cos));
      const at::Tensor first = ids[0];
      const at::Tensor y =
          call("rotary_pos_embedding", "", {x, sin, cos, hpu(first), 0, 0})[0];  // the same for every sequence
      EXPECT_TRUE(same_bits(
          y, call("rotary_pos_embedding", "", {x, sin, cos, hpu(first.expand({2, 5}).contiguous()), 0, 0})[0]));
    }
  }
}

TEST(Rotary, AViewAndOtherTableTypes) {
  const at::Tensor x = random_hpu({2, 5, 3, 8}, at::kBFloat16, 1).transpose(1, 2),
                   sin = random_hpu({5, 8}, at::kFloat, 2), cos = random_hpu({5, 8}, at::kFloat, 3);
  expect_rotary(x, sin, cos, kNone, 0, 0, wide(sin), wide(cos));
}

TEST(Rotary, BadArgumentsAreNamed) {
  const at::Tensor x = at::ones({2, 3, 5, 8}, on_hpu()), t = at::ones({1, 1, 10, 8}, on_hpu()),
                   ids = at::zeros({2, 5}, on_hpu(at::kLong));
  const auto refused = [](std::vector<std::string> words, const torch::jit::Stack& args) {
    words.push_back("[rotary_pos_embedding]");
    EXPECT_TRUE(throws_with(words, [&] { call("rotary_pos_embedding", "", args); }));
  };
  refused({"mode 0", "got 2"}, {x, t, t, ids, 0, 2});
  refused({"Int"}, {x.to(at::kInt), t, t, ids, 0, 0});
  refused({"even"}, {x.slice(-1, 0, 7), t, t, ids, 0, 0});
  refused({"equal sizes"}, {x, t, t[0], ids, 0, 0});
  refused({"8 columns", "offset 1"}, {x, t, t, kNone, 1, 0});
  refused({"offset >= 0"}, {x, t, t, kNone, -1, 0});
  refused({"PAIRWISE"}, {x, t, t, kNone, 1, 1});
  refused({"broadcast to input"}, {x, t, t, kNone, 0, 0});
  refused({"from 0 to 9", "got 10"}, {x, t, t, ids + 10, 0, 0});
  refused({"got -1"}, {x, t, t, ids - 1, 0, 0});
  refused({"position_ids of dtype"}, {x, t, t, ids.to(at::kFloat), 0, 0});
  refused({"position_ids of sizes [2, 5]"}, {x, t, t, ids.t(), 0, 0});
  refused({"leading sizes 1"}, {x, t.expand({1, 3, 10, 8}), t.expand({1, 3, 10, 8}), ids, 0, 0});
  refused({"[B, H, T, D]"}, {x[0][0], t, t, ids, 0, 0});
}

// softmax_fp8 in its three forms against the formula in f64, and what it refuses in the vendor's words.

using runtime::DeviceKind;
using runtime::DeviceKindScope;

at::Tensor exact(const at::Tensor& x, double factor, const at::Tensor& add = {}) {
  at::Tensor s = wide(x) * factor;
  if (add.defined()) s = s + wide(add);
  return at::softmax(s, -1);
}

/// Codes nearest to v * scale, up to a relative 1e-5 of v.
void expect_codes(const at::Tensor& y, const at::Tensor& v, double scale, double max) {
  ASSERT_EQ(y.scalar_type(), kE4M3);
  ASSERT_EQ(y.sizes(), v.sizes());
  const auto got = codes_of(y);
  const at::Tensor flat = v.contiguous();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double p = flat.const_data_ptr<double>()[i] * scale;
    ASSERT_GE(got[i], code_of(p * (1 - 1e-5), false, max)) << i;
    ASSERT_LE(got[i], code_of(p * (1 + 1e-5), false, max)) << i;
  }
}

TEST(SoftmaxFp8, EveryFormIsTheFormula) {
  const std::vector<std::int64_t> sizes = {5, 4, 3, 37};
  const at::Tensor bf16 = random_hpu(sizes, at::kBFloat16, 1) * 4, fp8 = random_codes(sizes, kE4M3, 2);
  const double in = 0.05f, out = 240.0, heads = 0.1f;
  for (const at::Tensor& x : {bf16, fp8})
    for (const std::vector<std::int64_t>& add_sizes :
         {std::vector<std::int64_t>{}, {5, 1, 1, 37}, {5, 4, 3, 37}, {5, 1, 3, 37}}) {
      const at::Tensor add = add_sizes.empty() ? at::Tensor() : random_hpu(add_sizes, at::kBFloat16, 3);
      const at::IValue add_arg = add.defined() ? at::IValue(add) : kNone;
      expect_codes(call("softmax_fp8", "", {x, -1, one(in), one(out), kNone, add_arg})[0], exact(x, in, add), out, 448);
      expect_codes(call("softmax_fp8", "", {x, 3, one(in), one(out), one(heads), add_arg})[0],
                   exact(x, in * heads, add), out, 448);
      expect_codes(call("softmax_fp8", "Scalar_scales", {x, -1, in, out, one(heads), add_arg})[0],
                   exact(x, in * heads, add), out, 448);
      expect_codes(call("softmax_fp8", "Scalar_scales", {x, -1, in, out, kNone, add_arg})[0], exact(x, in, add), out,
                   448);
      expect_codes(call("softmax_fp8", "Scalar", {x, -1, in, out, heads, add_arg})[0], exact(x, in * heads, add), out,
                   448);
    }
}

TEST(SoftmaxFp8, WithoutScalesGivesBf16) {
  const at::Tensor x = random_hpu({7, 100}, at::kBFloat16, 1);
  for (const bool heads : {false, true}) {
    const at::Tensor y = call("softmax_fp8", "", {x, -1, kNone, kNone, heads ? at::IValue(one(0.5)) : kNone})[0],
                     v = exact(x, heads ? 0.5 : 1);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_rounded(y, v, v, "bf16");
  }
}

TEST(SoftmaxFp8, SaturatesAsTheDeviceDoes) {
  const at::Tensor x = at::tensor({30.0f, 0.0f, 0.0f}).to(at::kBFloat16).to(kHpu);  // almost all on one
  for (const auto& [kind, max] : {std::pair{DeviceKind::gaudi2, 240.0}, {DeviceKind::gaudi3, 448.0}}) {
    const DeviceKindScope scope(kind);
    const at::Tensor y = call("softmax_fp8", "Scalar_scales", {x, -1, 1.0, 1000.0})[0];
    EXPECT_EQ(values_of(y)[0].item<double>(), max);
  }
}

TEST(SoftmaxFp8, ViewsEmptyAndWalledOffRows) {
  const at::Tensor x = random_hpu({6, 5, 4}, at::kBFloat16, 1).permute({2, 0, 1});
  expect_codes(call("softmax_fp8", "Scalar_scales", {x, -1, 1.0, 200.0})[0], exact(x, 1), 200, 448);
  for (const at::Tensor& empty : {at::empty({0, 4}, on_hpu(at::kBFloat16)), at::empty({4, 0}, on_hpu(at::kBFloat16))})
    EXPECT_EQ(call("softmax_fp8", "", {empty, -1})[0].sizes(), empty.sizes());
  at::Tensor wall = at::zeros({2, 3}, at::kBFloat16);
  wall[1].fill_(-INFINITY);
  const at::Tensor y = values_of(call("softmax_fp8", "Scalar_scales",
                                      {at::ones({2, 3}, on_hpu(at::kBFloat16)), -1, 1.0, 3.0, kNone, hpu(wall)})[0]);
  EXPECT_TRUE((y[0] == 1).all().item<bool>());
  EXPECT_TRUE((y[1] == 0).all().item<bool>());
}

TEST(SoftmaxFp8, RefusesInTheVendorsWords) {
  const at::Tensor x = at::ones({2, 3, 4}, on_hpu(at::kBFloat16)), q = x.to(kE4M3),
                   add = at::ones({2, 3, 4}, on_hpu(at::kBFloat16));
  const auto softmax = [](const torch::jit::Stack& args) { call("softmax_fp8", "", args); };
  EXPECT_REFUSED(softmax({x.to(at::kFloat), -1}),
                 "Input tensor must be of torch.bfloat16 or torch.float8_e4m3fn dtype.");
  EXPECT_REFUSED(softmax({x, -1, one(1)}), "Output and input scales must be both given or None");
  EXPECT_REFUSED(softmax({q, -1}), "then input scale must be given.");
  EXPECT_REFUSED(softmax({x, -1, one(1).to(at::kBFloat16), one(1)}), "Input scale must be of dtype: Float");
  EXPECT_REFUSED(softmax({x, -1, one(1), one(1), kNone, add.to(at::kFloat)}),
                 "Input fused_add must be of dtype: BFloat16");
  EXPECT_REFUSED(softmax({x, -1, kNone, kNone, kNone, add}), "FusedAdd available only for Float8 output");
  EXPECT_REFUSED(softmax({x, -1, one(1), one(1), kNone, add[0]}), "same rank");
  EXPECT_REFUSED(softmax({x, -1, one(1), one(1), kNone, add.slice(0, 0, 1)}), "same first and last dim");
  EXPECT_REFUSED(softmax({x, -1, one(1), one(1), kNone, add.slice(1, 0, 2)}), "dim other than first and last");
  EXPECT_REFUSED(softmax({x, 0}), "[softmax_fp8]", "last dimension", "got dim 0");
  EXPECT_REFUSED(softmax({x, -1, at::ones({4}, on_hpu()), at::ones({4}, on_hpu())}), "[softmax_fp8]",
                 "one element, got 4");
}

}  // namespace
}  // namespace fp8::test
