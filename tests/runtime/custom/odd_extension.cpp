// SPDX-License-Identifier: Apache-2.0
// Extensions for extension_test.cpp: one that fails after it has added an operator (FP8_ODD 0), or in
// another static (2), and one that asks for extensions while it loads (1) and has no operator, but a callback.
#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/trainer/parts.h"

using namespace fp8::runtime;

#if FP8_ODD == 1
[[maybe_unused]] static const fp8::trainer::PartRegistration<fp8::trainer::TrainerCallback> g_callback(
    "Odd", [](fp8::trainer::PartArguments&) { return std::make_shared<fp8::trainer::TrainerCallback>(); });
FP8_EXTENSION(m) {
  if (extensions().empty()) return;
  (void)load_extension(extensions().front().file);
}
#else
FP8_EXTENSION(m) {
  m.add(CustomOp("sample_ext::first").schema("(Tensor x) -> Tensor").kernel([](CustomArguments in) {
    return std::vector{in[0].toTensor()};
  }));
}
#if FP8_ODD == 0
FP8_EXTENSION(m) { throw 7; }
#else
[[maybe_unused]] static const bool g_fails = [] {
  throw 7;
  return true;
}();
#endif
#endif
