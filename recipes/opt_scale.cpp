// SPDX-License-Identifier: Apache-2.0
// The search over candidates (see opt_scale.h).
//
// Per tensor a bf16 or f16 weight has at most 2^15 magnitudes, and the error depends on the magnitude only: one pass
// counts them, then every candidate is an error over the table weighted by the counts, whatever the weight's size.
#include "fp8/recipes/opt_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::recipes {
namespace {

constexpr std::int64_t kBlock = 4096;  // values quantized at once

[[noreturn]] void reject(std::string_view name, const std::string& what) {
  throw std::invalid_argument(std::string(name) + ": " + what);
}

// Nearest even in hp; as round_to(), with the kernels' bit tricks.
float to_hp(float x, FloatType hp) {
  switch (hp) {
    case FloatType::BF16: return kernels::bf16_to_f32(kernels::f32_to_bf16(x));
    case FloatType::F16: return kernels::f16_to_f32(kernels::f32_to_f16(x));
    case FloatType::F32: break;
  }
  return x;
}

// w - q(w, s) of the formula above, for n <= kBlock values in hp.
struct Quantizer {
  IncTarget target;
  std::array<float, kBlock> scaled;
  std::array<std::uint8_t, kBlock> codes;

  void errors(const float* w, std::int64_t n, float s, float* out) {
    for (std::int64_t i = 0; i < n; ++i) scaled[static_cast<std::size_t>(i)] = to_hp(w[i] / s, target.hp);
    kernels::CastArgs args;
    args.x = scaled.data();
    args.rows = 1;
    args.cols = args.row_stride = n;
    args.codes = codes.data();
    args.format = target.format;
    args.max = fp8_max(target.format, target.dialect);
    kernels::cast_to_fp8(args);
    const float* value = kernels::decode_table(target.format);
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = to_hp(w[i] - to_hp(value[codes[static_cast<std::size_t>(i)]] * s, target.hp), target.hp);
    }
  }
};

// The weight in hp, by block and index.
void load(const float* w, std::int64_t n, FloatType hp, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_hp(w[i], hp);
}

void check_finite(const float* w, std::int64_t rows, std::int64_t cols, FloatType hp, std::string_view name) {
  const float largest = kernels::amax(w, FloatType::F32, rows * cols);
  if (!std::isfinite(largest)) reject(name, "the weight has NaN or infinite values, allowed: finite ones");
  if (!std::isfinite(to_hp(largest, hp))) {
    reject(name, "the weight has values beyond what " + std::string(name_of(hp)) + " (hp_dtype) can hold");
  }
}

// Distinct magnitudes and how often each occurs.
struct Counted {
  std::vector<float> values;
  std::vector<double> counts;
};

Counted count_magnitudes(const float* w, std::int64_t n, FloatType hp) {
  std::vector<std::int64_t> counts(0x8000, 0);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t bits = hp == FloatType::BF16 ? kernels::f32_to_bf16(w[i]) : kernels::f32_to_f16(w[i]);
    ++counts[bits & 0x7FFF];
  }
  Counted result;
  for (std::size_t bits = 0; bits < counts.size(); ++bits) {
    if (counts[bits] == 0) continue;
    const auto half = static_cast<std::uint16_t>(bits);
    result.values.push_back(hp == FloatType::BF16 ? kernels::bf16_to_f32(half) : kernels::f16_to_f32(half));
    result.counts.push_back(static_cast<double>(counts[bits]));
  }
  return result;
}

// Sum of squared errors of a tensor for one candidate. counts: nullptr for 1 each.
double tensor_error(const float* w, const double* counts, std::int64_t n, float s, const IncTarget& target) {
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks), 0.0);
  kernels::parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    Quantizer quantizer{target, {}, {}};
    std::array<float, kBlock> values, error;
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * kBlock, size = std::min(kBlock, n - first);
      load(w + first, size, target.hp, values.data());
      quantizer.errors(values.data(), size, s, error.data());
      double sum = 0.0;
      for (std::int64_t i = 0; i < size; ++i) {
        const double e = error[static_cast<std::size_t>(i)];
        sum += e * e * (counts != nullptr ? counts[first + i] : 1.0);
      }
      sums[static_cast<std::size_t>(b)] = sum;
    }
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

float best_of_tensor(const float* w, std::int64_t n, const std::vector<float>& candidates, const IncTarget& target) {
  Counted counted;
  if (target.hp != FloatType::F32) counted = count_magnitudes(w, n, target.hp);
  const bool direct = target.hp == FloatType::F32;
  float best = candidates.back(), least = std::numeric_limits<float>::infinity();
  for (const float s : candidates) {
    const double sum = direct ? tensor_error(w, nullptr, n, s, target)
                              : tensor_error(counted.values.data(), counted.counts.data(),
                                             static_cast<std::int64_t>(counted.values.size()), s, target);
    const float error = to_hp(static_cast<float>(std::sqrt(sum)), target.hp);
    if (error <= least) least = error, best = s;
  }
  return best;
}

// The multiplier of the reference for one channel; `quantizer` is scratch.
float best_of_channel(const float* w, std::int64_t cols, float reference, const std::vector<float>& candidates,
                      Quantizer& quantizer) {
  const FloatType hp = quantizer.target.hp;
  std::array<float, kBlock> values, error;
  float best = 1.0f, least = std::numeric_limits<float>::infinity();
  for (const float s : candidates) {
    const float candidate = to_hp(reference * to_hp(s, hp), hp);
    if (!(candidate > 0.0f)) continue;  // the product underflowed
    double sum = 0.0;
    for (std::int64_t first = 0; first < cols; first += kBlock) {
      const std::int64_t size = std::min(kBlock, cols - first);
      load(w + first, size, hp, values.data());
      quantizer.errors(values.data(), size, candidate, error.data());
      for (std::int64_t i = 0; i < size; ++i) {
        const float e = error[static_cast<std::size_t>(i)];
        sum += static_cast<double>(to_hp(e * e, hp));
      }
    }
    const float rounded = to_hp(static_cast<float>(sum), hp);
    if (rounded < least) least = rounded, best = to_hp(s, hp);
  }
  return best;
}

Eigen::ArrayXf best_of_channels(const float* w, std::int64_t rows, std::int64_t cols, const ScaleMethod& method,
                                const std::vector<float>& candidates, const IncTarget& target, std::string_view name) {
  ScaleMethod reference = method;
  reference.value = ScaleValue::MAXABS;
  Eigen::ArrayXf scale_inv(rows);
  kernels::parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    Quantizer quantizer{target, {}, {}};
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = w + r * cols;
      const float maxabs = inc_scale_inv(kernels::amax(row, FloatType::F32, cols), reference, target, name);
      scale_inv[r] = to_hp(maxabs * best_of_channel(row, cols, maxabs, candidates, quantizer), target.hp);
    }
  });
  return scale_inv;
}

}  // namespace

std::vector<float> opt_candidates(const ScaleMethod& method, const IncTarget& target) {
  if (!method.candidates.empty()) return method.candidates;
  const bool channels = method.granularity == Granularity::PCS;
  if (!channels && method.rounding == Rounding::HW_ALIGNED) return hw_scale_set(target.dialect);
  std::vector<float> powers;
  for (int e = channels ? -3 : -10; e <= (channels ? 4 : 9); ++e) powers.push_back(std::ldexp(1.0f, e));
  return powers;
}

Eigen::ArrayXf opt_scale_inv(const float* w, std::int64_t rows, std::int64_t cols, const ScaleMethod& method,
                             const IncTarget& target, std::string_view name) {
  if (method.value != ScaleValue::OPT) reject(name, std::string("scale value is ") + name_of(method.value) + ", allowed: OPT");
  if (rows < 0 || cols < 0 || (w == nullptr && rows * cols > 0)) reject(name, "a weight of negative size or no memory");
  const std::vector<float> candidates = opt_candidates(method, target);
  for (const float s : candidates) {
    if (!(s > 0.0f) || !std::isfinite(s)) reject(name, "candidate " + std::to_string(s) + ", allowed: finite values > 0");
  }
  check_finite(w, rows, cols, target.hp, name);
  Eigen::ArrayXf scale_inv;
  if (method.granularity == Granularity::PCS) {
    scale_inv = best_of_channels(w, rows, cols, method, candidates, target, name);
  } else {
    scale_inv = Eigen::ArrayXf::Constant(1, best_of_tensor(w, rows * cols, candidates, target));
  }
  for (float& s : scale_inv) s = usable_scale_inv(round_scale(s, method.rounding, target), method.rounding, target.hp);
  return scale_inv;
}

}  // namespace fp8::recipes
