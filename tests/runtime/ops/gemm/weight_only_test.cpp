// SPDX-License-Identifier: Apache-2.0
// fp8::weight_only_linear and fp8::block_linear, called as TorchScript calls them, against f64 products of the decoded
// weight.
#include "fp8/runtime/ops/gemm/gemm.h"
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

at::Tensor call_own(const char* name, torch::jit::Stack args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("fp8::") + name).c_str(), "");
  op.schema().checkAndNormalizeInputs(args);
  op.callBoxed(args);
  return args.at(0).toTensor();
}

/// |y - exact| <= (K + 4) 2^-23 magnitude + a unit of y's type.
void expect_product(const at::Tensor& y, const at::Tensor& exact, const at::Tensor& magnitude, std::int64_t k,
                    const std::string& what) {
  ASSERT_EQ(y.sizes(), exact.sizes()) << what;
  const double unit = std::ldexp(1.0, -type_of(y.scalar_type()).digits);
  const at::Tensor error = (y.cpu().to(at::kDouble) - exact).abs();
  EXPECT_TRUE(
      (error <= magnitude * ((k + 4) * std::ldexp(1.0, -23)) + exact.abs() * unit * 1.001 + 1e-30).all().item<bool>())
      << what;
}

TEST(WeightOnlyLinear, IsTheProductWithTheDecodedWeight) {
  for (const auto format : {kE4M3, kE5M2}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool channels : {false, true}) {
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
          expect_product(y, at::matmul(x64, decoded.t()) + b64, at::matmul(x64.abs(), decoded.t().abs()) + b64.abs(), k,
                         what.str());
        }
      }
    }
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
                        Case{3, 16, 24, 128, 128, 0}, Case{2, 5, 130, 3, 128, 4}}) {
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
      expect_product(y, at::matmul(x64, w64.t()) + b64, at::matmul(x64.abs(), w64.abs().t()) + b64.abs(), 2 * c.k,
                     what.str());
    }
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
