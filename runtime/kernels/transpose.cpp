// SPDX-License-Identifier: Apache-2.0
// The transpose of a byte matrix, in tiles of 64 x 64 that are gathered in a buffer of 4 KiB: memory is read and
// written in whole cache lines, whatever the strides, and rows a power of two apart do not evict each other half-used.
//
// Within a tile 16 x 16 bytes are one network of four rounds: unpacking a[i] with a[i + 8] into a[2i], a[2i + 1] sends
// the index bits (row 3..0, column 3..0) one place round; after four rounds rows and columns have changed places.
// Vectors are the compiler's own, so this is SSE2 on x86-64 and the like elsewhere: it is bound by memory, not by their
// width.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kTile = 64;
constexpr std::int64_t kBlock = 256;  // tiles are done in squares of this size, so that few pages are in use at a time

using Vector = std::uint8_t __attribute__((vector_size(16)));

Vector unpack_low(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Vector unpack_high(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// 16 rows of 16 bytes, in_stride apart -> their transpose, out_stride apart.
void transpose_16(const std::uint8_t* in, std::int64_t in_stride, std::uint8_t* out, std::int64_t out_stride) {
  Vector a[16], b[16];
  for (int i = 0; i < 16; ++i) std::memcpy(&a[i], in + i * in_stride, 16);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = unpack_low(a[i], a[i + 8]);
      b[2 * i + 1] = unpack_high(a[i], a[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = unpack_low(b[i], b[i + 8]);
      a[2 * i + 1] = unpack_high(b[i], b[i + 8]);
    }
  }
  for (int i = 0; i < 16; ++i) std::memcpy(out + i * out_stride, &a[i], 16);
}

void transpose_tile(const std::uint8_t* in, std::int64_t in_stride, std::uint8_t* out, std::int64_t out_stride) {
  alignas(64) std::uint8_t tile[kTile * kTile];
  for (std::int64_t r = 0; r < kTile; r += 16) {
    for (std::int64_t c = 0; c < kTile; c += 16)
      transpose_16(in + r * in_stride + c, in_stride, tile + c * kTile + r, kTile);
  }
  for (std::int64_t c = 0; c < kTile; ++c) std::memcpy(out + c * out_stride, tile + c * kTile, kTile);
}

void transpose_part(const std::uint8_t* in, std::int64_t in_stride, std::uint8_t* out, std::int64_t out_stride,
                    std::int64_t rows, std::int64_t cols) {
  const std::int64_t whole_rows = rows / 16 * 16, whole_cols = cols / 16 * 16;
  for (std::int64_t c = 0; c < whole_cols; c += 16) {
    for (std::int64_t r = 0; r < whole_rows; r += 16) {
      transpose_16(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    const std::int64_t first = c < whole_cols ? whole_rows : 0;
    for (std::int64_t r = first; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

void transpose_block(const std::uint8_t* in, std::int64_t in_stride, std::uint8_t* out, std::int64_t out_stride,
                     std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; r += kTile) {
    for (std::int64_t c = 0; c < cols; c += kTile) {
      const std::int64_t tile_rows = std::min(kTile, rows - r), tile_cols = std::min(kTile, cols - c);
      const std::uint8_t* from = in + r * in_stride + c;
      std::uint8_t* to = out + c * out_stride + r;
      if (tile_rows == kTile && tile_cols == kTile) {
        transpose_tile(from, in_stride, to, out_stride);
      } else {
        transpose_part(from, in_stride, to, out_stride, tile_rows, tile_cols);
      }
    }
  }
}

}  // namespace

void transpose_bytes(const std::uint8_t* in, std::int64_t rows, std::int64_t cols, std::uint8_t* out,
                     std::int64_t in_stride) {
  if (in_stride == 0) in_stride = cols;
  check_matrix("transpose_bytes", rows, cols, in_stride);
  if (rows == 0 || cols == 0) return;
  if (in == nullptr || out == nullptr) {
    throw std::invalid_argument("transpose_bytes: in and out must not be null for a non-empty matrix");
  }
  const std::int64_t across = (cols + kBlock - 1) / kBlock, down = (rows + kBlock - 1) / kBlock;
  parallel_for(across * down, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t r = block / across * kBlock, c = block % across * kBlock;
      transpose_block(in + r * in_stride + c, in_stride, out + c * rows + r, rows, std::min(kBlock, rows - r),
                      std::min(kBlock, cols - c));
    }
  });
}

}  // namespace fp8::kernels
