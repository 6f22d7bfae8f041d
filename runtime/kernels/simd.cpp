// SPDX-License-Identifier: Apache-2.0
// Level detection. __builtin_cpu_supports also checks that the OS saves the registers (XCR0), so a level reported here
// can be executed. The choice is made once; ScopedSimdLevel overrides it for tests and benchmarks.
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/kernels/simd.h"

namespace fp8::kernels {
namespace {

#if defined(__x86_64__)
/// clang 16's __builtin_cpu_supports does not know "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

/// AMX-TILE and AMX-BF16 of CPUID leaf 7, both parts of the tiles' state in XCR0 (bits 17 and 18), and the permission
/// that Linux wants a process to ask for before its first tile instruction; its threads have it too.
bool has_amx() {
#if defined(SYS_arch_prctl)
  constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22, kTileState = 3u << 17;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTile) == 0 || (edx & kBf16) == 0) return false;
  unsigned saved = 0, upper = 0;
  asm volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
  return (saved & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

/// BMI and AVX512CD are what Highway's targets of the same names may use besides; every CPU with the rest has them.
SimdLevel detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))) {
    return SimdLevel::scalar;
  }
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))) {
    return SimdLevel::avx2;
  }
  if (!(__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16"))) return SimdLevel::avx512;
  return has_amx() ? SimdLevel::amx : SimdLevel::avx512bf16;
#else
  return SimdLevel::scalar;
#endif
}

std::string allowed_levels(SimdLevel best) {
  auto levels = choice_of<SimdLevel>();
  std::erase_if(levels, [best](const auto& level) { return level.value > best; });
  return allowed_names(levels);
}

SimdLevel from_environment() {
  const char* word = io::environment_value("FP8_SIMD");
  if (word == nullptr) return best_simd_level();
  const auto level = parse_enum<SimdLevel>(word);
  if (level && *level <= best_simd_level()) return *level;
  io::fail<std::invalid_argument>("FP8_SIMD: found \"{}\", this machine allows {}", word,
                                  allowed_levels(best_simd_level()));
}

/// -1 while no ScopedSimdLevel lives.
std::atomic<int> forced_level{-1};

[[maybe_unused]] const io::FlagOwner g_level_flag("FP8_SIMD", []() -> std::optional<io::FlagSetting> {
  const int forced = forced_level.load(std::memory_order_relaxed);
  if (forced < 0) return std::nullopt;
  return io::FlagSetting{name_of(static_cast<SimdLevel>(forced)), io::FlagSource::call, "ScopedSimdLevel"};
});

}  // namespace

SimdLevel best_simd_level() {
  static const SimdLevel level = detect();
  return level;
}

SimdLevel best_scoped_level() {
  return best_simd_level() == SimdLevel::avx512bf16 ? SimdLevel::amx : best_simd_level();
}

SimdLevel simd_level() {
  const int forced = forced_level.load(std::memory_order_relaxed);
  if (forced >= 0) return static_cast<SimdLevel>(forced);
  static const SimdLevel level = from_environment();  // a throw leaves it unset: the next call reports the error again
  return level;
}

bool wide_datapath() {
#if defined(__x86_64__)
  static const bool wide = [] {
    constexpr unsigned kPerformance = 0x8000001A, kFp512 = 1u << 3, kZen5 = 0x1A;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    __get_cpuid(0, &eax, &ebx, &ecx, &edx);
    if (ebx != signature_AMD_ebx) return true;
    if (__get_cpuid(kPerformance, &eax, &ebx, &ecx, &edx) != 0 && (eax & kFp512) != 0) return true;
    __get_cpuid(1, &eax, &ebx, &ecx, &edx);  // a virtual machine may hide that bit, but not the family
    return ((eax >> 8) & 0xF) + ((eax >> 20) & 0xFF) >= kZen5;
  }();
  return wide;
#else
  return false;
#endif
}

std::int64_t streaming_bytes() {
  static const std::int64_t bytes = [] {
    long cache = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    constexpr long kMost = 32L << 20;  // a virtual machine may report the cache of the whole socket
    return std::int64_t{cache > 0 ? std::min(cache, kMost) : kMost} / 2;
  }();
  return bytes;
}

ScopedSimdLevel::ScopedSimdLevel(SimdLevel level) {
  if (level < SimdLevel::scalar || level > best_scoped_level())
    io::fail<std::invalid_argument>("ScopedSimdLevel: found {}, this machine allows {}", name_of(level),
                                    allowed_levels(best_scoped_level()));
  previous_ = forced_level.exchange(static_cast<int>(level));
}

ScopedSimdLevel::~ScopedSimdLevel() { forced_level.store(previous_); }

}  // namespace fp8::kernels
