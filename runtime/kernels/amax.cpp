// SPDX-License-Identifier: Apache-2.0
// Threads around the integer maxima of amax_simd.cpp. A maximum has no order, so the split is free.
#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "fp8/runtime/kernels/amax_kernels.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kGrain = 256 * 1024;  // elements per range: some 5 us from the cache

void check(const char* what, const void* x, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
           const void* out) {
  check_matrix(what, rows, cols, row_stride);
  if (rows > 0 && cols > 0 && (x == nullptr || out == nullptr)) {
    throw std::invalid_argument(std::string(what) + ": x and out must not be null for a non-empty matrix");
  }
}

const char* element(const void* x, FloatType type, std::int64_t i) {
  return static_cast<const char*>(x) + i * size_of(type);
}

/// Column maxima of rows [begin, end) for columns [col, col + best.size()), as magnitude bits of T.
template <class T>
void columns(void (*into)(const T*, std::int64_t, T*), const T* x, std::int64_t begin, std::int64_t end,
             std::int64_t row_stride, std::int64_t col, std::vector<T>& best) {
  for (std::int64_t r = begin; r < end; ++r) {
    into(x + r * row_stride + col, static_cast<std::int64_t>(best.size()), best.data());
  }
}

/// The matrix is cut into tiles of at most 4096 columns (16 KiB of maxima stay in L1) and about kGrain elements.
template <class T, class Widen>
void amax_cols_of(void (*into)(const T*, std::int64_t, T*), const T* x, std::int64_t rows, std::int64_t cols,
                  std::int64_t row_stride, float* out, Widen widen) {
  constexpr std::int64_t kTileCols = 4096;
  const std::int64_t col_tiles = (cols + kTileCols - 1) / kTileCols;
  const std::int64_t tile_rows = std::max<std::int64_t>(1, kGrain / std::min(cols, kTileCols));
  const std::int64_t row_tiles = (rows + tile_rows - 1) / tile_rows;
  std::vector<T> best(static_cast<std::size_t>(cols), T{0});
  std::mutex mutex;
  parallel_for(col_tiles * row_tiles, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t begin = tile / col_tiles * tile_rows, col = tile % col_tiles * kTileCols;
      std::vector<T> mine(static_cast<std::size_t>(std::min(kTileCols, cols - col)), T{0});
      columns(into, x, begin, std::min(rows, begin + tile_rows), row_stride, col, mine);
      std::lock_guard lock(mutex);
      into(mine.data(), static_cast<std::int64_t>(mine.size()),
           best.data() + col);  // magnitudes already: unchanged by |.|
    }
  });
  for (std::int64_t c = 0; c < cols; ++c) out[c] = amax_value(widen(best[static_cast<std::size_t>(c)]));
}

}  // namespace

float amax(const void* x, FloatType type, std::int64_t n) {
  float unused = 0;
  check("amax", x, 1, n, n, &unused);
  const AmaxKernels& kernels = amax_kernels_in_force();
  AmaxBits best;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    best.add(amax_of_run(kernels, element(x, type, begin), type, end - begin));
  });
  return amax_value(best.bits());
}

void amax_rows(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out) {
  check("amax_rows", x, rows, cols, row_stride, out);
  if (rows > 0 && out == nullptr) throw std::invalid_argument("amax_rows: out must not be null");
  const AmaxKernels& kernels = amax_kernels_in_force();
  if (rows < num_threads() && cols > kGrain) {
    for (std::int64_t r = 0; r < rows; ++r) out[r] = amax(element(x, type, r * row_stride), type, cols);
    return;
  }
  parallel_for(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, cols)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) {
                   out[r] = amax_value(amax_of_run(kernels, element(x, type, r * row_stride), type, cols));
                 }
               });
}

void amax_cols(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
               float* out) {
  check("amax_cols", x, rows, cols, row_stride, out);
  if (cols == 0) return;
  if (out == nullptr) throw std::invalid_argument("amax_cols: out must not be null");
  const AmaxKernels& kernels = amax_kernels_in_force();
  if (type == FloatType::F32) {
    amax_cols_of(kernels.into_32, static_cast<const std::uint32_t*>(x), rows, cols, row_stride, out,
                 [](std::uint32_t bits) { return bits; });
  } else {
    amax_cols_of(kernels.into_16, static_cast<const std::uint16_t*>(x), rows, cols, row_stride, out,
                 [type](std::uint16_t bits) { return widen_bits(bits, type); });
  }
}

}  // namespace fp8::kernels
