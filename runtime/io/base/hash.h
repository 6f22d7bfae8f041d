// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits: hash = (hash ^ byte) * prime. Tells files that belong together from those that don't; no protection
// against somebody who wants them to look alike. No torch here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::io {

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

}  // namespace fp8::io
