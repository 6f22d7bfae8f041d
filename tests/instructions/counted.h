// SPDX-License-Identifier: Apache-2.0
// Cases whose instructions are counted: each is called twice, and then below functions fp8_count_<name>_<1 to 5>, which
// ./check asks callgrind for. The least of the five counts: a call that finds the heap or a table full does more, and
// which call that is depends on all before it, the lengths of paths among it.
//
//   FP8_COUNTED(amax_f32) { static const std::vector<float> x(n, 1.0f);  kernels::amax(x.data(), ...); }
#pragma once
#include <array>
#include <vector>

namespace fp8::test {

struct Counted {
  const char* name;
  void (*warm_up)();
  std::array<void (*)(), 5> counted;
};

inline std::vector<Counted>& counted_cases() {
  static std::vector<Counted> cases;
  return cases;
}

inline void run_counted_cases() {
  for (const Counted& one : counted_cases()) {
    one.warm_up();
    one.warm_up();
    for (const auto counted : one.counted) counted();
  }
}

#define FP8_COUNTED_CALL(name, nth)                                                                  \
  extern "C" [[gnu::noinline]] void fp8_count_##name##_##nth() {                                     \
    name();                                                                                          \
    asm volatile("" ::"i"(nth)); /* no tail call, and five functions that are not folded into one */ \
  }
#define FP8_COUNTED(name)                                                                                         \
  static void name();                                                                                             \
  FP8_COUNTED_CALL(name, 1)                                                                                       \
  FP8_COUNTED_CALL(name, 2)                                                                                       \
  FP8_COUNTED_CALL(name, 3)                                                                                       \
  FP8_COUNTED_CALL(name, 4)                                                                                       \
  FP8_COUNTED_CALL(name, 5)                                                                                       \
  static const bool counted_##name =                                                                              \
      (::fp8::test::counted_cases().push_back({#name,                                                             \
                                               name,                                                              \
                                               {fp8_count_##name##_1, fp8_count_##name##_2, fp8_count_##name##_3, \
                                                fp8_count_##name##_4, fp8_count_##name##_5}}),                    \
       true);                                                                                                     \
  static void name()

}  // namespace fp8::test
