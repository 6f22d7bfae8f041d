// SPDX-License-Identifier: Apache-2.0
// Every way in which an expert's matrix stands in a stack, against torch's own indexing: any rows of it, every dtype,
// sizes that divide nothing.
#include <gtest/gtest.h>

#include <limits>

#include "fp8/quant/checkpoint/stacked_experts.h"
#include "quant/checkpoint/stacked_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using test::same_bits;

/// Rows [first, first + rows) of a slice.
at::Tensor rows_of(const io::Checkpoint& checkpoint, const WeightSlice& slice, std::int64_t first, std::int64_t rows,
                   at::ScalarType dtype) {
  at::Tensor out = torch::empty({rows, slice.cols}, dtype);
  std::vector<std::uint8_t> scratch;
  read_rows(checkpoint, slice, first, rows, out.data_ptr(), scratch);
  return out;
}

struct Place {
  const char* tensor;
  std::int64_t first, row_stride, col_stride;
};

TEST(WeightSlice, RowsOfEveryLayoutAreThoseOfTheExpert) {
  torch::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [inner, hidden] : {std::pair<std::int64_t, std::int64_t>{37, 53}, {1, 1}, {64, 33}, {3, 130}}) {
      const std::int64_t I = inner, H = hidden, e = 2;
      const test::Experts experts(3, I, H, dtype);
      const test::TempDir dir;
      test::write_tensors(dir / "in", {{"upright", experts.gate_up()},
                                       {"turns", experts.gate_up(true)},
                                       {"swapped", test::axes_swapped(experts.gate_up())},
                                       {"swapped_turns", test::axes_swapped(experts.gate_up(true))},
                                       {"alone", experts.gate[0]}});
      const io::Checkpoint checkpoint(dir / "in");
      const std::int64_t start = 2 * e * I * H;
      const Place gates[] = {{"upright", start, H, 1},
                             {"turns", start, 2 * H, 1},
                             {"swapped", start, 1, 2 * I},
                             {"swapped_turns", start, 2, 2 * I}};
      const Place ups[] = {{"upright", start + I * H, H, 1},
                           {"turns", start + H, 2 * H, 1},
                           {"swapped", start + I, 1, 2 * I},
                           {"swapped_turns", start + 1, 2, 2 * I}};
      for (const auto* places : {gates, ups}) {
        const at::Tensor& want = places == gates ? experts.gate[e] : experts.up[e];
        for (int layout = 0; layout < 4; ++layout) {
          const Place& p = places[layout];
          const WeightSlice slice{p.tensor, p.first, I, H, p.row_stride, p.col_stride, e};
          EXPECT_TRUE(same_bits(rows_of(checkpoint, slice, 0, I, dtype), want)) << p.tensor;
          const std::int64_t middle = I / 3, count = I - middle - I / 4;
          EXPECT_TRUE(same_bits(rows_of(checkpoint, slice, middle, count, dtype),
                                want.slice(0, middle, middle + count).contiguous()))
              << p.tensor;
          EXPECT_EQ(rows_of(checkpoint, slice, I, 0, dtype).numel(), 0);
        }
      }
      EXPECT_TRUE(same_bits(rows_of(checkpoint, whole_weight(checkpoint.info("alone")), 0, I, dtype), experts.gate[0]));
    }
  }
}

TEST(WeightSlice, NonFiniteValuesAreThoseOfOneExpert) {
  torch::manual_seed(8);
  const test::Experts experts(4, 20, 30, at::kBFloat16);
  at::Tensor stack = test::axes_swapped(experts.gate_up());
  stack[3].select(1, 25).slice(0, 4, 7).fill_(std::numeric_limits<float>::quiet_NaN());  // up's row 5
  stack[3][0][0] = std::numeric_limits<float>::infinity();                               // gate's
  stack[1][0][0] = std::numeric_limits<float>::infinity();
  const test::TempDir dir;
  test::write_tensors(dir / "in", {{"x.experts", stack}});
  const io::Checkpoint checkpoint(dir / "in");
  const auto up = [](std::int64_t e) { return WeightSlice{"x.experts", e * 1200 + 20, 20, 30, 1, 40, e}; };
  EXPECT_EQ(count_nonfinite(checkpoint, up(3)).nan, 3u);
  EXPECT_EQ(count_nonfinite(checkpoint, up(3)).inf, 0u);
  EXPECT_FALSE(count_nonfinite(checkpoint, up(1)).any());
  EXPECT_REFUSED(refuse_nonfinite(checkpoint, up(3)),
                 "x.experts, expert 3: expected finite weights, found NaN in 3 of 600 values");
}

}  // namespace
}  // namespace fp8::quant
