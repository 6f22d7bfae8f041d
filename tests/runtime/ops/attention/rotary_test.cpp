// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding against x * cos + rotate(x) * sin written with tensors in f64, its backward against
// autograd.
#include "sdpa_reference.h"

namespace fp8::test {
namespace {

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
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
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
}

TEST(Rotary, PositionsChooseRowsOfTheTable) {
  torch::manual_seed(7);
  const at::Tensor ids = at::randint(0, 50, {2, 5}, at::kLong);
  for (const Sizes& table : {Sizes{1, 1, 50, 8}, Sizes{50, 8}}) {
    const at::Tensor sin = random_hpu(table, at::kFloat, 2), cos = random_hpu(table, at::kFloat, 3);
    for (const bool wide_input : {true, false}) {
      const at::Tensor x = random_hpu(wide_input ? Sizes{2, 3, 5, 8} : Sizes{2, 5, 8}, at::kFloat, 1);
      const auto rows = [&](const at::Tensor& t) {
        const at::Tensor picked = wide(t).view({50, 8}).index({ids});  // [2, 5, 8]
        return wide_input ? picked.unsqueeze(1) : picked;
      };
      for (const auto type : {at::kLong, at::kInt}) {
        for (const std::int64_t mode : {0, 1})
          expect_rotary(x, sin, cos, hpu(ids.to(type)), 0, mode, rows(sin), rows(cos));
      }
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
  const auto rotary = [](torch::jit::Stack args) { return [args] { call("rotary_pos_embedding", "", args); }; };
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "mode 0", "got 2"}, rotary({x, t, t, ids, 0, 2})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "Int"}, rotary({x.to(at::kInt), t, t, ids, 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "even"}, rotary({x.slice(-1, 0, 7), t, t, ids, 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "equal sizes"}, rotary({x, t, t[0], ids, 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "8 columns", "offset 1"}, rotary({x, t, t, kNone, 1, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "offset >= 0"}, rotary({x, t, t, kNone, -1, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "PAIRWISE"}, rotary({x, t, t, kNone, 1, 1})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "broadcast to input"}, rotary({x, t, t, kNone, 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "from 0 to 9", "got 10"}, rotary({x, t, t, ids + 10, 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "got -1"}, rotary({x, t, t, ids - 1, 0, 0})));
  EXPECT_TRUE(
      throws_with({"[rotary_pos_embedding]", "position_ids of dtype"}, rotary({x, t, t, ids.to(at::kFloat), 0, 0})));
  EXPECT_TRUE(
      throws_with({"[rotary_pos_embedding]", "position_ids of sizes [2, 5]"}, rotary({x, t, t, ids.t(), 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "leading sizes 1"},
                          rotary({x, t.expand({1, 3, 10, 8}), t.expand({1, 3, 10, 8}), ids, 0, 0})));
  EXPECT_TRUE(throws_with({"[rotary_pos_embedding]", "[B, H, T, D]"}, rotary({x[0][0], t, t, ids, 0, 0})));
}

}  // namespace
}  // namespace fp8::test
