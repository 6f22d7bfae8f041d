// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry points for the target that FP8_FUZZ_TARGET names.
#include <algorithm>
#include <cstdint>

#include "fuzz/mutate.h"
#include "fuzz/targets.h"

extern "C" {

std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fp8::fuzz::run(FP8_FUZZ_TARGET, {reinterpret_cast<const char*>(data), size});
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  std::mt19937 random(seed);
  const auto change = [most](std::string bytes) {
    const std::size_t before = std::min(bytes.size(), most);
    bytes.resize(most);
    bytes.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), before, most));
    return bytes;
  };
  const std::string_view given{reinterpret_cast<const char*>(data), size};
  const std::string found = fp8::fuzz::changed(FP8_FUZZ_TARGET, given, random, change);
  const std::size_t kept = std::min(found.size(), most);
  std::copy_n(found.begin(), kept, reinterpret_cast<char*>(data));
  return kept;
}

}  // extern "C"
