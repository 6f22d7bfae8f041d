// SPDX-License-Identifier: Apache-2.0
// Runs code with AMX instructions on a CPU that has none: each raises SIGILL; the handler decodes it by Intel's manual,
// has SoftwareTiles do what it says, and goes on behind it. On a CPU that has AMX nothing traps.
//
//   VEX   C4 | ~R ~X ~B 00010 | W=0 ~vvvv L=0 pp | opcode | ModRM | SIB, displacement      pp: 0 none, 1 66, 2 F3, 3 F2
//   49    ldtilecfg m512 (none /0), tilerelease (none C0), tilezero tmm=reg (F2, mod 3)
//   4B    tileloadd tmm=reg, [base + disp + row * index] (F2), tilestored (F3); a SIB byte is required
//   5C    tdpbf16ps tmm=reg, tmm=rm, tmm=vvvv (F3, mod 3)
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "fp8/runtime/kernels/gemm/software_tiles.h"

namespace fp8::kernels::test {

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
