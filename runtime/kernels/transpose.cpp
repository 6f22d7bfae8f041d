// SPDX-License-Identifier: Apache-2.0
// The transpose of a byte matrix: threads, edges and levels around the squares of transpose_kernels.h.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/kernels/transpose_kernels.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kTile = kTransposeTile;
constexpr std::int64_t kBlock = 256;  // tiles are done in squares of this size, so that few pages are in use at a time

/// Part of a tile, by way of a whole one.
void transpose_edge(TransposeKernel kernel, const TransposeRun& run, std::int64_t rows, std::int64_t cols) {
  alignas(kTile) std::uint8_t from[kTile * kTile] = {}, to[kTile * kTile];
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(from + r * kTile, run.in + r * run.in_stride, static_cast<std::size_t>(cols));
  kernel({.in = from, .in_stride = kTile, .out = to, .out_stride = kTile, .tiles = 1, .stream = false});
  for (std::int64_t c = 0; c < cols; ++c)
    std::memcpy(run.out + c * run.out_stride, to + c * kTile, static_cast<std::size_t>(rows));
}

}  // namespace

bool streams_transpose(const std::uint8_t* out, std::int64_t rows, std::int64_t cols) {
  const bool lines = rows % kTile == 0 && reinterpret_cast<std::uintptr_t>(out) % kTile == 0;
  return lines && rows * cols >= streaming_bytes();
}

void transpose_block(TransposeKernel kernel, TransposeRun run, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; c += kTile, run.in += kTile, run.out += kTile * run.out_stride) {
    const std::int64_t width = std::min(kTile, cols - c);
    std::int64_t done = 0;
    if (width == kTile) {
      run.tiles = rows / kTile;
      kernel(run);
      done = run.tiles * kTile;
    }
    for (; done < rows; done += kTile) {
      TransposeRun edge = run;
      edge.in += done * run.in_stride, edge.out += done;
      transpose_edge(kernel, edge, std::min(kTile, rows - done), width);
    }
  }
}

void transpose_bytes(const std::uint8_t* in, std::int64_t rows, std::int64_t cols, std::uint8_t* out,
                     std::int64_t in_stride) {
  if (in_stride == 0) in_stride = cols;
  check_matrix("transpose_bytes", rows, cols, in_stride);
  if (rows == 0 || cols == 0) return;
  if (in == nullptr || out == nullptr) {
    throw std::invalid_argument("transpose_bytes: in and out must not be null for a non-empty matrix");
  }
  const bool stream = streams_transpose(out, rows, cols);
  const TransposeKernel kernel = transpose_kernel_in_force();
  const std::int64_t across = (cols + kBlock - 1) / kBlock, down = (rows + kBlock - 1) / kBlock;
  parallel_for(across * down, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t r = block / across * kBlock, c = block % across * kBlock;
      const TransposeRun run{.in = in + r * in_stride + c,
                             .in_stride = in_stride,
                             .out = out + c * rows + r,
                             .out_stride = rows,
                             .tiles = 0,
                             .stream = stream};
      transpose_block(kernel, run, std::min(kBlock, rows - r), std::min(kBlock, cols - c));
    }
  });
}

}  // namespace fp8::kernels
