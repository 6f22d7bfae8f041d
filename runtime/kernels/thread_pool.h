// SPDX-License-Identifier: Apache-2.0
// A small fork-join pool of its own: this layer knows no torch, and at::parallel_for is silently serial without OpenMP.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <new>

namespace fp8::kernels {

/// Threads used by parallel_for, the caller included. Default: the CPUs this process may run on.
int num_threads();
/// Sets it (1 to 1024; else std::invalid_argument). Threads are created when first needed; idle ones sleep.
void set_num_threads(int threads);

/// Calls body(begin, end) on disjoint ranges that cover [0, n), each a multiple of `grain` long but the last; serial
/// when n <= grain, inside another parallel_for, with one thread, or while another thread's parallel_for has the
/// workers. Ranges are handed out in no fixed order: what body computes for an index must not depend on its range.
/// Returns when all are done; rethrows the first exception (further ranges are then not started).
void parallel_for(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);
/// Calls body(i) for each i in [0, n), as parallel_for has ranges of them.
template <class Body>
void parallel_each(std::int64_t n, std::int64_t grain, const Body& body) {
  parallel_for(n, grain, [&body](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

/// While one lives, anywhere in the process, workers wait awake for the next parallel_for, for a millisecond instead of
/// some 20 us, before they sleep: where large kernels follow each other with a little work of one thread between them,
/// as in a model that decodes a token. Waiting takes the core from others: not around what runs on other threads.
class AwakeWorkers {
 public:
  AwakeWorkers();
  ~AwakeWorkers();
  AwakeWorkers& operator=(AwakeWorkers&&) = delete;
};

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
