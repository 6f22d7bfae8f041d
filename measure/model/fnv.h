// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits: hash = (hash ^ byte) * prime. Tells files that belong together from those that don't; no protection
// against somebody who wants them to look alike.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace fp8::measure {

class Fnv {
 public:
  void add(const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      hash_ = (hash_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  }
  void add(const std::string& text) { add(text.data(), text.size() + 1); }
  void add(const std::vector<float>& values) { add(values.data(), values.size() * sizeof(float)); }
  /// 16 hex digits.
  std::string text() const {
    char out[17];
    std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(hash_));
    return out;
  }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace fp8::measure
