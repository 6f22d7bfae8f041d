// SPDX-License-Identifier: Apache-2.0
// The images of fixtures/images, and pixels as text.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/io/io_test.h"

namespace fp8::io {

inline std::filesystem::path image_folder() {
  return std::filesystem::path(FP8_SOURCE_DIR) / "tests/runtime/io/fixtures/images";
}

inline std::string image_bytes(const std::string& name) { return bytes_of(image_folder() / name); }

inline std::string hex_of(const std::vector<std::uint8_t>& bytes) {
  std::string out;
  for (const std::uint8_t byte : bytes) out += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return out;
}

}  // namespace fp8::io
