// SPDX-License-Identifier: Apache-2.0
// What rows see, against the rule in a loop.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "fp8/tools/models/decoder/attention.h"

namespace fp8::models {
namespace {

bool sees(const Rows& rows, const LayerKind& kind, std::int64_t start, std::int64_t i, std::int64_t j) {
  if (!rows.causal) return kind.window == 0 || std::abs(i - j) < kind.window;
  if (j > i || j < start || (kind.window > 0 && i - j >= kind.window)) return false;
  return kind.chunk == 0 || (i - start) / kind.chunk == (j - start) / kind.chunk;
}

void expect_sight(const Rows& rows, const LayerKind& kind) {
  const auto sight = sight_of(rows, kind, at::kCPU);
  const auto seen = sight.seen(rows.count);
  const std::int64_t end = rows.first + rows.count, columns = end - sight.first;
  const auto sequences = std::max<std::size_t>(1, rows.starts.size());
  for (std::size_t b = 0; b < sequences; ++b) {
    for (std::int64_t i = rows.first; i < end; ++i) {
      for (std::int64_t j = 0; j < end; ++j) {
        const bool expected = sees(rows, kind, rows.starts.empty() ? 0 : rows.starts[b], i, j);
        bool found = j >= sight.first;
        if (found && seen.defined()) {
          const auto row =
              seen.dim() == 4 ? seen[static_cast<std::int64_t>(b)][0][i - rows.first] : seen[i - rows.first];
          ASSERT_EQ(row.size(0), columns);
          found = row[j - sight.first].item<bool>();
        } else if (found && sight.causal) {
          found = j <= i;
        }
        ASSERT_EQ(found, expected) << "sequence " << b << ", row " << i << ", column " << j;
      }
    }
  }
}

TEST(Sight, IsTheRule) {
  for (const std::int64_t window : {0, 1, 3, 8, 100}) {
    for (const std::int64_t chunk : {0, 1, 4, 100}) {
      if (window > 0 && chunk > 0) continue;
      const LayerKind kind{.window = window, .chunk = chunk};
      for (const std::int64_t first : {0, 1, 5, 12})
        for (const std::int64_t count : {1, 2, 9}) expect_sight({.first = first, .count = count}, kind);
      for (const std::int64_t count : {1, 3}) expect_sight({.first = 9, .count = count, .starts = {0, 4, 8}}, kind);
    }
    for (const std::int64_t count : {1, 2, 9}) expect_sight({.count = count, .causal = false}, {.window = window});
  }
}

TEST(Sight, OneRowNeedsNoMask) {
  const auto sight = sight_of({.first = 20, .count = 1}, {.window = 8}, at::kCPU);
  EXPECT_FALSE(sight.mask.defined());
  EXPECT_EQ(sight.first, 13);
  EXPECT_TRUE(sight_of({.count = 7}, {}, at::kCPU).causal);
}

TEST(Sight, APieceOfALongTextNeedsNoMask) {
  const auto sight = sight_of({.first = 3000, .count = 256}, {}, at::kCPU);
  EXPECT_FALSE(sight.mask.defined());
  EXPECT_EQ(sight.band.numel(), 3256 + 255);
  EXPECT_EQ(sight.seen(256).sizes(), at::IntArrayRef({256, 3256}));
}

TEST(Sight, PositionsCountFromAStart) {
  const Rows plain{.first = 3, .count = 2}, joined{.first = 3, .count = 2, .starts = {0, 2}};
  EXPECT_TRUE(at::equal(plain.positions(), at::tensor({3.0f, 4.0f}).view({1, 2})));
  EXPECT_EQ(plain.in_use(), 5);
  EXPECT_TRUE(at::equal(joined.positions(), at::tensor({3.0f, 4.0f, 1.0f, 2.0f}).view({2, 2})));
  EXPECT_EQ(joined.in_use(), 5);
  EXPECT_EQ((Rows{.first = 3, .count = 2, .starts = {1, 2}}).in_use(), 4);
}

}  // namespace
}  // namespace fp8::models
