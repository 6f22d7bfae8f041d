// SPDX-License-Identifier: Apache-2.0
// The two 8-bit floating point formats and what each dialect makes of them. No torch here.
//
//   E4M3   s eeee mmm   bias 7    min normal 2^-6    min subnormal 2^-9    max 448 (ocp, gaudi3) or 240 (gaudi2)
//   E5M2   s eeeee mm   bias 15   min normal 2^-14   min subnormal 2^-16   max 57344
//
// ocp / gaudi3 E4M3: S.1111.111 is NaN, there is no infinity (OCP OFP8 rev 1.0). gaudi2 E4M3 is IEEE-like: every code
// with exponent 1111 is infinity or NaN, so nothing above 240 (S.1110.111 = 0x77) may be written.
#pragma once
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::kernels {

using fp8::name_of;

enum class Format : std::uint8_t { E4M3, E5M2 };
constexpr auto names_of(Format) { return names_up_to<Format::E5M2>("E4M3", "E5M2"); }

enum class Dialect : std::uint8_t { gaudi2, gaudi3, ocp };
constexpr auto names_of(Dialect) { return names_up_to<Dialect::ocp>("gaudi2", "gaudi3", "ocp"); }

/// The types a code is made from and decoded to.
enum class FloatType : std::uint8_t { F32, BF16, F16 };
constexpr auto names_of(FloatType) { return names_up_to<FloatType::F16>("f32", "bf16", "f16"); }

/// How an array is stored.
enum class Storage : std::uint8_t { F32, BF16, F16, E4M3, E5M2 };
constexpr bool is_fp8(Storage type) { return type == Storage::E4M3 || type == Storage::E5M2; }

/// Largest finite magnitude; every cast saturates there.
constexpr float fp8_max(Format format, Dialect dialect) {
  if (format == Format::E5M2) return 57344.0f;
  return dialect == Dialect::gaudi2 ? 240.0f : 448.0f;
}

constexpr int size_of(FloatType type) { return type == FloatType::F32 ? 4 : 2; }

}  // namespace fp8::kernels
