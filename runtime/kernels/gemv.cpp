// SPDX-License-Identifier: Apache-2.0
// Threads and rounding around the sums of gemv_simd.cpp.
#include "fp8/runtime/kernels/gemv.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemv_kernels.h"
#include "fp8/runtime/kernels/scratch.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kPartRows = 64;            // rows of one w whose sums wait for their rounding
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

void check_together(const GemvArgs& args, const GemvArgs& first) {
  if (args.m != first.m || args.k != first.k || args.a != first.a || (args.m > 1 && args.a_stride != first.a_stride))
    throw std::invalid_argument("gemv: m, k and a must be those of the first product");
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

std::int64_t parts_of(const GemvArgs& args) { return (args.n + kPartRows - 1) / kPartRows; }

void run_part(const GemvArgs& args, const Rows& a, GemvKernel kernel, std::int64_t part) {
  const std::int64_t row = part * kPartRows, rows = std::min(kPartRows, args.n - row);
  std::array<float, kMostGemvRows * kPartRows> sums;
  kernel({a.first, a.stride, static_cast<int>(args.m), args.k, args.w + row * args.w_stride, args.w_stride, rows,
          sums.data(), kPartRows, simd_level() >= SimdLevel::amx});
  for (std::int64_t i = 0; i < args.m; ++i) {
    for (std::int64_t r = 0; r < rows; ++r) {
      float sum = sums[static_cast<std::size_t>(i * kPartRows + r)];
      if (args.bias != nullptr) sum += bf16_to_f32(args.bias[row + r]);
      args.y[i * args.y_stride + row + r] = f32_to_bf16(sum);
    }
  }
}

}  // namespace

void gemv(const GemvArgs& args) { gemv_together({&args, 1}); }

void gemv_together(std::span<const GemvArgs> products) {
  std::int64_t parts = 0;
  for (const GemvArgs& args : products) {
    check(args);
    check_together(args, products.front());
    parts += parts_of(args);
  }
  if (parts == 0 || products.front().m == 0) return;
  thread_local Scratch scratch;
  const Rows a = aligned_rows(products.front(), scratch);
  const GemvKernel kernel = gemv_kernel_in_force();
  const std::int64_t part_bytes = kPartRows * 2 * std::max<std::int64_t>(1, products.front().k);
  const auto run_parts = [&](std::int64_t begin, std::int64_t end) {
    const GemvArgs* args = products.data();
    std::int64_t first = 0;  // part of *args
    for (std::int64_t part = begin; part < end; ++part) {
      while (part - first >= parts_of(*args)) first += parts_of(*args++);
      run_part(*args, a, kernel, part - first);
    }
  };
  parallel_for(parts, std::max<std::int64_t>(1, kGrainBytes / part_bytes), std::ref(run_parts));
}

}  // namespace fp8::kernels
