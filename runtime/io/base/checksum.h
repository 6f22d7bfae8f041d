// SPDX-License-Identifier: Apache-2.0
// XXH64 (Yann Collet's xxHash, 64-bit variant, seed 0): tells whether bytes on disk are the ones that were written. Not
// a protection against forgery. The same number on every machine. No torch here.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// FNV-1a, 64 bits: hash = (hash ^ byte) * prime. Tells files that belong together from those that don't; no protection
// against files that are made to look alike. No torch here.

class Fnv {
 public:
  void add(const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) step(static_cast<const unsigned char*>(data)[i]);
  }
  /// With the zero that ends it: "a", "b" and "ab" are told apart.
  void add(const std::string& text) { add(text.data(), text.size() + 1); }
  void add(const std::vector<float>& values) { add(values.data(), values.size() * sizeof(float)); }
  /// One step for a whole word, where FNV takes eight: quick, and no FNV-1a of its bytes.
  void step(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }

  std::uint64_t value() const { return hash_; }
  /// 16 hexadecimal digits.
  std::string text() const { return checksum_text(hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

// SHA-256 (FIPS 180-4) and HMAC by it (RFC 2104): who does not know the secret cannot make the code of a text, nor find
// the secret from codes unless he guesses it. No torch here.

/// 32 bytes.
std::string sha256(std::string_view text);
/// 64 hexadecimal digits.
std::string hmac_sha256(std::string_view secret, std::string_view text);

}  // namespace fp8::io
