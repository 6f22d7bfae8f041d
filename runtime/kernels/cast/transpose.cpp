// SPDX-License-Identifier: Apache-2.0
// The transpose of a byte matrix: its squares (simd_kernels.h) in Highway's portable vectors, compiled once per target;
// threads, edges and levels around them.
//
// In each block of 16 bytes of a vector, 16 x 16 bytes are one network of four rounds: interleaving a[i] with a[i + 8]
// into a[2i], a[2i + 1] sends the index bits (row 3..0, column 3..0) one place round; after four rounds rows and
// columns have changed places. What 16 rows gave waits in 4 KiB until the other rows have come: memory is read and
// written in whole cache lines, whatever the strides, and rows a power of two apart do not evict each other half-used.
#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>

#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/cast/transpose.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

inline void Transpose(const TransposeRun& run) {
  for (std::int64_t r = 0; r < run.tiles * kTransposeTile; ++r)
    for (std::int64_t c = 0; c < kTransposeTile; ++c) run.out[c * run.out_stride + r] = run.in[r * run.in_stride + c];
}

#else

using LineTag = hn::CappedTag<std::uint8_t, kTransposeTile>;
using LinePart = hn::Vec<LineTag>;
inline constexpr std::int64_t kPart = static_cast<std::int64_t>(hn::MaxLanes(LineTag())), kSide = 16;

/// 16 rows -> in each block of vector j: the block's column j.
HWY_INLINE void TurnBlocks(LinePart (&a)[16]) {
  const LineTag d;
  LinePart b[16];
#pragma GCC unroll 2
  for (int round = 0; round < 2; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + 8]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + 8]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = hn::InterleaveLower(d, b[i], b[i + 8]);
      a[2 * i + 1] = hn::InterleaveUpper(d, b[i], b[i + 8]);
    }
  }
}

/// Blocks `stride` apart as one vector.
template <class D>
HWY_INLINE hn::Vec<D> GatherBlocks(D d, const std::uint8_t* p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(d) <= 16) {
    return hn::Load(d, p);
  } else {
    const hn::Half<D> half;
    const std::uint8_t* upper = p + static_cast<std::int64_t>(hn::MaxLanes(half)) / kSide * stride;
    return hn::Combine(d, GatherBlocks(half, upper, stride), GatherBlocks(half, p, stride));
  }
}

/// 16 rows of one part of a line -> 16 vectors of `turned`, and the lines of the rows at next_in to the first cache.
HWY_INLINE void TurnRows(const std::uint8_t* HWY_RESTRICT in, const std::uint8_t* next_in, std::int64_t in_stride,
                         std::uint8_t* HWY_RESTRICT turned) {
  const LineTag d;
  LinePart a[kSide];
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i, in += in_stride, next_in += in_stride) {
    a[i] = hn::LoadU(d, in);
    __builtin_prefetch(next_in, 0, 3);
  }
  TurnBlocks(a);
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) hn::Store(a[i], d, turned + i * kPart);
}

/// One tile; fetches the lines of the tile at next_in, and those at next_out to be written.
template <bool kStream>
HWY_INLINE void TransposeTile(const std::uint8_t* in, const std::uint8_t* next_in, std::int64_t in_stride,
                              std::uint8_t* out, std::uint8_t* next_out, std::int64_t out_stride) {
  const LineTag d;
  constexpr std::int64_t kTile = kTransposeTile;
  HWY_ALIGN std::uint8_t turned[kTile * kTile];  // [kTile / kPart][kTile / 16][16][kPart]
  for (std::int64_t col = 0; col < kTile; col += kPart)
    for (std::int64_t row = 0; row < kTile; row += kSide)
      TurnRows(in + row * in_stride + col, next_in + row * in_stride + col, in_stride,
               turned + col * kTile + row * kPart);
  for (std::int64_t block = 0; block < kTile; block += kSide) {
    const std::uint8_t* from = turned + block / kPart * kPart * kTile + block % kPart;
#pragma GCC unroll 4
    for (int j = 0; j < kSide; ++j, from += kPart, out += out_stride, next_out += out_stride) {
      for (std::int64_t row = 0; row < kTile; row += kPart) {
        const auto part = GatherBlocks(d, from + row * kPart, kSide * kPart);
        if constexpr (kStream)
          hn::Stream(part, d, out + row);
        else
          hn::StoreU(part, d, out + row);
      }
      if constexpr (!kStream) __builtin_prefetch(next_out, 1, 3);
    }
  }
}

template <bool kStream>
HWY_INLINE void TransposeTiles(const TransposeRun& run) {
  const std::uint8_t* in = run.in;
  std::uint8_t* out = run.out;
  const std::int64_t in_stride = run.in_stride, out_stride = run.out_stride;
  for (std::int64_t left = run.tiles; left > 0; --left) {
    const std::uint8_t* next_in = left > 1 ? in + kTransposeTile * in_stride : in;
    std::uint8_t* next_out = left > 1 ? out + kTransposeTile : out;
    TransposeTile<kStream>(in, next_in, in_stride, out, next_out, out_stride);
    in = next_in, out = next_out;
  }
}

inline void Transpose(const TransposeRun& run) {
  run.stream ? TransposeTiles<true>(run) : TransposeTiles<false>(run);
  if (run.stream) hwy::FlushStream();
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

constexpr TransposeKernel kScalar = HWY_STATIC_DISPATCH(Transpose), kAvx2 = FP8_AT_AVX2(Transpose),
                          kAvx512 = FP8_AT_AVX512(Transpose);

}  // namespace

TransposeKernel transpose_kernel_in_force() { return of_level(kScalar, kAvx2, kAvx512); }

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
  if (in == nullptr || out == nullptr)
    throw std::invalid_argument("transpose_bytes: in and out must not be null for a non-empty matrix");
  const bool stream = streams_transpose(out, rows, cols);
  const TransposeKernel kernel = transpose_kernel_in_force();
  const std::int64_t across = (cols + kBlock - 1) / kBlock, down = (rows + kBlock - 1) / kBlock;
  parallel_each(across * down, 1, [&](std::int64_t block) {
    const std::int64_t r = block / across * kBlock, c = block % across * kBlock;
    const TransposeRun run{.in = in + r * in_stride + c,
                           .in_stride = in_stride,
                           .out = out + c * rows + r,
                           .out_stride = rows,
                           .tiles = 0,
                           .stream = stream};
    transpose_block(kernel, run, std::min(kBlock, rows - r), std::min(kBlock, cols - c));
  });
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
