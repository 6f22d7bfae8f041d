// SPDX-License-Identifier: Apache-2.0
// Cases whose instructions are counted: each is called twice, and a third time below a function fp8_count_<name>, which
// ./check asks callgrind for.
//
//   FP8_COUNTED(amax_f32) { static const std::vector<float> x(n, 1.0f);  kernels::amax(x.data(), ...); }
#pragma once
#include <vector>

namespace fp8::test {

struct Counted {
  void (*warm_up)();
  void (*counted)();
};

inline std::vector<Counted>& counted_cases() {
  static std::vector<Counted> cases;
  return cases;
}

inline void run_counted_cases() {
  for (const Counted& one : counted_cases()) {
    one.warm_up();
    one.warm_up();
    one.counted();
  }
}

#define FP8_COUNTED(name)                                                                                      \
  static void name();                                                                                          \
  extern "C" [[gnu::noinline]] void fp8_count_##name() {                                                       \
    name();                                                                                                    \
    asm volatile(""); /* no tail call */                                                                       \
  }                                                                                                            \
  static const bool counted_##name = (::fp8::test::counted_cases().push_back({name, fp8_count_##name}), true); \
  static void name()

}  // namespace fp8::test
