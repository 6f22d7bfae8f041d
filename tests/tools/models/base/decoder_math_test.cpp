// SPDX-License-Identifier: Apache-2.0
// One pass against PyTorch's operations: the same bits, but for the order in which a norm's sums are added and the last
// bits of an exponential; and when the operations are taken.
#include "fp8/tools/models/decoder/decoder_math.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "fp8/runtime/device/device.h"

namespace fp8::models {
namespace {

constexpr double kEps = 1e-5;

at::Tensor norm_by_operations(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.to(at::kFloat);
  return weight * (wide * at::rsqrt(wide.pow(2).mean({-1}, true) + kEps)).to(x.scalar_type());
}

at::Tensor turned_by_operations(const at::Tensor& x, const RotaryAngles& angles) {
  const auto half = x.size(-1) / 2;
  return x * angles.cos + at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1) * angles.sin;
}

class DecoderMath : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { runtime::init(); }
  static at::TensorOptions options(at::Device device) { return at::dtype(GetParam()).device(device); }
  static at::Device hpu() { return at::Device(at::kHPU, 0); }
  const c10::NoGradGuard no_grad_;
};

TEST_P(DecoderMath, NormsAsPyTorchsOperationsDo) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    const at::Tensor x = (at::randn({2, 5, 96}) * 3).to(options(device)), weight = at::randn({96}).to(options(device));
    const at::Tensor expected = norm_by_operations(x, weight).cpu().to(at::kFloat);
    for (const at::Tensor& from : {x, x.transpose(0, 1).contiguous().transpose(0, 1)}) {
      const at::Tensor y = rms_norm(from, weight, kEps);
      EXPECT_EQ(y.scalar_type(), GetParam());
      EXPECT_EQ(y.device(), device);
      // The factor is within 2^-22 or so; bf16 may fall to the other side of a tie.
      const double steps = GetParam() == at::kFloat ? 0x1p-20 : 0x1p-7;
      const at::Tensor error = (y.cpu().to(at::kFloat) - expected).abs();
      EXPECT_TRUE((error <= expected.abs() * steps).all().item<bool>());
      EXPECT_LE(error.count_nonzero().item<double>(), GetParam() == at::kFloat ? 960 : 10);
    }
  }
}

/// bf16 may fall to the other side of a tie, now and then.
void expect_close(const at::Tensor& y, const at::Tensor& expected, const at::Tensor& size) {
  EXPECT_EQ(y.scalar_type(), expected.scalar_type());
  const bool f32 = y.scalar_type() == at::kFloat;
  const at::Tensor error = (y.cpu().to(at::kFloat) - expected.cpu().to(at::kFloat)).abs();
  EXPECT_TRUE((error <= size.cpu().to(at::kFloat) * (f32 ? 0x1p-20 : 0x1p-7)).all().item<bool>());
  if (f32) return;
  EXPECT_LE(error.count_nonzero().item<std::int64_t>(), y.numel() / 50);
}

TEST_P(DecoderMath, LayerNormsAsPyTorchDoes) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    const at::Tensor x = (at::randn({2, 5, 97}) * 3 + 1).to(options(device)), none;
    const at::Tensor weight = at::randn({97}).to(options(device)), bias = at::randn({97}).to(options(device));
    for (const at::Tensor& from : {x, x.transpose(0, 1).contiguous().transpose(0, 1)}) {
      for (const auto& [by, plus] : {std::pair{weight, bias}, {weight, none}, {none, none}}) {
        const at::Tensor y = layer_norm(from, by, plus, kEps);
        EXPECT_EQ(y.device(), device);
        EXPECT_EQ(y.sizes(), from.sizes());
        const at::Tensor expected = at::layer_norm(x, {97}, by, plus, kEps);
        // Where the bias takes most of a value away, what is left has its error.
        expect_close(y, expected, expected.abs() + (plus.defined() ? bias.abs() : at::ones({97}, options(device))));
      }
    }
  }
}

TEST_P(DecoderMath, GatesAsPyTorchDoes) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    const at::Tensor both = (at::randn({2, 5, 2 * 67}) * 3).to(options(device));
    const at::Tensor gate = both.narrow(-1, 0, 67), up = both.narrow(-1, 67, 67);
    const at::Tensor expected = at::silu(gate) * up;
    expect_close(silu_mul(gate, up), expected, expected.abs());
    expect_close(silu_mul(gate.contiguous(), up.contiguous()), expected, expected.abs());
    const at::Tensor turned = gate.transpose(0, 1), other = up.transpose(0, 1);  // rows of no one stride
    EXPECT_TRUE(silu_mul(turned, other).cpu().equal((at::silu(turned) * other).cpu()));
  }
}

TEST_P(DecoderMath, TurnsAsPyTorchsOperationsDoToTheBit) {
  for (const auto device : {at::Device(at::kCPU), hpu()}) {
    for (std::int64_t length : {1, 7}) {
      const at::Tensor angles = at::randn({1, 1, length, 16});
      const RotaryAngles turn = {angles.cos().to(options(device)), angles.sin().to(options(device))};
      const at::Tensor x = at::randn({2, length, 3, 16}).to(options(device)).transpose(1, 2);
      const at::Tensor y = rotate(x, turn);
      EXPECT_EQ(y.device(), device);
      EXPECT_TRUE(y.cpu().equal(turned_by_operations(x.cpu(), {turn.cos.cpu(), turn.sin.cpu()})));
      const at::Tensor own = at::randn({2, 1, length, 16});  // of each sequence
      const RotaryAngles each = {own.cos().to(options(device)), own.sin().to(options(device))};
      EXPECT_TRUE(rotate(x, each).cpu().equal(turned_by_operations(x.cpu(), {each.cos.cpu(), each.sin.cpu()})));
    }
  }
}

TEST_P(DecoderMath, ManyTokensAreNoOtherThanEachByItself) {
  const at::Tensor x = at::randn({300, 256}).to(options(hpu())), weight = at::randn({256}).to(options(hpu()));
  const at::Tensor all = rms_norm(x, weight, kEps).cpu();
  for (std::int64_t i : {0, 150, 299})
    EXPECT_TRUE(all[i].equal(rms_norm(x[i].unsqueeze(0), weight, kEps).cpu().squeeze(0)));
}

TEST_P(DecoderMath, GradientsAndAutocastTakeTheOperations) {
  const at::Tensor x = at::randn({4, 32}).to(options(hpu())), weight = at::randn({32}).to(options(hpu()));
  {
    const c10::AutoGradMode grad(true);
    const at::Tensor leaf = weight.detach().requires_grad_();
    rms_norm(x, leaf, kEps).sum().backward();
    EXPECT_TRUE(leaf.grad().defined());
    layer_norm(x, weight, leaf, kEps).sum().backward();
    const at::Tensor gate = x.detach().requires_grad_();
    silu_mul(gate, x).sum().backward();
    EXPECT_TRUE(gate.grad().defined());
  }
  at::autocast::set_autocast_enabled(at::kHPU, true);
  const at::Tensor y = rms_norm(x, weight, kEps), expected = norm_by_operations(x, weight);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(y.cpu().equal(expected.cpu()));
}

TEST(DecoderMathTypes, OthersTakeTheOperations) {
  const c10::NoGradGuard no_grad;
  const at::Tensor half = at::randn({3, 32}).to(at::kHalf), weight = at::randn({32});
  EXPECT_TRUE(rms_norm(half, weight.to(at::kHalf), kEps).equal(norm_by_operations(half, weight.to(at::kHalf))));
  const at::Tensor mixed = rms_norm(half.to(at::kBFloat16), weight, kEps);
  EXPECT_EQ(mixed.scalar_type(), at::kFloat);
  EXPECT_TRUE(mixed.equal(norm_by_operations(half.to(at::kBFloat16), weight)));
}

INSTANTIATE_TEST_SUITE_P(Types, DecoderMath, ::testing::Values(at::kBFloat16, at::kFloat));

}  // namespace
}  // namespace fp8::models
