// SPDX-License-Identifier: Apache-2.0
// A safetensors file written by hand, from the format's description alone.
#pragma once
#include <cstdint>
#include <string>

namespace fp8::io {

/// u64 length, the header as given, the data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  return out + header + data;
}

}  // namespace fp8::io
