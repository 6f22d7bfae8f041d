// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <new>

namespace fp8::kernels {

/// Memory that a thread keeps between calls: fresh pages would cost more than the kernel.
class Scratch {
 public:
  /// At least `bytes`, aligned to a cache line; what it held is lost where it grows.
  std::uint8_t* get(std::int64_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<std::uint8_t*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t{64})));
      size_ = bytes;
    }
    return memory_.get();
  }
  /// Gives back more than `kept` bytes.
  void shrink(std::int64_t kept) {
    if (size_ <= kept) return;
    memory_.reset();
    size_ = 0;
  }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::int64_t size_ = 0;
};

}  // namespace fp8::kernels
