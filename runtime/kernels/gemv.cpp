// SPDX-License-Identifier: Apache-2.0
// Threads and rounding around the sums of gemv_simd.cpp.
#include "fp8/runtime/kernels/gemv.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemv_kernels.h"
#include "fp8/runtime/kernels/scratch.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kPartRows = 64;            // rows of w whose sums wait for their rounding
constexpr std::int64_t kGrainBytes = 256 * 1024;  // of w per range

void check(const GemvArgs& args) {
  if (args.m > kMostGemvRows)
    throw std::invalid_argument("gemv: m is " + std::to_string(args.m) + ", must be at most " +
                                std::to_string(kMostGemvRows));
  check_matrix("gemv: a", args.m, args.k, args.a_stride);
  check_matrix("gemv: w", args.n, args.k, args.w_stride);
  check_matrix("gemv: y", args.m, args.n, args.y_stride);
  if (args.m == 0 || args.n == 0) return;
  if (args.y == nullptr) throw std::invalid_argument("gemv: y must not be null");
  if (args.k > 0 && (args.a == nullptr || args.w == nullptr))
    throw std::invalid_argument("gemv: a and w must not be null");
}

struct Rows {
  const std::uint16_t* first;
  std::int64_t stride;
};

/// a's rows, or copies of them, that begin on cache lines: others would take two loads for one.
Rows aligned_rows(const GemvArgs& args, Scratch& scratch) {
  constexpr std::int64_t kLine = 64, kElements = kLine / 2;
  const bool aligned = reinterpret_cast<std::uintptr_t>(args.a) % kLine == 0;
  if (args.k == 0 || (aligned && (args.m == 1 || args.a_stride % kElements == 0))) return {args.a, args.a_stride};
  const std::int64_t stride = (args.k + kElements - 1) / kElements * kElements;
  auto* copies = reinterpret_cast<std::uint16_t*>(scratch.get(args.m * stride * 2));
  for (std::int64_t i = 0; i < args.m; ++i) std::copy_n(args.a + i * args.a_stride, args.k, copies + i * stride);
  return {copies, stride};
}

}  // namespace

void gemv(const GemvArgs& args) {
  check(args);
  if (args.m == 0 || args.n == 0) return;
  thread_local Scratch scratch;
  const Rows a = aligned_rows(args, scratch);
  const GemvKernel kernel = gemv_kernel_in_force();
  const std::int64_t row_bytes = std::max<std::int64_t>(1, args.k * static_cast<std::int64_t>(sizeof(*args.w)));
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainBytes / row_bytes / kPartRows) * kPartRows;
  parallel_for(args.n, grain, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, kMostGemvRows * kPartRows> sums;
    for (std::int64_t row = begin; row < end; row += kPartRows) {
      const std::int64_t rows = std::min(kPartRows, end - row);
      kernel({a.first, a.stride, static_cast<int>(args.m), args.k, args.w + row * args.w_stride, args.w_stride, rows,
              sums.data(), kPartRows});
      for (std::int64_t i = 0; i < args.m; ++i) {
        for (std::int64_t r = 0; r < rows; ++r) {
          float sum = sums[static_cast<std::size_t>(i * kPartRows + r)];
          if (args.bias != nullptr) sum += bf16_to_f32(args.bias[row + r]);
          args.y[i * args.y_stride + row + r] = f32_to_bf16(sum);
        }
      }
    }
  });
}

}  // namespace fp8::kernels
