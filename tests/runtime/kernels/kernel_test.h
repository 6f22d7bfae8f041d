// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: the levels that this machine can be made to take, buffers that end at an unreadable
// page, and the value grid of a format, built from its definition in double precision, with rounding by search on it.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <stdexcept>

#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "support/throws_with.h"

namespace fp8::kernels::test {

inline std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> all;
  for (const auto& level : choice_of<SimdLevel>())
    if (level.value <= best_scoped_level()) all.push_back(level.value);
  return all;
}

/// The levels one after the other, with the kernels at each while it has its turn:
/// for (const SimdLevel level : every_level()) ...
class EveryLevel {
 public:
  class Turn {
   public:
    explicit Turn(const std::vector<SimdLevel>& all) : all_(all) { take(); }
    SimdLevel operator*() const { return all_[at_]; }
    bool operator==(std::default_sentinel_t) const { return at_ == all_.size(); }
    void operator++() {
      ++at_;
      take();
    }

   private:
    void take() {
      level_.reset();
      if (at_ < all_.size()) level_ = std::make_unique<ScopedSimdLevel>(all_[at_]);
    }
    const std::vector<SimdLevel>& all_;
    std::size_t at_ = 0;
    std::unique_ptr<ScopedSimdLevel> level_;
  };
  Turn begin() const { return Turn(all_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  const std::vector<SimdLevel> all_ = levels();
};
inline EveryLevel every_level() { return {}; }

/// Threads of the pool while it lives.
class Threads {
 public:
  explicit Threads(int n) : before_(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before_); }

 private:
  int before_;
};

/// call(args) throws std::invalid_argument after each one of the changes to `good`.
template <class Args, class... Change>
void expect_refused(void (*call)(const Args&), const Args& good, const Change&... change) {
  int number = 0;
  const auto with = [&](const auto& one) {
    Args args = good;
    one(args);
    EXPECT_THROW(call(args), std::invalid_argument) << "change " << number++;
  };
  (with(change), ...);
}

/// Normally distributed numbers.
inline std::vector<float> normal(std::size_t n, unsigned seed, float deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> draw(0, deviation);
  std::vector<float> x(n);
  for (float& v : x) v = draw(generator);
  return x;
}

/// n elements that end where the readable memory ends: an overrun is a crash, not a wrong number.
template <class T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t n) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (n * sizeof(T) + page - 1) / page * page + page;
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    char* end = static_cast<char*>(memory_) + bytes_ - page;
    mprotect(end, page, PROT_NONE);
    data_ = reinterpret_cast<T*>(end) - n;
  }
  ~GuardedBuffer() { munmap(memory_, bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  T* data() { return data_; }

 private:
  std::size_t bytes_;
  void* memory_;
  T* data_;
};

/// The value of a finite magnitude code, from the format's definition: (1.m or 0.m) * 2^(e - bias).
inline double grid_value(int code, Format format) {
  const int mantissa_bits = format == Format::E4M3 ? 3 : 2, bias = format == Format::E4M3 ? 7 : 15;
  const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
  const double fraction = mantissa / static_cast<double>(1 << mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
}

/// The exact value of a code as ocp reads it.
inline double value_of(int code, Format format) {
  const int magnitude = code & 0x7F;
  const double sign = code & 0x80 ? -1.0 : 1.0;
  if (format == Format::E4M3 && magnitude == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  if (format == Format::E5M2 && magnitude > 0x7C) return std::numeric_limits<double>::quiet_NaN();
  if (format == Format::E5M2 && magnitude == 0x7C) return sign * std::numeric_limits<double>::infinity();
  return sign * grid_value(magnitude, format);
}

/// All magnitudes up to `max`, index = code.
inline std::vector<double> grid(Format format, float max) {
  std::vector<double> values;
  for (int code = 0; code < 128 && grid_value(code, format) <= static_cast<double>(max); ++code)
    values.push_back(grid_value(code, format));
  return values;
}

/// The code of y: the nearest grid value, on a tie the even code; saturating; NaN 0x7F. The sign is the caller's.
inline int nearest_on_grid(double y, const std::vector<double>& values) {
  if (std::isnan(y)) return 0x7F;
  const double a = std::min(std::fabs(y), values.back());
  const int above = static_cast<int>(std::lower_bound(values.begin(), values.end(), a) - values.begin());
  if (above == 0) return 0;
  const double down = a - values[static_cast<std::size_t>(above - 1)], up = values[static_cast<std::size_t>(above)] - a;
  if (down != up) return down < up ? above - 1 : above;
  return above % 2 == 0 ? above : above - 1;
}

/// f16 and bf16 from their definitions, in double.
inline double half_value(std::uint16_t bits, FloatType type) {
  const int mantissa_bits = type == FloatType::F16 ? 10 : 7, exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = (bits >> mantissa_bits) & top, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == top) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

/// y rounded to nearest even to `type`, as a double; overflow is infinity.
inline double round_to(double y, FloatType type) {
  if (type == FloatType::F32) return static_cast<double>(static_cast<float>(y));
  if (std::isnan(y) || std::isinf(y) || y == 0.0) return y;
  const int mantissa_bits = type == FloatType::F16 ? 10 : 7, min_exponent = type == FloatType::F16 ? -14 : -126;
  const double limit = type == FloatType::F16 ? 65504.0 : std::ldexp(255.0 / 128.0, 127);
  const int exponent = std::max(std::ilogb(y), min_exponent);
  const double step = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(y / step) * step;
  return std::fabs(rounded) > limit ? std::copysign(std::numeric_limits<double>::infinity(), y) : rounded;
}

/// Element i of x as a double (exact), NaN kept.
inline double element(const void* x, FloatType type, std::size_t i) {
  if (type == FloatType::F32) return static_cast<double>(static_cast<const float*>(x)[i]);
  return half_value(static_cast<const std::uint16_t*>(x)[i], type);
}
inline bool sign_of(const void* x, FloatType type, std::size_t i) {
  if (type == FloatType::F32) return std::signbit(static_cast<const float*>(x)[i]);
  return (static_cast<const std::uint16_t*>(x)[i] & 0x8000) != 0;
}

}  // namespace fp8::kernels::test

namespace fp8::kernels {
using test::every_level;
using test::levels;
using test::normal;
using test::Threads;
}  // namespace fp8::kernels
