// SPDX-License-Identifier: Apache-2.0
// Numbers within the bytes of a file that somebody else wrote, for all readers of such files. No torch here.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::io {

/// Reads nothing that lies outside of its bytes: a reader that asks for it has not looked at its sizes, which is a
/// mistake of ours (std::logic_error).
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  /// `size` bytes from `at` on.
  std::string_view bytes(std::uint64_t at, std::uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) outside();
    return bytes_.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(size));
  }
  void copy(std::uint64_t at, std::uint64_t size, void* to) const {
    if (size > 0) std::memcpy(to, bytes(at, size).data(), static_cast<std::size_t>(size));
  }
  /// A number as little-endian files have it.
  template <class T>
  T little(std::uint64_t at) const {
    return number<T>(at, std::endian::little);
  }
  template <class T>
  T big(std::uint64_t at) const {
    return number<T>(at, std::endian::big);
  }

 private:
  [[noreturn]] static void outside() {
    ensure(false, "a number within the bytes");
    throw;
  }
  template <class T>
  T number(std::uint64_t at, std::endian order) const {
    std::array<char, sizeof(T)> raw;
    copy(at, sizeof(T), raw.data());
    if (order != std::endian::native) std::reverse(raw.begin(), raw.end());
    return std::bit_cast<T>(raw);
  }

  std::string_view bytes_;
};

}  // namespace fp8::io
