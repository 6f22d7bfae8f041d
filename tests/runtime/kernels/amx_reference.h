// SPDX-License-Identifier: Apache-2.0
// tdpbf16ps as Intel's manual writes it, in scalar f32 arithmetic:
//
//   for each row m, column n:  even = odd = 0
//     for each pair k:  even += A[m][2k] * B[k][2n],  odd += A[m][2k+1] * B[k][2n+1]      one fused multiply-add each
//     C[m][n] = C[m][n] + (even + odd)
//
// All with DAZ (subnormal inputs are 0), FTZ (tiny results become 0) and rounding to nearest even. A result is tiny
// where rounding it to 24 bits with no smallest exponent leaves less than 2^-126.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>

#include "fp8/runtime/kernels/gemm/software_tiles.h"

namespace fp8::kernels::test {

inline float f32_of_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline float without_subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

inline float manual_fma(float a, float b, float c) {
  a = without_subnormal(a), b = without_subnormal(b), c = without_subnormal(c);
  const float y = std::fma(a, b, c);
  if (std::fabs(y) != 0x1p-126f) return without_subnormal(y);
  // From here up 24 bits round to 2^-126; only the first of these differences of c is not 0, and both are exact.
  const double least = 0x1p-126 - 0x1p-151, sign = y < 0 ? -1.0 : 1.0;
  const double above =
      std::fma(sign * static_cast<double>(a), static_cast<double>(b), sign * static_cast<double>(c) - least);
  return above < 0 ? std::copysign(0.0f, y) : y;
}

/// Sums of two f32 that are subnormal are exact.
inline float manual_add(float a, float b) { return without_subnormal(without_subnormal(a) + without_subnormal(b)); }

/// What one tdpbf16ps makes of c, from pairs of bf16 of a row of A and of a column of B (two each, as many).
inline float manual_dot(float c, std::span<const std::uint16_t> a, std::span<const std::uint16_t> b) {
  float even = 0, odd = 0;
  for (std::size_t k = 0; k + 1 < a.size(); k += 2) {
    even = manual_fma(f32_of_bf16(a[k]), f32_of_bf16(b[k]), even);
    odd = manual_fma(f32_of_bf16(a[k + 1]), f32_of_bf16(b[k + 1]), odd);
  }
  return manual_add(c, manual_add(even, odd));
}

/// The same bits, or two NaN.
inline bool same_float(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Runs code with AMX instructions on a CPU that has none: each raises SIGILL; the handler decodes it by Intel's manual,
// has SoftwareTiles do what it says, and goes on behind it. On a CPU that has AMX nothing traps.
//
//   VEX   C4 | ~R ~X ~B 00010 | W=0 ~vvvv L=0 pp | opcode | ModRM | SIB, displacement      pp: 0 none, 1 66, 2 F3, 3 F2
//   49    ldtilecfg m512 (none /0), tilerelease (none C0), tilezero tmm=reg (F2, mod 3)
//   4B    tileloadd tmm=reg, [base + disp + row * index] (F2), tilestored (F3); a SIB byte is required
//   5C    tdpbf16ps tmm=reg, tmm=rm, tmm=vvvv (F3, mod 3)

/// While it lives, SIGILL of this process is the handler's. For one thread at a time.
class AmxTrap {
 public:
  struct Counts {
    int configured = 0, released = 0, zeroed = 0, loaded = 0, stored = 0, multiplied = 0;
  };

  AmxTrap() {
    state() = State{};
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~AmxTrap() { sigaction(SIGILL, &before_, nullptr); }
  AmxTrap(const AmxTrap&) = delete;
  AmxTrap& operator=(const AmxTrap&) = delete;

  const Counts& counts() const { return state().counts; }
  /// What SoftwareTiles refused first; "" where nothing was.
  const char* error() const { return state().error; }

 private:
  struct State {
    SoftwareTiles tiles;
    Counts counts;
    char error[120] = "";
  };
  struct Instruction {
    int opcode, prefix, mod, reg, rm, vvvv, base, index, scale, bytes;  // base, index: -1 none
    std::int64_t displacement;
  };

  static State& state() {
    static State the;
    return the;
  }

  static std::int64_t register_value(const ucontext_t& context, int number) {
    static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                       REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return number < 0 ? 0 : context.uc_mcontext.gregs[kOrder[number]];
  }

  // False where it is no VEX instruction of map 0F38, 128 bits.
  static bool decode(const std::uint8_t* p, Instruction& i) {
    if (p[0] != 0xC4 || (p[1] & 0x1F) != 2 || (p[2] & 0x84) != 0) return false;
    const int r = p[1] & 0x80 ? 0 : 8, x = p[1] & 0x40 ? 0 : 8, b = p[1] & 0x20 ? 0 : 8;
    i = {p[3], p[2] & 3, p[4] >> 6, (p[4] >> 3 & 7) + r, p[4] & 7, ~(p[2] >> 3) & 15, -1, -1, 0, 5, 0};
    if (i.mod == 3) {
      i.rm += b;
      return true;
    }
    int displacement = i.mod == 1 ? 1 : i.mod == 2 ? 4 : 0;
    if (i.rm == 4) {
      const std::uint8_t sib = p[i.bytes++];
      i.scale = sib >> 6;
      i.index = (sib >> 3 & 7) + x == 4 ? -1 : (sib >> 3 & 7) + x;
      i.base = (sib & 7) + b;
      if ((sib & 7) == 5 && i.mod == 0) i.base = -1, displacement = 4;
    } else {
      if (i.rm == 5 && i.mod == 0) return false;  // relative to RIP: none of ours
      i.base = i.rm + b;
    }
    if (displacement == 1) i.displacement = static_cast<std::int8_t>(p[i.bytes]);
    if (displacement == 4) {
      std::int32_t value;
      std::memcpy(&value, p + i.bytes, 4);
      i.displacement = value;
    }
    i.bytes += displacement;
    return true;
  }

  // False where it is none of AMX.
  static bool execute(const Instruction& i, const ucontext_t& context) {
    SoftwareTiles& tiles = state().tiles;
    Counts& counts = state().counts;
    const bool memory = i.mod != 3;
    auto* address = reinterpret_cast<std::uint8_t*>(register_value(context, i.base) + i.displacement);
    const std::int64_t stride = register_value(context, i.index) << i.scale;
    if (i.opcode == 0x49 && i.prefix == 0 && memory && i.reg == 0) {
      TileConfig config;
      std::memcpy(&config, address + stride, sizeof config);
      tiles.configure(config), ++counts.configured;
    } else if (i.opcode == 0x49 && i.prefix == 0 && !memory && i.reg == 0 && i.rm == 0) {
      tiles.release(), ++counts.released;
    } else if (i.opcode == 0x49 && i.prefix == 3 && !memory && i.rm == 0) {
      tiles.zero(i.reg), ++counts.zeroed;
    } else if (i.opcode == 0x4B && i.prefix == 3 && memory && i.rm == 4) {
      tiles.load(i.reg, address, stride), ++counts.loaded;
    } else if (i.opcode == 0x4B && i.prefix == 2 && memory && i.rm == 4) {
      tiles.store(i.reg, address, stride), ++counts.stored;
    } else if (i.opcode == 0x5C && i.prefix == 2 && !memory) {
      tiles.dot(i.reg, i.rm, i.vvvv), ++counts.multiplied;
    } else {
      return false;
    }
    return true;
  }

  static void on_signal(int, siginfo_t*, void* data) {
    auto& context = *static_cast<ucontext_t*>(data);
    auto& at = context.uc_mcontext.gregs[REG_RIP];
    Instruction instruction;
    bool known = decode(reinterpret_cast<const std::uint8_t*>(at), instruction);
    try {
      known = known && execute(instruction, context);
    } catch (const std::exception& refused) {
      char* error = state().error;
      if (*error == '\0') std::snprintf(error, sizeof state().error, "%s", refused.what());
    }
    if (known)
      at += instruction.bytes;
    else
      signal(SIGILL, SIG_DFL);  // comes again, and ends the process
  }

  struct sigaction before_ {};
};

}  // namespace fp8::kernels::test
