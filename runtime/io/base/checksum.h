// SPDX-License-Identifier: Apache-2.0
// XXH64 (Yann Collet's xxHash, 64-bit variant, seed 0): tells whether bytes on disk are the ones that were written. Not
// a protection against somebody who forges them. The same number on every machine. No torch here.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::io {

/// The checksum of what update() was given, piece by piece.
class Checksum {
 public:
  void update(const void* data, std::size_t size);
  std::uint64_t value() const;

 private:
  static constexpr std::size_t kStripe = 32;
  std::array<std::uint64_t, 4> lanes_ = {0x9E3779B185EBCA87u + 0xC2B2AE3D27D4EB4Fu, 0xC2B2AE3D27D4EB4Fu, 0,
                                         0 - 0x9E3779B185EBCA87u};
  std::uint64_t total_ = 0;
  std::array<unsigned char, kStripe> rest_{};  // the last total_ % 32 bytes
};

std::uint64_t checksum(std::string_view bytes);

/// 16 hexadecimal digits.
std::string checksum_text(std::uint64_t value);

}  // namespace fp8::io
