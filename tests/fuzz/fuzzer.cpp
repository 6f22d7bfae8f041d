// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry point for the target that FP8_FUZZ_TARGET names.
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fp8::fuzz::run(FP8_FUZZ_TARGET, {reinterpret_cast<const char*>(data), size});
  return 0;
}
