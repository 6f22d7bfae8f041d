// SPDX-License-Identifier: Apache-2.0
// Checks and threads around rows in Highway's portable vectors, compiled once per target. Only operations that IEEE 754
// defines to the bit, so all targets agree.
#include "fp8/runtime/kernels/attention/decoder_math.h"

#include <algorithm>

#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/attention/decoder_math.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

#include "fp8/runtime/kernels/highway/f32_math-inl.h"
#include "fp8/runtime/kernels/highway/f32_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Of term(x[i]), in decoder_math.h's order.
template <class T, class Term>
HWY_INLINE float SumOf(const T* HWY_RESTRICT x, std::int64_t n, const Term& term) {
  constexpr std::size_t kSums = 32;
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  constexpr std::size_t kLanes = hn::MaxLanes(d), kVectors = kSums / kLanes;
  const std::size_t count = static_cast<std::size_t>(n), whole = count / kSums * kSums;
  hn::Vec<decltype(d)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t v = 0; v < kVectors; ++v) sums[v] = hn::Add(sums[v], term(d, LoadAs(d, x + i + v * kLanes)));
  }
  HWY_ALIGN float s[kSums];
  for (std::size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, s + v * kLanes);
  for (std::size_t i = whole; i < count; ++i) s[i - whole] += hn::GetLane(term(one, LoadAs(one, x + i)));
  for (std::size_t half = kSums / 2; half != 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) s[j] += s[j + half];
  return s[0];
}

template <class T>
float Sum(const T* HWY_RESTRICT x, std::int64_t n) {
  return SumOf(x, n, [](auto, auto a) HWY_ATTR { return a; });
}

template <class T>
float SumOfSquares(const T* HWY_RESTRICT x, std::int64_t n) {
  return SumOf(x, n, [](auto, auto a) HWY_ATTR { return hn::Mul(a, a); });
}

template <class T>
float SumOfDistances(const T* HWY_RESTRICT x, float mean, std::int64_t n) {
  return SumOf(x, n, [mean](auto d, auto a) HWY_ATTR {
    const auto distance = hn::Sub(a, hn::Set(d, mean));
    return hn::Mul(distance, distance);
  });
}

template <class T>
void ScaleTwice(const T* HWY_RESTRICT x, float factor, const T* HWY_RESTRICT weight, T* HWY_RESTRICT y,
                std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto normal = RoundTo<T>(d, hn::Mul(LoadAs(d, x + i), hn::Set(d, factor)));
    StoreAs(d, hn::Mul(LoadAs(d, weight + i), normal), y + i);
  });
}

template <class T>
void ScaleWide(const T* HWY_RESTRICT x, float factor, const T* HWY_RESTRICT weight, float offset, T* HWY_RESTRICT y,
               std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto normal = hn::Mul(LoadAs(d, x + i), hn::Set(d, factor));
    StoreAs(d, hn::Mul(hn::Add(hn::Set(d, offset), LoadAs(d, weight + i)), normal), y + i);
  });
}

template <class T>
void Rotate(const T* HWY_RESTRICT x, const T* HWY_RESTRICT cos, const T* HWY_RESTRICT sin, T* HWY_RESTRICT y,
            std::int64_t half) {
  const auto h = static_cast<std::size_t>(half);
  ForVectors(half, [&](auto d, std::size_t i) HWY_ATTR {
    const auto left = LoadAs(d, x + i), right = LoadAs(d, x + h + i);
    const auto product = [&](auto a, const T* b) HWY_ATTR { return RoundTo<T>(d, hn::Mul(a, LoadAs(d, b))); };
    StoreAs(d, hn::Sub(product(left, cos + i), product(right, sin + i)), y + i);
    StoreAs(d, hn::Add(product(right, cos + h + i), product(left, sin + h + i)), y + h + i);
  });
}

template <class T>
void Center(const T* HWY_RESTRICT x, float mean, float factor, const T* HWY_RESTRICT weight, const T* HWY_RESTRICT bias,
            T* HWY_RESTRICT y, std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    auto normal = hn::Mul(hn::Sub(LoadAs(d, x + i), hn::Set(d, mean)), hn::Set(d, factor));
    if (weight != nullptr) normal = hn::Mul(normal, LoadAs(d, weight + i));
    if (bias != nullptr) normal = hn::Add(normal, LoadAs(d, bias + i));
    StoreAs(d, normal, y + i);
  });
}

template <class T>
void SiluMul(const T* HWY_RESTRICT gate, const T* HWY_RESTRICT up, T* HWY_RESTRICT y, std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto g = LoadAs(d, gate + i);
    const auto silu = hn::Div(g, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(g))));
    StoreAs(d, hn::Mul(RoundTo<T>(d, silu), LoadAs(d, up + i)), y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {
namespace {

/// One row each. Arrays are of T, f32 or the bits of bf16.
template <class T>
struct DecoderKernels {
  float (*sum_of_squares)(const T* x, std::int64_t n);
  /// y[i] = round(weight[i] * round(x[i] * factor))
  void (*scale_twice)(const T* x, float factor, const T* weight, T* y, std::int64_t n);
  /// y[i] = round((offset + weight[i]) * (x[i] * factor))
  void (*scale_wide)(const T* x, float factor, const T* weight, float offset, T* y, std::int64_t n);
  void (*rotate)(const T* x, const T* cos, const T* sin, T* y, std::int64_t half);
  float (*sum)(const T* x, std::int64_t n);
  /// Of (x - mean)^2.
  float (*sum_of_distances)(const T* x, float mean, std::int64_t n);
  /// y[i] = round(((x[i] - mean) * factor) * weight[i] + bias[i]), without those that are nullptr
  void (*center)(const T* x, float mean, float factor, const T* weight, const T* bias, T* y, std::int64_t n);
  void (*silu_mul)(const T* gate, const T* up, T* y, std::int64_t n);
};

#define FP8_DECODER_KERNELS(of)                                                 \
  {of(SumOfSquares<T>), of(ScaleTwice<T>),     of(ScaleWide<T>), of(Rotate<T>), \
   of(Sum<T>),          of(SumOfDistances<T>), of(Center<T>),    of(SiluMul<T>)}

template <class T>
const DecoderKernels<T>& decoder_kernels_in_force() {
  static constexpr DecoderKernels<T> kBaseline = FP8_DECODER_KERNELS(HWY_STATIC_DISPATCH),
                                     kAvx2 = FP8_DECODER_KERNELS(FP8_AT_AVX2),
                                     kAvx512 = FP8_DECODER_KERNELS(FP8_AT_AVX512);
  return of_level(kBaseline, kAvx2, kAvx512);
}

constexpr std::int64_t kGrain = 16384;  // elements per range: some microseconds, as waking a thread takes

std::int64_t grain_of(std::int64_t n) { return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(n, 1)); }

void check_type(const char* kernel, FloatType type) {
  if (type != FloatType::BF16 && type != FloatType::F32)
    io::fail<std::invalid_argument>("{}: type must be BF16 or F32", kernel);
}

void check_cast(const char* kernel, const CastArgs& cast) {
  if (cast.codes != nullptr) check_cast_max(kernel, cast.format, cast.saturation());
}

/// y: all rows.
void cast_row_of(const CastArgs& cast, FloatType type, const void* y, std::int64_t row, std::int64_t n) {
  if (cast.codes != nullptr) cast_row(cast, type, static_cast<const char*>(y) + row * n * size_of(type), row, n);
}

template <class T>
void rms_norm_of(const RmsNormArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *x = static_cast<const T*>(args.x), *weight = static_cast<const T*>(args.weight);
  auto* y = static_cast<T*>(args.y);
  const auto n = static_cast<float>(args.n);
  parallel_each(args.rows, grain_of(args.n), [&](std::int64_t r) {
    const T* row = x + r * args.x_stride;
    const float factor = 1.0f / std::sqrt(kernels.sum_of_squares(row, args.n) / n + args.eps);
    if (args.wide)
      kernels.scale_wide(row, factor, weight, args.offset, y + r * args.n, args.n);
    else
      kernels.scale_twice(row, factor, weight, y + r * args.n, args.n);
    cast_row_of(args.cast, args.type, y, r, args.n);
  });
}

template <class T>
void rotary_of(const RotaryArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *x = static_cast<const T*>(args.x), *cos = static_cast<const T*>(args.cos),
             *sin = static_cast<const T*>(args.sin);
  auto* y = static_cast<T*>(args.y);
  const std::int64_t rows = args.batch * args.heads * args.length;
  parallel_each(rows, grain_of(args.width), [&](std::int64_t r) {
    const std::int64_t l = r % args.length, h = r / args.length % args.heads, b = r / args.length / args.heads;
    const std::int64_t angle = b * args.angle_batch + l * args.width;
    kernels.rotate(x + b * args.x_batch + l * args.x_length + h * args.x_head, cos + angle, sin + angle,
                   y + r * args.width, args.width / 2);
  });
}

template <class T>
void layer_norm_of(const LayerNormArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *x = static_cast<const T*>(args.x), *weight = static_cast<const T*>(args.weight),
             *bias = static_cast<const T*>(args.bias);
  auto* y = static_cast<T*>(args.y);
  const auto n = static_cast<float>(args.n);
  parallel_each(args.rows, grain_of(args.n), [&](std::int64_t r) {
    const T* row = x + r * args.x_stride;
    const float mean = kernels.sum(row, args.n) / n;
    const float factor = 1.0f / std::sqrt(kernels.sum_of_distances(row, mean, args.n) / n + args.eps);
    kernels.center(row, mean, factor, weight, bias, y + r * args.n, args.n);
    cast_row_of(args.cast, args.type, y, r, args.n);
  });
}

template <class T>
void silu_mul_of(const SiluMulArgs& args) {
  const auto& kernels = decoder_kernels_in_force<T>();
  const auto *gate = static_cast<const T*>(args.gate), *up = static_cast<const T*>(args.up);
  auto* y = static_cast<T*>(args.y);
  parallel_each(args.rows, grain_of(args.n), [&](std::int64_t r) {
    kernels.silu_mul(gate + r * args.gate_stride, up + r * args.up_stride, y + r * args.n, args.n);
    cast_row_of(args.cast, args.type, y, r, args.n);
  });
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  check_type("rms_norm", args.type);
  check_matrix("rms_norm: x", args.rows, args.n, args.x_stride);
  check_cast("rms_norm: cast", args.cast);
  if (args.rows == 0 || args.n == 0) return;
  if (args.x == nullptr || args.weight == nullptr || args.y == nullptr)
    throw std::invalid_argument("rms_norm: x, weight and y must not be null");
  args.type == FloatType::BF16 ? rms_norm_of<std::uint16_t>(args) : rms_norm_of<float>(args);
}

void rotary(const RotaryArgs& args) {
  check_type("rotary", args.type);
  // y's rows first: their number does not overflow, so the product of all three sizes does not.
  check_matrix("rotary: batch x length", args.batch, args.length, args.length);
  check_matrix("rotary: positions x heads", args.batch * args.length, args.heads, args.heads);
  check_matrix("rotary: y", args.batch * args.length * args.heads, args.width, args.width);
  if (args.width % 2 != 0) io::fail<std::invalid_argument>("rotary: width is {}, must be even", args.width);
  if (args.x_batch < 0 || args.x_length < 0 || args.x_head < 0 || args.angle_batch < 0)
    throw std::invalid_argument("rotary: strides must not be negative");
  if (args.batch * args.length * args.heads * args.width == 0) return;
  if (args.x == nullptr || args.cos == nullptr || args.sin == nullptr || args.y == nullptr)
    throw std::invalid_argument("rotary: x, cos, sin and y must not be null");
  args.type == FloatType::BF16 ? rotary_of<std::uint16_t>(args) : rotary_of<float>(args);
}

void layer_norm(const LayerNormArgs& args) {
  check_type("layer_norm", args.type);
  check_matrix("layer_norm: x", args.rows, args.n, args.x_stride);
  check_cast("layer_norm: cast", args.cast);
  if (args.rows == 0 || args.n == 0) return;
  if (args.x == nullptr || args.y == nullptr) throw std::invalid_argument("layer_norm: x and y must not be null");
  args.type == FloatType::BF16 ? layer_norm_of<std::uint16_t>(args) : layer_norm_of<float>(args);
}

void silu_mul(const SiluMulArgs& args) {
  check_type("silu_mul", args.type);
  check_matrix("silu_mul: gate", args.rows, args.n, args.gate_stride);
  check_matrix("silu_mul: up", args.rows, args.n, args.up_stride);
  check_cast("silu_mul: cast", args.cast);
  if (args.rows == 0 || args.n == 0) return;
  if (args.gate == nullptr || args.up == nullptr || args.y == nullptr)
    throw std::invalid_argument("silu_mul: gate, up and y must not be null");
  args.type == FloatType::BF16 ? silu_mul_of<std::uint16_t>(args) : silu_mul_of<float>(args);
}

}  // namespace fp8::kernels
#endif  // HWY_ONCE
