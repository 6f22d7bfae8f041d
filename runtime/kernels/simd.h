// SPDX-License-Identifier: Apache-2.0
// Which instruction set the kernels run with. Chosen once from the CPU (and what the OS saves and allows), lowered by
// the environment variable FP8_SIMD=scalar|avx2|avx512|avx512bf16|amx (an unknown or unsupported word is an error
// naming the choices).
#pragma once
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::kernels {

using fp8::name_of;

/// Each level includes those before it. avx2: + FMA, F16C. avx512: F, BW, DQ, VL. avx512bf16: + VBMI, BF16. amx: +
/// AMX's TILE, BF16; only gemm.h has kernels of its own there, all else has those of avx512bf16.
enum class SimdLevel { scalar, avx2, avx512, avx512bf16, amx };
constexpr auto names_of(SimdLevel) {
  return names_up_to<SimdLevel::amx>("scalar", "avx2", "avx512", "avx512bf16", "amx");
}

/// The best level this machine runs.
SimdLevel best_simd_level();

/// The best level that ScopedSimdLevel takes: best_simd_level(), but amx instead of avx512bf16, where tiles are
/// computed without the hardware, to the bits of Intel's manual (software_tiles.h).
SimdLevel best_scoped_level();

/// The level in force: best_simd_level(), or FP8_SIMD's, or that of the innermost ScopedSimdLevel.
SimdLevel simd_level();

/// True if vectors of 512 bits are computed as a whole: not by AMD's before Zen 5, which take two halves.
bool wide_datapath();

/// Bytes of output from which a kernel stores around the caches: half of the last-level cache, at most 16 MiB. A
/// smaller result is likely to be read from the cache soon.
std::int64_t streaming_bytes();

/// Forces a level (<= best_scoped_level(), else std::invalid_argument) for the whole process while it lives. For tests
/// and benchmarks.
class ScopedSimdLevel {
 public:
  explicit ScopedSimdLevel(SimdLevel level);
  ~ScopedSimdLevel();
  ScopedSimdLevel& operator=(ScopedSimdLevel&&) = delete;

 private:
  int previous_;
};

}  // namespace fp8::kernels
