// SPDX-License-Identifier: Apache-2.0
// Small pointwise operations and concatenations against the CPU's kernels, to the bit: random bit patterns (so NaN of
// all payloads, subnormals, infinities), odd sizes, numbers; and the calls that must not be taken for small ones.
#include "fp8/runtime/dispatch/pointwise.h"

#include "fp8/runtime/dispatch/own_ops.h"
#include "runtime/dispatch/any_bits.h"
#include "support/hpu_test.h"
#include "support/values.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

const std::vector<std::function<at::Tensor(T a, T b)>>& operations() {
  static const std::vector<std::function<at::Tensor(T a, T b)>> all = {
      [](T a, T b) { return at::add(a, b); },     [](T a, T b) { return at::sub(a, b); },
      [](T a, T b) { return at::mul(a, b); },     [](T a, T b) { return at::div(a, b); },
      [](T a, T) { return at::neg(a); },          [](T a, T) { return at::abs(a); },
      [](T a, T) { return at::relu(a); },         [](T a, T b) { return a.clone().add_(b); },
      [](T a, T b) { return a.clone().sub_(b); }, [](T a, T b) { return a.clone().mul_(b); },
      [](T a, T b) { return a.clone().div_(b); }, [](T a, T) { return a.clone().neg_(); },
      [](T a, T) { return a.clone().abs_(); },    [](T a, T) { return a.clone().relu_(); },
      [](T a, T) { return a.clone().add_(a); },
  };
  return all;
}

/// Any bits, or (finite) those of ordinary numbers with zeros and subnormals among them.
at::Tensor bits(at::IntArrayRef sizes, at::ScalarType type, bool finite) {
  if (finite) {
    const at::Tensor x = at::randn(sizes) * 100;
    return x.masked_fill(at::rand(sizes).lt(0.1), -0.0).masked_fill(at::rand(sizes).lt(0.1), 1e-40).to(type);
  }
  return any_bits(sizes, type);
}

TEST(SmallPointwise, GivesTheCpusBits) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const std::int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1001, 32768, 32769})
      for (const bool finite : {true, false}) {
        const at::Tensor a = bits({n}, type, finite), b = bits({n}, type, finite);
        for (std::size_t i = 0; i < operations().size(); ++i)
          EXPECT_TRUE(same_bits(operations()[i](hpu(a), hpu(b)), operations()[i](a, b)))
              << "op " << i << " of " << type << ", n " << n;
      }
}

TEST(SmallPointwise, GivesTheCpusBitsByRows) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const std::int64_t n : {1, 15, 16, 17, 100})
      for (const bool finite : {true, false}) {
        const at::Tensor a = bits({3, 5, n}, type, finite);
        for (const at::Tensor& b :
             {bits({3, 5, 1}, type, finite), bits({n}, type, finite), bits({1, n}, type, finite),
              bits({1, 1, n}, type, finite), bits({5, 1}, type, finite), bits({1, 5, n}, type, finite),
              bits({1, 3, 5, 1}, type, finite), bits({1}, type, finite)}) {
          for (std::size_t i = 0; i < 4; ++i)
            EXPECT_TRUE(same_bits(operations()[i](hpu(a), hpu(b)), operations()[i](a, b)))
                << "op " << i << " of " << type << ", n " << n << ", " << b.sizes();
        }
        EXPECT_TRUE(same_bits(at::add(hpu(a), hpu(a[0][0]), 3), at::add(a, a[0][0], 3)));
      }
}

TEST(SmallPointwise, GivesTheCpusBitsWithNumbers) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = bits({3, 41}, type, true), x = hpu(a);
    const auto compare = [&](const auto& number) {
      EXPECT_TRUE(same_bits(at::add(x, number), at::add(a, number))) << number;
      EXPECT_TRUE(same_bits(at::sub(x, number), at::sub(a, number))) << number;
      EXPECT_TRUE(same_bits(at::mul(x, number), at::mul(a, number))) << number;
      EXPECT_TRUE(same_bits(at::div(x, number), at::div(a, number))) << number;
      EXPECT_TRUE(same_bits(x.clone().add_(number), a.clone().add_(number))) << number;
      EXPECT_TRUE(same_bits(x.clone().sub_(number), a.clone().sub_(number))) << number;
      EXPECT_TRUE(same_bits(x.clone().mul_(number), a.clone().mul_(number))) << number;
      EXPECT_TRUE(same_bits(x.clone().div_(number), a.clone().div_(number))) << number;
    };
    for (const double number : {0.0, -0.0, 1.0, 1.0017, 3.14159, 1.0 / 3, 1e-3, 16777217.0, 1e-42, 1e39, -7.5}) {
      compare(at::Scalar(number));
      compare(at::scalar_tensor(number, at::kDouble));
      if (number < 1e38) compare(at::scalar_tensor(number, at::kFloat));
    }
    for (const std::int64_t number : {std::int64_t{3}, std::int64_t{16777217}, std::int64_t{36028797018963969}}) {
      compare(at::Scalar(number));
      compare(at::scalar_tensor(number, at::kLong));
    }
    compare(at::Scalar(std::numeric_limits<double>::quiet_NaN()));
    compare(at::Scalar(std::numeric_limits<double>::infinity()));
    EXPECT_TRUE(same_bits(at::add(x, at::Scalar(true)), at::add(a, at::Scalar(true))));
  }
}

TEST(SmallPointwise, OtherFormsStayTheCpusToo) {
  const at::Tensor a = at::randn({6, 4}), b = at::randn({6, 4}), x = hpu(a), y = hpu(b);
  EXPECT_TRUE(same_bits(at::add(x, y, 2), at::add(a, b, 2)));
  EXPECT_TRUE(same_bits(at::sub(x, 2, 3), at::sub(a, 2, 3)));
  EXPECT_TRUE(same_bits(x.t() + y.t(), a.t() + b.t()));
  EXPECT_EQ((x.t() + y.t()).strides(), (a.t() + b.t()).strides());
  EXPECT_TRUE(same_bits(x + y.select(0, 1), a + b.select(0, 1)));
  EXPECT_TRUE(same_bits(x + y.to(at::kBFloat16), a + b.to(at::kBFloat16)));
  EXPECT_TRUE(same_bits(x + y.select(0, 1).select(0, 1), a + b.select(0, 1).select(0, 1)));
  EXPECT_TRUE(same_bits(x.narrow(0, 1, 3) * y.narrow(0, 2, 3), a.narrow(0, 1, 3) * b.narrow(0, 2, 3)));
  EXPECT_TRUE(same_bits(x.to(at::kInt) + 2.5, a.to(at::kInt) + 2.5));
  EXPECT_TRUE(same_bits(x.view(at::kComplexFloat).conj() * 2.0, a.view(at::kComplexFloat).conj() * 2.0));
  EXPECT_TRUE(same_bits(at::_neg_view(x) + y, at::_neg_view(a) + b));
  EXPECT_EQ((x.slice(0, 0, 0) + y.slice(0, 0, 0)).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_TRUE(throws_with({"single memory location"}, [&] {
    const at::Tensor line = at::ones({10}, on_hpu());
    line.narrow(0, 0, 8).add_(line.narrow(0, 1, 8));
  }));
  EXPECT_REFUSED(at::add(x, y, true), "oolean alpha");
}

TEST(SmallPointwise, IsSeenByAutograd) {
  const at::Tensor a = at::randn({8}, on_hpu()).set_requires_grad(true), plain = at::ones({8}, on_hpu());
  (a * plain * 3 - 1).sum().backward();
  EXPECT_TRUE(at::equal(a.grad().cpu(), at::full({8}, 3.0f)));
  const auto version = plain._version();
  at::Tensor(plain).mul_(2).add_(plain);
  EXPECT_EQ(plain._version(), version + 2);
  EXPECT_REFUSED(at::Tensor(a).add_(1), "leaf");
}

TEST(SmallCopy, GivesTheCpusBits) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool};
  for (const std::int64_t n : {1, 3, 8, 17, 100, 32768, 40000}) {
    for (const auto from : kTypes)
      for (const auto to : kTypes) {
        const at::Tensor a = from == at::kFloat || from == at::kBFloat16 ? bits({n}, from, to != at::kBFloat16)
                                                                         : at::randint(0, 2, {n}).to(from);
        EXPECT_TRUE(same_bits(hpu(a).to(to, false, true), a.to(to, false, true)))
            << from << " to " << to << ", n " << n;
      }
    for (const auto from : {at::kFloat, at::kBFloat16}) {
      const at::Tensor a = bits({n}, from, false);
      EXPECT_TRUE(same_bits(hpu(a).to(at::kBFloat16), a.to(at::kBFloat16)));
      EXPECT_TRUE(same_bits(hpu(a).to(at::kFloat), a.to(at::kFloat)));
    }
  }
  const at::Tensor line = at::arange(10, on_hpu());
  line.narrow(0, 5, 5).copy_(line.narrow(0, 0, 5));
  EXPECT_EQ(line.sum().item<float>(), 20.0f);
  EXPECT_EQ(hpu(at::ones({2, 3})).copy_(at::arange(3, on_hpu())).sum().item<float>(), 6.0f);
}

TEST(SmallCopy, ReadsAnyStrides) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kComplexFloat, at::kBool}) {
    const at::Tensor a = at::randn({2, 3, 4, 5}).to(type), x = hpu(a);
    EXPECT_TRUE(same_bits(x.transpose(0, 3).contiguous(), a.transpose(0, 3).contiguous())) << type;
    EXPECT_TRUE(same_bits(x.permute({2, 0, 3, 1}).contiguous(), a.permute({2, 0, 3, 1}).contiguous())) << type;
    EXPECT_TRUE(same_bits(x.slice(3, 1, 5, 2).contiguous(), a.slice(3, 1, 5, 2).contiguous())) << type;
    EXPECT_TRUE(same_bits(x.select(1, 2).transpose(0, 1).contiguous(), a.select(1, 2).transpose(0, 1).contiguous()))
        << type;
    EXPECT_TRUE(same_bits(x.select(0, 1).select(0, 1).select(1, 3).contiguous(),
                          a.select(0, 1).select(0, 1).select(1, 3).contiguous()))
        << type;
    EXPECT_TRUE(same_bits(x.narrow(1, 0, 1).expand({2, 3, 4, 5}).contiguous(),
                          a.narrow(1, 0, 1).expand({2, 3, 4, 5}).contiguous()))
        << type;
  }
  const at::Tensor square = hpu(at::arange(9)).view({3, 3});
  EXPECT_REFUSED(square.copy_(square.t()), "single memory location");
}

TEST(SmallChoice, GivesTheCpusBits) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kHalf, at::kBool}) {
    const at::Tensor a = (at::randn({3, 41}) * 9).to(type), b = (at::randn({3, 41}) * 9).to(type);
    const at::Tensor mask = at::rand({3, 41}).lt(0.5);
    EXPECT_TRUE(same_bits(at::where(hpu(mask), hpu(a), hpu(b)), at::where(mask, a, b))) << type;
    EXPECT_TRUE(same_bits(at::where(hpu(mask)[0], hpu(a), hpu(b)[1]), at::where(mask[0], a, b[1]))) << type;
    EXPECT_TRUE(same_bits(at::where(hpu(mask), hpu(a), hpu(b).to(at::kDouble)), at::where(mask, a, b.to(at::kDouble))));
    for (const double number : {0.0, -0.0, 1.0 / 3, -1e9, 3.3895e38, 3.4028234663852886e38, double(INFINITY), -1e-42}) {
      if (type == at::kHalf && std::isfinite(number) && std::abs(number) > 65504) continue;
      if (type == at::kBFloat16 && number > 3.39e38 && std::isfinite(number)) continue;
      if (at::isIntegralType(type, true) && std::abs(number) > 1) continue;
      EXPECT_TRUE(same_bits(at::masked_fill(hpu(a), hpu(mask), number), at::masked_fill(a, mask, number))) << type;
      EXPECT_TRUE(same_bits(at::masked_fill(hpu(a), hpu(mask)[0], number), at::masked_fill(a, mask[0], number)))
          << type;
    }
  }
  const at::Tensor x = at::ones({4}, on_hpu()), mask = x.gt(0);
  EXPECT_TRUE(at::masked_fill(x, mask, NAN).isnan().all().item<bool>());
  EXPECT_REFUSED(at::masked_fill(x.to(at::kBFloat16), mask, 3.4e38), "overflow");
  EXPECT_REFUSED(at::masked_fill(x, mask, 1e39), "overflow");
}

TEST(SmallCat, GivesTheCpusBitsAndStrides) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
    const at::Tensor a = at::randn({2, 3, 4}).to(type), b = at::randn({2, 5, 4}).to(type), c = b.narrow(1, 1, 2);
    const auto same = [&](const std::vector<at::Tensor>& of, std::int64_t dim) {
      auto there = collected(of, [](const at::Tensor& t) { return hpu(t); });
      const at::Tensor y = at::cat(there, dim), expected = at::cat(of, dim);
      EXPECT_TRUE(same_bits(y, expected)) << type << " along " << dim;
      EXPECT_EQ(y.strides(), expected.strides()) << type << " along " << dim;
    };
    same({a, b}, 1);
    same({a, b, c}, -2);
    same({a, a, a}, 0);
    same({a, a}, 2);
    same({a, at::empty({0}, type), b}, 1);
    same({a.transpose(0, 2).contiguous().transpose(0, 2), b}, 1);
    const at::Tensor image = at::randn({2, 3, 4, 4}).to(type);
    same({image, image}, 1);
    const at::Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast), thin = at::randn({2, 3, 1, 1}).to(type);
    same({last, last}, 1);
    same({thin, thin}, 2);
    same({thin.contiguous(at::MemoryFormat::ChannelsLast), thin}, 1);
  }
  const at::Tensor a = at::ones({2, 3}, on_hpu());
  EXPECT_EQ(at::cat({a, a.to(at::kDouble)}).scalar_type(), at::kDouble);
  EXPECT_REFUSED(at::cat({a, a.t().contiguous()}), "Sizes of tensors must match");
  EXPECT_REFUSED(at::cat({a, a}, 2), "Dimension out of range");
}

// Scaled dot product attention takes the path the CPU takes: bit equal forward and backward.

struct Attention {
  const char* name;
  std::vector<std::int64_t> q, k;
  bool causal = false, gqa = false;
  int mask = 0;  ///< 0 none, 1 boolean, 2 additive
  std::optional<double> scale = std::nullopt;
  at::ScalarType dtype = at::kFloat;
};

/// Result and gradients of q, k, v (and of an additive mask).
std::vector<at::Tensor> run(const Attention& a, at::Device device, bool grad) {
  torch::manual_seed(31);
  const auto make = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(a.dtype).to(device).requires_grad_(grad); };
  at::Tensor q = make(a.q), k = make(a.k), v = make(a.k);
  std::optional<at::Tensor> mask;
  if (a.mask == 1) mask = (at::rand({a.q[2], a.k[2]}) > 0.3).to(device);
  if (a.mask == 2) mask = at::randn({a.q[2], a.k[2]}).to(a.dtype).to(device);
  if (a.mask == 1) mask->select(1, 0).fill_(true);  // no row without a key
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, mask, 0.0, a.causal, a.scale, a.gqa);
  EXPECT_EQ(y.device().type(), device.type());
  std::vector<at::Tensor> out = {y.detach().cpu()};
  if (!grad) return out;
  (y * at::arange(y.numel(), y.options()).view(y.sizes()).cos()).sum().backward();
  for (const auto& t : {q, k, v}) out.push_back(t.grad().cpu());
  return out;
}

const Attention kCases[] = {
    {"plain", {2, 3, 5, 8}, {2, 3, 5, 8}},
    {"causal", {2, 3, 17, 8}, {2, 3, 17, 8}, true},
    {"cross", {1, 2, 3, 16}, {1, 2, 9, 16}},
    {"boolean mask", {2, 3, 5, 8}, {2, 3, 7, 8}, false, false, 1},
    {"additive mask", {2, 3, 5, 8}, {2, 3, 7, 8}, false, false, 2},
    {"scale", {2, 3, 5, 8}, {2, 3, 5, 8}, false, false, 0, 0.25},
    {"grouped queries", {2, 4, 5, 8}, {2, 2, 5, 8}, false, true},
    {"causal grouped queries", {2, 4, 5, 8}, {2, 2, 5, 8}, true, true},
    {"bf16", {2, 3, 33, 16}, {2, 3, 33, 16}, true, false, 0, std::nullopt, at::kBFloat16},
    {"odd head size", {1, 1, 4, 7}, {1, 1, 4, 7}, true},
};

TEST(Sdpa, EqualsTheCpuForwardAndBackward) {
  for (const auto& a : kCases) {
    const auto got = run(a, kHpu, true), expected = run(a, at::kCPU, true);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << a.name << ", " << i;
  }
}

TEST(Sdpa, EqualsTheCpuWithoutGradients) {
  for (const auto& a : kCases) {
    EXPECT_TRUE(same_bits(run(a, kHpu, false)[0], run(a, at::kCPU, false)[0])) << a.name;
    const c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(run(a, kHpu, false)[0], run(a, at::kCPU, false)[0])) << a.name;
  }
}

TEST(Sdpa, AMaskThatNeedsAGradientGetsOne) {
  const auto gradient = [](at::Device device) {
    torch::manual_seed(1);
    const at::Tensor q = at::randn({1, 2, 4, 8}).to(device), mask = at::randn({4, 4}).to(device).requires_grad_(true);
    at::scaled_dot_product_attention(q, q, q, mask).square().sum().backward();
    return mask.grad().cpu();
  };
  EXPECT_TRUE(same_bits(gradient(kHpu), gradient(at::kCPU)));
}

TEST(Sdpa, TheChoiceIsTheCpus) {
  const at::Tensor q = at::randn({1, 2, 4, 8}), mask = at::randn({4, 4});
  const auto choice = [&](at::Device device, bool mask_needs_grad) {
    return at::_fused_sdp_choice(q.to(device), q.to(device), q.to(device),
                                 mask.to(device).detach().requires_grad_(mask_needs_grad));
  };
  EXPECT_EQ(choice(kHpu, false), choice(at::kCPU, false));
  EXPECT_EQ(choice(kHpu, true), choice(at::kCPU, true));
  EXPECT_NE(choice(kHpu, false), choice(kHpu, true));
}

// Few rows over many keys take kernels/attention.h; what it computes is tested beside it.

struct RowsOverKeys {
  std::int64_t rows, keys, width;
  int mask = 0;  ///< 0 none, 1 boolean [L, S], 2 additive [B, 1, L, S]
  at::ScalarType dtype = at::kBFloat16;
  std::optional<double> scale = std::nullopt;
};

constexpr std::int64_t kB = 2, kH = 3;

std::vector<at::Tensor> operands(const RowsOverKeys& a) {
  torch::manual_seed(5);
  const at::Tensor q = at::randn({kB, kH, a.rows, a.width}).to(a.dtype),
                   k = at::randn({kB, a.keys, kH, a.width}).to(a.dtype).transpose(1, 2),  // as models split heads
      v = at::randn({kB, kH, a.keys + 7, a.width}).to(a.dtype).narrow(2, 0, a.keys);      // as caches lie
  at::Tensor mask;
  if (a.mask == 1) mask = at::rand({a.rows, a.keys}) > 0.3;
  if (a.mask == 2) mask = at::randn({kB, 1, a.rows, a.keys}).to(a.dtype);
  return {q, k, v, mask};
}

at::Tensor attend(const RowsOverKeys& a, const std::vector<at::Tensor>& in) {
  const auto mask = in[3].defined() ? std::optional<at::Tensor>(in[3]) : std::nullopt;
  return at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, false, a.scale);
}

std::vector<at::Tensor> to(const std::vector<at::Tensor>& all,
                           const std::function<at::Tensor(const at::Tensor&)>& move) {
  return collected(all, [&](const at::Tensor& t) { return t.defined() ? move(t) : t; });
}

TEST(Sdpa, FewRowsOverManyKeysAreCloseToTheExactOnes) {
  const RowsOverKeys cases[] = {{1, 64, 64},
                                {1, 700, 128},
                                {8, 300, 64, 0, at::kBFloat16, 0.3},
                                {16, 300, 16, 1},
                                {5, 300, 40, 2},
                                {1, 300, 8, 1, at::kFloat},
                                {4, 129, 20, 2, at::kFloat},
                                {3, 64, 96, 0, at::kFloat, 0.01}};
  for (const RowsOverKeys& a : cases) {
    const auto in = operands(a);
    const at::Tensor exact =
        attend(a, to(in, [](const at::Tensor& t) { return t.scalar_type() == at::kBool ? t : t.to(at::kDouble); }));
    const at::Tensor y = attend(a, to(in, [](const at::Tensor& t) { return t.to(kHpu); }));
    EXPECT_EQ(y.device().type(), c10::kHPU);
    EXPECT_EQ(y.scalar_type(), a.dtype);
    EXPECT_EQ(y.strides(), attend(a, in).strides()) << "memory as on the CPU";
    const double unit = a.dtype == at::kFloat ? 0x1p-18 : 0x1p-7;
    EXPECT_LE((y.cpu().to(at::kDouble) - exact).abs().max().item<double>(), unit) << a.rows << " x " << a.keys;
  }
}

TEST(Sdpa, FewRowsAreOurKernels) {
  const RowsOverKeys a{2, 200, 32, 0, at::kFloat};
  const auto in = operands(a);
  const at::Tensor k = in[1].contiguous(), v = in[2].contiguous(), expected = at::empty({kB, kH, a.rows, a.width});
  kernels::AttentionArgs args;
  args.type = kernels::FloatType::F32, args.batch = kB, args.heads = kH;
  args.rows = a.rows, args.keys = a.keys, args.width = a.width;
  args.q = {in[0].const_data_ptr(), kH * a.rows * a.width, a.rows * a.width, a.width};
  args.k = {k.const_data_ptr(), kH * a.keys * a.width, a.keys * a.width, a.width};
  args.v = {v.const_data_ptr(), kH * a.keys * a.width, a.keys * a.width, a.width};
  args.y = {expected.mutable_data_ptr(), kH * a.rows * a.width, a.rows * a.width, a.width};
  args.scale = static_cast<float>(1 / std::sqrt(32.0));
  kernels::attention(args);
  EXPECT_TRUE(same_bits(attend(a, to(in, [](const at::Tensor& t) { return t.to(kHpu); })).cpu(), expected));
  EXPECT_FALSE(same_bits(attend(a, in), expected)) << "PyTorch's sums have another order";
}

TEST(Sdpa, LogsumexpOfFewRowsIsTheCpus) {
  const RowsOverKeys a{3, 300, 64};
  const auto in = operands(a);
  const auto of = [](const std::vector<at::Tensor>& t) {
    return std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2]));
  };
  const at::Tensor cpu = of(in), ours = of(to(in, [](const at::Tensor& t) { return t.to(kHpu); })).cpu();
  EXPECT_EQ(ours.sizes(), cpu.sizes());
  EXPECT_LE((ours - cpu).abs().max().item<double>(), 1e-3);  // PyTorch multiplies in bf16
}

TEST(Sdpa, WhatNeedsAGradientOrIsCausalIsTheCpusToTheBit) {
  for (const bool causal : {false, true}) {
    const Attention a{"few rows", {1, 2, 4, 16}, {1, 2, 100, 16}, causal, false, 0, std::nullopt, at::kBFloat16};
    const auto got = run(a, kHpu, !causal), expected = run(a, at::kCPU, !causal);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << causal << ", " << i;
  }
}

TEST(Sdpa, DropoutFollowsTheSeed) {
  const auto dropped = [](at::Device device) {
    torch::manual_seed(8);
    const at::Tensor q = at::randn({1, 2, 6, 8}).to(device);
    return at::scaled_dot_product_attention(q, q, q, {}, 0.5).cpu();
  };
  EXPECT_TRUE(same_bits(dropped(kHpu), dropped(at::kCPU)));
}

TEST(Sdpa, BadArgumentsThrowTheCpusText) {
  const auto text = [](at::Device device) {
    const at::Tensor q = at::randn({1, 2, 6, 8}).to(device), k = at::randn({1, 2, 6, 4}).to(device);
    return error_of([&] { at::scaled_dot_product_attention(q, k, k); });
  };
  EXPECT_NE(text(kHpu), "");
  const auto both = [](at::Device device) {
    const at::Tensor q = at::randn({1, 2, 6, 8}).to(device), mask = at::zeros({6, 6}).to(device);
    return error_of([&] { at::scaled_dot_product_attention(q, q, q, mask, 0.0, true); });
  };
  EXPECT_EQ(both(kHpu), both(at::kCPU));
}

}  // namespace
}  // namespace fp8::test
