// SPDX-License-Identifier: Apache-2.0
// The sums of gemv() in Highway's portable vectors, compiled once per target; threads and rounding around them.
#include <algorithm>
#include <cstring>

#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/gemm/gemv.cpp"
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using Vec = hn::Vec<F32>;
inline constexpr int kVectors = static_cast<int>(16 / hn::MaxLanes(F32()));  ///< of each of a block's halves

/// Two bf16 a lane, the first in its lower half.
HWY_INLINE hn::Vec<U32> LoadPairs(const std::uint16_t* p) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return hn::Set(U32(), pair);
#else
  return hn::BitCast(U32(), hn::LoadU(hn::Repartition<std::uint16_t, U32>(), p));
#endif
}

HWY_INLINE Vec Even(hn::Vec<U32> pairs) { return hn::BitCast(F32(), hn::ShiftLeft<16>(pairs)); }
HWY_INLINE Vec Odd(hn::Vec<U32> pairs) { return hn::BitCast(F32(), hn::And(pairs, hn::Set(U32(), 0xFFFF0000u))); }

/// Fetches ahead. Several rows that are read alternately (range.streams) are each fetched to the first cache 2 KiB
/// before they are read; a row alone 1 KiB before, to the second cache, on into the next row: the CPU by itself stops
/// at each page.
template <int R>
HWY_INLINE void FetchAhead(const std::uint16_t* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  __builtin_prefetch(reinterpret_cast<const char*>(at + (R > 1 ? 2048 : 1024)), 0, R > 1 ? 3 : 2);
}

/// The sums of M rows of x with one row of w.
template <int M>
struct GemvTile {
  Vec sum[M][2 * kVectors];

  HWY_INLINE GemvTile() {
    for (auto& of_row : sum)
      for (Vec& one : of_row) one = hn::Zero(F32());
  }

  /// One block of w, and of M rows of x that are x_stride apart.
  HWY_INLINE void Add(const std::uint16_t* HWY_RESTRICT w, const std::uint16_t* HWY_RESTRICT x, std::int64_t x_stride) {
    constexpr int kLanes = 16 / kVectors;
    for (int v = 0; v < kVectors; ++v) {
      const auto pairs = LoadPairs(w + 2 * v * kLanes);
      const Vec even = Even(pairs), odd = Odd(pairs);
      for (int i = 0; i < M; ++i) {
        const auto of_row = LoadPairs(x + i * x_stride + 2 * v * kLanes);
        sum[i][v] = hn::MulAdd(even, Even(of_row), sum[i][v]);
        sum[i][kVectors + v] = hn::MulAdd(odd, Odd(of_row), sum[i][kVectors + v]);
      }
    }
  }

  HWY_INLINE float Total(int i) const {
    HWY_ALIGN float s[16];
    for (int v = 0; v < kVectors; ++v)
      hn::Store(hn::Add(sum[i][v], sum[i][kVectors + v]), F32(), s + v * (16 / kVectors));
    for (int half = 8; half != 0; half /= 2)
      for (int j = 0; j < half; ++j) s[j] += s[j + half];
    return s[0];
  }
};

/// M rows of x, and what a block at their end takes, filled up with zeros.
template <int M>
struct GemvRowsOfX {
  const std::uint16_t* HWY_RESTRICT x;
  std::int64_t stride, whole, rest;
  std::uint16_t last[M * kGemvBlock] = {};

  HWY_INLINE explicit GemvRowsOfX(const GemvRange& range)
      : x(range.a), stride(range.a_stride), whole(range.k / kGemvBlock), rest(range.k % kGemvBlock) {
    for (int i = 0; i < M && rest > 0; ++i)
      std::memcpy(last + i * kGemvBlock, x + i * stride + whole * kGemvBlock, static_cast<std::size_t>(rest) * 2);
  }
};

/// R rows of w, `apart` rows from one to the next, with the M rows of x.
template <int M, int R>
HWY_INLINE void GemvRows(const GemvRange& range, const GemvRowsOfX<M>& x, std::int64_t row, std::int64_t apart) {
  const std::uint16_t* HWY_RESTRICT w = range.w + row * range.w_stride;
  const std::int64_t step = apart * range.w_stride;
  GemvTile<M> tiles[R];
  for (std::int64_t k = 0; k < x.whole * kGemvBlock; k += kGemvBlock) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      FetchAhead<R>(w + r * step + k);
      tiles[r].Add(w + r * step + k, x.x + k, x.stride);
    }
  }
  for (int r = 0; r < R; ++r) {
    if (x.rest > 0) {
      std::uint16_t last[kGemvBlock] = {};
      std::memcpy(last, w + r * step + x.whole * kGemvBlock, static_cast<std::size_t>(x.rest) * 2);
      tiles[r].Add(last, x.last, kGemvBlock);
    }
    for (int i = 0; i < M; ++i) range.sums[i * range.sums_stride + row + r * apart] = tiles[r].Total(i);
  }
}

/// Every row of w with the M rows of x.
template <int M>
HWY_INLINE void GemvAllRows(const GemvRange& range) {
  const GemvRowsOfX<M> x(range);
  std::int64_t row = 0;
  if constexpr (kVectors == 1) {  // fewer registers would not hold the sums of four
    constexpr int kStreams = 4;
    const std::int64_t apart = range.streams ? range.rows / kStreams : 0;
    for (; row < apart; ++row) GemvRows<M, kStreams>(range, x, row, apart);
    row = kStreams * apart;
  }
  for (; row < range.rows; ++row) GemvRows<M, 1>(range, x, row, 0);
}

inline void Gemv(const GemvRange& range) { range.m == 1 ? GemvAllRows<1>(range) : GemvAllRows<2>(range); }

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

/// x86-64's baseline has no fused multiply-add.
void gemv_scalar(const GemvRange& range) {
  for (int i = 0; i < range.m; ++i) {
    for (std::int64_t row = 0; row < range.rows; ++row) {
      float sum[2][16] = {};
      for (std::int64_t k = 0; k < range.k; ++k) {
        const std::int64_t j = k % kGemvBlock;
        float& of = sum[j % 2][j / 2];
        of = std::fma(bf16_to_f32(range.w[row * range.w_stride + k]), bf16_to_f32(range.a[i * range.a_stride + k]), of);
      }
      for (int j = 0; j < 16; ++j) sum[0][j] += sum[1][j];
      for (int half = 8; half != 0; half /= 2)
        for (int j = 0; j < half; ++j) sum[0][j] += sum[0][j + half];
      range.sums[i * range.sums_stride + row] = sum[0][0];
    }
  }
}

constexpr GemvKernel kScalar = gemv_scalar, kAvx2 = FP8_AT_AVX2(Gemv), kAvx512 = FP8_AT_AVX512(Gemv);

GemvKernel gemv_kernel_in_force() { return of_level(kScalar, kAvx2, kAvx512); }

constexpr std::int64_t kPartRows = 64;            // rows of one w whose sums wait for their rounding
constexpr std::int64_t kGrainBytes = 256 * 1024;  // of w per range

void check(const GemvArgs& args) {
  if (args.m > kMostGemvRows)
    io::fail<std::invalid_argument>("gemv: m is {}, must be at most {}", args.m, kMostGemvRows);
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
#endif  // HWY_ONCE
