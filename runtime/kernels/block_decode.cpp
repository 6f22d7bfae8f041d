// SPDX-License-Identifier: Apache-2.0
// The way back of block_cast.h: scales of a band are spread to one per element, then every row of the band is one
// decode (cast_kernels.h) per piece.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/kernels/cast_kernels.h"
#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kPiece = 2048;       // columns of a unit
constexpr std::int64_t kGrain = 64 * 1024;  // elements per range of units

void check(const DecodeArgs& args) {
  check_matrix("decode_blocks", args.rows, args.cols, args.cols);
  if (!args.layout.has_blocks()) {
    throw std::invalid_argument("decode_blocks: found blocks of " + std::to_string(args.layout.rows) + " x " +
                                std::to_string(args.layout.cols) + ", sizes must be at least 1");
  }
  if (args.rows == 0 || args.cols == 0) return;
  if (args.codes == nullptr || args.y == nullptr) {
    throw std::invalid_argument("decode_blocks: codes and y must not be null for a non-empty matrix");
  }
  if ((args.scale_inv == nullptr) == (args.e8m0 == nullptr)) {
    throw std::invalid_argument("decode_blocks: expected one of scale_inv and e8m0, got " +
                                std::string(args.e8m0 == nullptr ? "neither" : "both"));
  }
}

/// scales[c] = the scale of column col + c < col + n in this row of the grid.
void spread(const DecodeArgs& args, std::int64_t grid_row, std::int64_t col, std::int64_t n, float* scales) {
  const std::int64_t first = grid_row * blocks_of(args.cols, args.layout.cols);
  for (std::int64_t c = 0; c < n;) {
    const std::int64_t block = (col + c) / args.layout.cols, end = std::min(n, (block + 1) * args.layout.cols - col);
    const float scale = args.e8m0 != nullptr ? e8m0_value(args.e8m0[first + block]) : args.scale_inv[first + block];
    std::fill(scales + c, scales + end, scale);
    c = end;
  }
}

}  // namespace

void decode_blocks(const DecodeArgs& given) {
  check(given);
  DecodeArgs args = given;
  if (args.rows == 0 || args.cols == 0) return;
  args.layout.rows = std::min(args.layout.rows, args.rows);
  args.layout.cols = std::min(args.layout.cols, args.cols);
  const DecodeKernel kernel = decode_kernel_in_force(args.type, args.format);
  // Tall bands are cut: rows need each other only for the scales, which are cheap.
  const std::int64_t unit_rows = std::min<std::int64_t>(args.layout.rows, 32);
  const std::int64_t parts = blocks_of(args.layout.rows, unit_rows), across = blocks_of(args.cols, kPiece);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / unit_rows / std::min(kPiece, args.cols));
  parallel_for(
      blocks_of(args.rows, args.layout.rows) * parts * across, grain, [&](std::int64_t begin, std::int64_t end) {
        float scales[kPiece];
        for (std::int64_t unit = begin; unit < end; ++unit) {
          const std::int64_t band = unit / across / parts, part = unit / across % parts, col = unit % across * kPiece;
          const std::int64_t n = std::min(kPiece, args.cols - col);
          const std::int64_t row = band * args.layout.rows + part * unit_rows;
          const std::int64_t row_end = std::min({args.rows, (band + 1) * args.layout.rows, row + unit_rows});
          if (row < row_end) spread(args, band, col, n, scales);
          for (std::int64_t r = row; r < row_end; ++r) {
            const std::int64_t at = r * args.cols + col;
            kernel(DecodeSpan{args.codes + at, n, static_cast<char*>(args.y) + at * size_of(args.type), scales, true,
                              false});
          }
        }
      });
}

}  // namespace fp8::kernels
