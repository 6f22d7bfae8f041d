// SPDX-License-Identifier: Apache-2.0
// Block-scaled tensors on hpu and cpu: sizes, dtypes, and the formulas restated with torch's own operators.
#include "fp8/runtime/ops/cast/block_ops.h"

#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

namespace ops = runtime::ops;
using kernels::Dialect;

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

TEST(BlockOps, QuantizesByTheFormulaOnBothDevices) {
  torch::manual_seed(3);
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
          const auto q = ops::quantize_blocks(x.to(device), torch::kFloat8_e4m3fn, Dialect::ocp, br, bc, power_of_two);
          EXPECT_EQ(q.codes.device(), device);
          EXPECT_TRUE(torch::equal(q.scale_inv.cpu(), scale.reciprocal())) << br << " x " << bc;
          EXPECT_TRUE(torch::equal(bytes(q.codes), codes.view(torch::kByte))) << br << " x " << bc;
          const auto want = codes.to(torch::kFloat) * spread(scale.reciprocal(), br, bc, 37, 300);
          for (auto out : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
            EXPECT_TRUE(torch::equal(ops::dequantize_blocks(q, out).cpu(), want.to(out)));
          }
        }
      }
    }
  }
}

TEST(BlockOps, QuantizesToMx) {
  torch::manual_seed(4);
  const auto x = torch::randn({70, 100}) * torch::exp2(torch::randint(-20, 20, {70, 1}));
  for (auto direction : {ops::MxDirection::rowwise, ops::MxDirection::columnwise}) {
    const bool columns = direction == ops::MxDirection::columnwise;
    const int64_t br = columns ? 32 : 1, bc = columns ? 1 : 32;
    const auto exponent = torch::ceil(torch::log2(tile_amax(x, br, bc).to(torch::kDouble) / 57344.0));
    const auto scale_inv = torch::exp2(exponent).to(torch::kFloat);
    const auto codes = (x / spread(scale_inv, br, bc, 70, 100)).clamp(-57344, 57344).to(torch::kFloat8_e5m2);
    auto q = ops::quantize_mx(x.to(kHpu), torch::kFloat8_e5m2, Dialect::ocp, direction);
    EXPECT_EQ(q.scale_inv.scalar_type(), torch::kFloat8_e8m0fnu);
    EXPECT_TRUE(torch::equal(bytes(q.scale_inv), (exponent + 127).to(torch::kByte)));
    EXPECT_TRUE(torch::equal(q.scale_inv.cpu().to(torch::kFloat), scale_inv));  // torch reads the same E8M0
    EXPECT_TRUE(torch::equal(bytes(q.codes), codes.view(torch::kByte)));
    const auto want = codes.to(torch::kFloat) * spread(scale_inv, br, bc, 70, 100);
    EXPECT_TRUE(torch::equal(ops::dequantize_blocks(q, torch::kFloat).cpu(), want));
    q.scale_inv = q.scale_inv.view(torch::kByte);
    EXPECT_TRUE(torch::equal(ops::dequantize_blocks(q, torch::kFloat).cpu(), want));
  }
}

TEST(BlockOps, TakesStridedAndEmptyMatrices) {
  const auto base = torch::randn({64, 96}).to(kHpu);
  for (const auto& x : {base.slice(1, 3, 70), base.t(), base.slice(0, 0, 64, 2), base.slice(1, 0, 96, 3),
                        base.slice(0, 5, 6).expand({9, 96})}) {
    const auto a = ops::quantize_blocks(x, torch::kFloat8_e5m2, Dialect::gaudi2, 8, 8, true);
    const auto b = ops::quantize_blocks(x.contiguous(), torch::kFloat8_e5m2, Dialect::gaudi2, 8, 8, true);
    EXPECT_TRUE(torch::equal(bytes(a.codes), bytes(b.codes)));
    EXPECT_TRUE(torch::equal(a.scale_inv.cpu(), b.scale_inv.cpu()));
  }
  for (auto sizes : {std::vector<int64_t>{0, 5}, {5, 0}, {0, 0}}) {
    const auto q =
        ops::quantize_mx(torch::empty(sizes).to(kHpu), torch::kFloat8_e4m3fn, Dialect::ocp, ops::MxDirection::rowwise);
    EXPECT_EQ(q.codes.numel(), 0);
    EXPECT_EQ(ops::dequantize_blocks(q, torch::kFloat).sizes(), at::IntArrayRef(sizes));
  }
}

TEST(BlockOps, StochasticRoundingFollowsTheSeed) {
  const auto x = torch::full({64, 64}, 18.5f).to(kHpu);  // scale 16: 296, between 288 and 320
  const auto draw = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return bytes(ops::quantize_blocks(x, torch::kFloat8_e4m3fn, Dialect::ocp, 64, 64, true, 0.0f, true).codes);
  };
  EXPECT_TRUE(torch::equal(draw(1), draw(1)));
  EXPECT_FALSE(torch::equal(draw(1), draw(2)));
  const double mean = draw(1).view(torch::kFloat8_e4m3fn).to(torch::kDouble).mean().item<double>();
  EXPECT_NEAR(mean, 296.0, 5 * 32 * std::sqrt(0.25 * 0.75 / 4096));
}

TEST(BlockOps, NamesWhatItCannotTake) {
  const auto x = torch::randn({4, 4});
  const auto quantize = [](const torch::Tensor& t, at::ScalarType fp8, int64_t br) {
    return ops::quantize_blocks(t, fp8, Dialect::ocp, br, 4, false);
  };
  EXPECT_TRUE(throws_with({"expected a matrix of dtype Float, BFloat16 or Half"},
                          [&] { quantize(x[0], torch::kFloat8_e4m3fn, 4); }));
  EXPECT_TRUE(throws_with({"of Int"}, [&] { quantize(x.to(torch::kInt), torch::kFloat8_e4m3fn, 4); }));
  EXPECT_TRUE(throws_with({"expected codes of dtype"}, [&] { quantize(x, torch::kHalf, 4); }));
  EXPECT_TRUE(
      throws_with({"expected blocks of at least 1 x 1, got 0 x 4"}, [&] { quantize(x, torch::kFloat8_e4m3fn, 0); }));
  EXPECT_TRUE(throws_with({"amax_epsilon"},
                          [&] { ops::quantize_blocks(x, torch::kFloat8_e4m3fn, Dialect::ocp, 4, 4, false, -1.0f); }));
  auto q = quantize(x, torch::kFloat8_e4m3fn, 4);
  EXPECT_TRUE(throws_with({"expected an output of dtype"}, [&] { ops::dequantize_blocks(q, torch::kInt); }));
  q.scale_inv = torch::ones({2, 1});
  EXPECT_TRUE(throws_with({"expected scale_inv of sizes [1, 1]"}, [&] { ops::dequantize_blocks(q, torch::kFloat); }));
}

}  // namespace
}  // namespace fp8::test
