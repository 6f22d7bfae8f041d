// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry point for the target that FP8_FUZZ_TARGET names.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fp8::fuzz::FP8_FUZZ_TARGET(data, size);
  return 0;
}
