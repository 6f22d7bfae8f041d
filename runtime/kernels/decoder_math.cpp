// SPDX-License-Identifier: Apache-2.0
// Checks and threads around the rows of decoder_math_simd.cpp.
#include "fp8/runtime/kernels/decoder_math.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/cast_kernels.h"
#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/decoder_math_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements per range: some microseconds, as waking a thread takes

std::int64_t grain_of(std::int64_t n) { return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(n, 1)); }

[[noreturn]] void fail(const char* kernel, const std::string& what) {
  throw std::invalid_argument(std::string(kernel) + ": " + what);
}

void check_type(const char* kernel, FloatType type) {
  if (type != FloatType::BF16 && type != FloatType::F32) fail(kernel, "type must be BF16 or F32");
}

void check_cast(const char* kernel, const RowCast& cast) {
  if (cast.codes != nullptr) check_cast_max(kernel, cast.format, cast.max);
}

/// y: all rows.
void cast_row_of(const RowCast& cast, FloatType type, const void* y, std::int64_t row, std::int64_t n) {
  if (cast.codes != nullptr) cast_row(cast, type, static_cast<const char*>(y) + row * n * size_of(type), row, n);
}

template <class T>
void rms_norm_of(const RmsNormArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *x = static_cast<const T*>(args.x), *weight = static_cast<const T*>(args.weight);
  auto* y = static_cast<T*>(args.y);
  const auto n = static_cast<float>(args.n);
  parallel_for(args.rows, grain_of(args.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* row = x + r * args.x_stride;
      const float factor = 1.0f / std::sqrt(kernels.sum_of_squares(row, args.n) / n + args.eps);
      if (args.wide)
        kernels.scale_wide(row, factor, weight, args.offset, y + r * args.n, args.n);
      else
        kernels.scale_twice(row, factor, weight, y + r * args.n, args.n);
      cast_row_of(args.cast, args.type, y, r, args.n);
    }
  });
}

template <class T>
void rotary_of(const RotaryArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *x = static_cast<const T*>(args.x), *cos = static_cast<const T*>(args.cos),
             *sin = static_cast<const T*>(args.sin);
  auto* y = static_cast<T*>(args.y);
  const std::int64_t rows = args.batch * args.heads * args.length;
  parallel_for(rows, grain_of(args.width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t l = r % args.length, h = r / args.length % args.heads, b = r / args.length / args.heads;
      const std::int64_t angle = b * args.angle_batch + l * args.width;
      kernels.rotate(x + b * args.x_batch + l * args.x_length + h * args.x_head, cos + angle, sin + angle,
                     y + r * args.width, args.width / 2);
    }
  });
}

template <class T>
void layer_norm_of(const LayerNormArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *x = static_cast<const T*>(args.x), *weight = static_cast<const T*>(args.weight),
             *bias = static_cast<const T*>(args.bias);
  auto* y = static_cast<T*>(args.y);
  const auto n = static_cast<float>(args.n);
  parallel_for(args.rows, grain_of(args.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* row = x + r * args.x_stride;
      const float mean = kernels.sum(row, args.n) / n;
      const float factor = 1.0f / std::sqrt(kernels.sum_of_distances(row, mean, args.n) / n + args.eps);
      kernels.center(row, mean, factor, weight, bias, y + r * args.n, args.n);
      cast_row_of(args.cast, args.type, y, r, args.n);
    }
  });
}

template <class T>
void silu_mul_of(const SiluMulArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *gate = static_cast<const T*>(args.gate), *up = static_cast<const T*>(args.up);
  auto* y = static_cast<T*>(args.y);
  parallel_for(args.rows, grain_of(args.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernels.silu_mul(gate + r * args.gate_stride, up + r * args.up_stride, y + r * args.n, args.n);
      cast_row_of(args.cast, args.type, y, r, args.n);
    }
  });
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  check_type("rms_norm", args.type);
  check_matrix("rms_norm: x", args.rows, args.n, args.x_stride);
  check_cast("rms_norm: cast", args.cast);
  if (args.rows == 0 || args.n == 0) return;
  if (args.x == nullptr || args.weight == nullptr || args.y == nullptr)
    fail("rms_norm", "x, weight and y must not be null");
  args.type == FloatType::BF16 ? rms_norm_of<std::uint16_t>(args) : rms_norm_of<float>(args);
}

void rotary(const RotaryArgs& args) {
  check_type("rotary", args.type);
  // y's rows first: their number does not overflow, so the product of all three sizes does not.
  check_matrix("rotary: batch x length", args.batch, args.length, args.length);
  check_matrix("rotary: positions x heads", args.batch * args.length, args.heads, args.heads);
  check_matrix("rotary: y", args.batch * args.length * args.heads, args.width, args.width);
  if (args.width % 2 != 0) fail("rotary", "width is " + std::to_string(args.width) + ", must be even");
  if (args.x_batch < 0 || args.x_length < 0 || args.x_head < 0 || args.angle_batch < 0)
    fail("rotary", "strides must not be negative");
  if (args.batch * args.length * args.heads * args.width == 0) return;
  if (args.x == nullptr || args.cos == nullptr || args.sin == nullptr || args.y == nullptr)
    fail("rotary", "x, cos, sin and y must not be null");
  args.type == FloatType::BF16 ? rotary_of<std::uint16_t>(args) : rotary_of<float>(args);
}

void layer_norm(const LayerNormArgs& args) {
  check_type("layer_norm", args.type);
  check_matrix("layer_norm: x", args.rows, args.n, args.x_stride);
  check_cast("layer_norm: cast", args.cast);
  if (args.rows == 0 || args.n == 0) return;
  if (args.x == nullptr || args.y == nullptr) fail("layer_norm", "x and y must not be null");
  args.type == FloatType::BF16 ? layer_norm_of<std::uint16_t>(args) : layer_norm_of<float>(args);
}

void silu_mul(const SiluMulArgs& args) {
  check_type("silu_mul", args.type);
  check_matrix("silu_mul: gate", args.rows, args.n, args.gate_stride);
  check_matrix("silu_mul: up", args.rows, args.n, args.up_stride);
  check_cast("silu_mul: cast", args.cast);
  if (args.rows == 0 || args.n == 0) return;
  if (args.gate == nullptr || args.up == nullptr || args.y == nullptr)
    fail("silu_mul", "gate, up and y must not be null");
  args.type == FloatType::BF16 ? silu_mul_of<std::uint16_t>(args) : silu_mul_of<float>(args);
}

}  // namespace fp8::kernels
