// SPDX-License-Identifier: Apache-2.0
// The limits of this machine, to compare the kernels' numbers with:
//
//   read 4K, 2M          GB/s of a sum over 256 MiB in such pages (the device's large tensors lie in huge ones);
//                        the fastest of: one stream or four, fetched ahead by the CPU alone or by the program too
//   dot bf16, fma f32    GMAC/s of vdpbf16ps and of fused multiply-adds from registers (x86-64 with AVX-512)
//   tiles bf16           GMAC/s of tdpbf16ps, four sums at a time, whose operands, numbers of random bits (zeros would
//                        be multiplied at a higher clock), come from the second cache; and with none of them loaded
//   random bits          time of the bits that stochastic rounding of 64 Ki elements takes (kernels/cast_kernels.h),
//                        made and added up in registers: a cast with them takes that much beside its rounding
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/tools/benchmarks/bench.h"
#if defined(__x86_64__)
#include "fp8/runtime/kernels/gemm/software_tiles.h"
#endif

namespace fp8::bench::limits_cases {
namespace {

constexpr std::int64_t kBytes = std::int64_t{256} << 20, kHugePage = std::int64_t{2} << 20, kLine = 64;

/// Untouched memory in pages of one kind, as far as the kernel gives them.
class Pages {
 public:
  explicit Pages(bool huge) {
    base_ = mmap(nullptr, kBytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(base_ != MAP_FAILED, "limits: 256 MiB of memory");
    const auto address = reinterpret_cast<std::uintptr_t>(base_);
    data_ = reinterpret_cast<std::uint64_t*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(data_, kBytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (std::int64_t i = 0; i < kBytes / 8; ++i) data_[i] = static_cast<std::uint64_t>(i);
  }
  ~Pages() { munmap(base_, kBytes + kHugePage); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  const std::uint64_t* data() const { return data_; }

 private:
  void* base_;
  std::uint64_t* data_;
};

/// kStreams parts of [p, p + bytes), a line of each in turn, kAhead bytes of each fetched ahead to a cache.
template <int kStreams, int kAhead, int kCache = 2>
std::uint64_t sum(const std::uint64_t* p, std::int64_t bytes) {
  constexpr std::int64_t kWords = kLine / 8;
  const std::int64_t part = bytes / kStreams / 8;
  std::array<std::uint64_t, kWords> sums{};
  for (std::int64_t i = 0; i < part; i += kWords) {
    for (int s = 0; s < kStreams; ++s) {
      const std::uint64_t* line = p + s * part + i;
      if constexpr (kAhead > 0) __builtin_prefetch(reinterpret_cast<const char*>(line) + kAhead, 0, 4 - kCache);
      for (std::size_t w = 0; w < kWords; ++w) sums[w] += line[w];
    }
  }
  std::uint64_t total = 0;
  for (const std::uint64_t of : sums) total += of;
  return total;
}

void bench_reads(Runner& runner, const char* name, bool huge) {
  if (!runner.wants(name)) return;
  const Pages pages(huge);
  volatile std::uint64_t seen = 0;
  const auto read = [&](std::uint64_t (*sum_of)(const std::uint64_t*, std::int64_t)) {
    const std::int64_t part = kBytes / runner.options().threads / (4 * kLine) * (4 * kLine);
    kernels::parallel_for(runner.options().threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) seen = sum_of(pages.data() + i * part / 8, part);
    });
  };
  const auto times = runner.medians({
      [&] { read(sum<1, 0>); },
      [&] { read(sum<1, 2048>); },
      [&] { read(sum<1, 4096>); },
      [&] { read(sum<4, 2048>); },
      [&] { read(sum<4, 2048, 1>); },
  });
  constexpr auto kAll = static_cast<double>(kBytes);
  runner.print({.name = name,
                .ns = *std::min_element(times.begin(), times.end()),
                .bytes = kAll,
                .extra = {{"one_stream_gbps", kAll / times[0]},
                          {"fetched_2k_gbps", kAll / times[1]},
                          {"fetched_4k_gbps", kAll / times[2]},
                          {"four_streams_gbps", kAll / times[3]},
                          {"four_to_first_gbps", kAll / times[4]}}});
}

#if defined(__x86_64__)
constexpr std::int64_t kLoops = 100000, kPerLoop = 16, kLanes = 16;

// Sixteen independent sums hide the latency of one.
#define FP8_SIXTEEN(product)                                                                                  \
  product "%%zmm0\n" product "%%zmm1\n" product "%%zmm2\n" product "%%zmm3\n" product "%%zmm4\n" product      \
          "%%zmm5\n" product "%%zmm6\n" product "%%zmm7\n" product "%%zmm8\n" product "%%zmm9\n" product      \
          "%%zmm10\n" product "%%zmm11\n" product "%%zmm12\n" product "%%zmm13\n" product "%%zmm14\n" product \
          "%%zmm15\n"
#define FP8_LOOP(product)                                                                                       \
  asm volatile(                                                                                                 \
      "vzeroall\nvpxord %%zmm30, %%zmm30, %%zmm30\nvpxord %%zmm31, %%zmm31, %%zmm31\n"                          \
      "1:\n" FP8_SIXTEEN(product) "dec %0\njnz 1b\nvzeroupper\n"                                                \
      : "+r"(loops)                                                                                             \
      :                                                                                                         \
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
        "xmm12", "xmm13", "xmm14", "xmm15")

void dot_loop() {
  std::int64_t loops = kLoops;
  FP8_LOOP("vdpbf16ps %%zmm31, %%zmm30, ");
}
void fma_loop() {
  std::int64_t loops = kLoops;
  FP8_LOOP("vfmadd231ps %%zmm31, %%zmm30, ");
}
#undef FP8_LOOP
#undef FP8_SIXTEEN

constexpr std::uint32_t kNumbers = 64 << 10;

__attribute__((target("avx512f"))) std::uint32_t random_bits(std::uint32_t key0, std::uint32_t key1) {
  using Lanes = std::uint32_t __attribute__((vector_size(64)));
  Lanes index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, total = {};
  for (std::uint32_t i = 0; i < kNumbers; i += kLanes, index += static_cast<std::uint32_t>(kLanes)) {
    Lanes h = index ^ index >> 16 ^ (key0 ^ key0 >> 16);
    h *= 0x7feb352du;
    h ^= h >> 15 ^ (key1 ^ key1 >> 15);
    h *= 0x846ca68bu;
    total += h ^ h >> 16;
  }
  std::uint32_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += total[lane];
  return sum;
}

void bench_random(Runner& runner) {
  if (!runner.wants("random bits")) return;
  volatile std::uint32_t key = 1, seen = 0;
  const auto times = runner.medians({[&] { seen = random_bits(key, key); }});
  runner.print({.name = "random bits", .ns = times[0], .extra = {{"numbers_per_ns", kNumbers / times[0]}}});
}

constexpr std::int64_t kTileBytes = 1024, kTileMacs = 16 * 16 * 32, kTilePasses = 8;
constexpr std::int64_t kTileOperands = std::int64_t{1} << 20;  // bytes: half of a second cache

/// bf16 of random signs and fractions, from 1/2 to 2.
struct TileOperands {
  alignas(64) std::array<std::uint16_t, kTileOperands / 2> numbers;
  TileOperands() {
    std::mt19937 random(1);
    for (auto& number : numbers) number = static_cast<std::uint16_t>(0x3F00 | (random() >> 16 & 0x80FF));
  }
};

/// A and B of each four products are loaded, or only the first.
template <bool kLoads>
void tile_loop(const std::uint16_t* operands) {
  kernels::HardwareTiles tiles(kernels::config_of(16));
  const char* first = reinterpret_cast<const char*>(operands);
  const auto load = [&](const char* at) {
    tiles.load<4>(at, 64), tiles.load<5>(at + kTileBytes, 64);
    tiles.load<6>(at + 2 * kTileBytes, 64), tiles.load<7>(at + 3 * kTileBytes, 64);
  };
  load(first);
  tiles.zero<0>(), tiles.zero<1>(), tiles.zero<2>(), tiles.zero<3>();
  for (std::int64_t pass = 0; pass < kTilePasses; ++pass) {
    for (const char* at = first; at < first + kTileOperands; at += 4 * kTileBytes) {
      if constexpr (kLoads) load(at);
      tiles.dot<0, 4, 6>(), tiles.dot<1, 4, 7>(), tiles.dot<2, 5, 6>(), tiles.dot<3, 5, 7>();
    }
  }
}

void bench_tiles(Runner& runner) {
  if (!runner.wants("tiles bf16")) return;
  const int threads = runner.options().threads;
  const std::vector<TileOperands> operands(static_cast<std::size_t>(threads));
  const auto multiply = [&](void (*loop)(const std::uint16_t*)) {
    kernels::parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) loop(operands[static_cast<std::size_t>(i)].numbers.data());
    });
  };
  const auto times = runner.medians({[&] { multiply(tile_loop<true>); }, [&] { multiply(tile_loop<false>); }});
  const auto macs = static_cast<double>(kTilePasses * kTileOperands / kTileBytes * kTileMacs * threads);
  runner.print(
      {.name = "tiles bf16", .ns = times[0], .macs = macs, .extra = {{"without_loads_gmacs", macs / times[1]}}});
}

void bench_products(Runner& runner, const char* name, void (*loop)(), std::int64_t per_lane) {
  if (!runner.wants(name)) return;
  const auto times = runner.medians({[&] {
    kernels::parallel_for(runner.options().threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) loop();
    });
  }});
  runner.print({.name = name,
                .ns = times[0],
                .macs = static_cast<double>(kLoops * kPerLoop * kLanes * per_lane * runner.options().threads)});
}
#endif

void run(Runner& runner) {
  bench_reads(runner, "read 4K", false);
  bench_reads(runner, "read 2M", true);
#if defined(__x86_64__)
  const auto level = kernels::simd_level();
  if (level >= kernels::SimdLevel::amx && kernels::best_simd_level() >= kernels::SimdLevel::amx) bench_tiles(runner);
  if (level >= kernels::SimdLevel::avx512bf16) bench_products(runner, "dot bf16", dot_loop, 2);
  if (level >= kernels::SimdLevel::avx512) {
    bench_products(runner, "fma f32", fma_loop, 1);
    bench_random(runner);
  }
#endif
}

const Registration registration("limits", run);

}  // namespace
}  // namespace fp8::bench::limits_cases
