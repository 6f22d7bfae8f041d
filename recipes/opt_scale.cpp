// SPDX-License-Identifier: Apache-2.0
// The search over candidates (see inc_scale.h).
//
// Per tensor a bf16 or f16 weight has at most 2^15 magnitudes, and the error depends on the magnitude only: one pass
// counts them, then every candidate is an error over the table weighted by the counts, whatever the weight's size.
#include <algorithm>

#include "fp8/recipes/inc_scale.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::recipes {
namespace {

constexpr std::int64_t kBlock = 4096;  // values quantized at once

[[noreturn]] void reject(std::string_view name, const std::string& what) {
  io::fail<std::invalid_argument>("{}: {}", name, what);
}

// The loops over values are compiled once per hp: the type is known outside of them.
template <class Loop>
void with_type(FloatType hp, Loop&& loop) {
  switch (hp) {
    case FloatType::BF16: loop([](float x) { return kernels::bf16_to_f32(kernels::f32_to_bf16(x)); }); return;
    case FloatType::F16: loop([](float x) { return kernels::f16_to_f32(kernels::f32_to_f16(x)); }); return;
    case FloatType::F32: loop([](float x) { return x; }); return;
  }
}

// Sums of (w - q(w, s))^2 of the formulas above, for n <= kBlock values in hp.
struct Quantizer {
  IncTarget target;
  bool round_squares;  ///< PCS
  std::array<float, kBlock> values, scaled;
  std::array<std::uint8_t, kBlock> codes;

  Quantizer(const IncTarget& t, bool squares) : target(t), round_squares(squares) {}

  // counts: how often each value occurs; nullptr for once.
  double error(const float* w, const double* counts, std::int64_t n, float s) {
    const auto size = static_cast<std::size_t>(n);
    with_type(target.hp, [&](auto to_type) {
      for (std::size_t i = 0; i < size; ++i) values[i] = to_type(w[i]);
      for (std::size_t i = 0; i < size; ++i) scaled[i] = to_type(values[i] / s);
    });
    cast(n);
    const float* value = kernels::decode_table(target.format);
    for (std::size_t i = 0; i < size; ++i) scaled[i] = value[codes[i]];
    double sum = 0.0;
    with_type(target.hp, [&](auto to_type) {
      for (std::size_t i = 0; i < size; ++i) scaled[i] = to_type(values[i] - to_type(scaled[i] * s));
      if (round_squares) {
        for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(to_type(scaled[i] * scaled[i]));
      } else {
        for (std::size_t i = 0; i < size; ++i) {
          const double e = scaled[i];
          sum += counts != nullptr ? e * e * counts[i] : e * e;
        }
      }
    });
    return sum;
  }

 private:
  void cast(std::int64_t n) {
    const float max = fp8_max(target.format, target.dialect);
    kernels::cast_to_fp8(kernels::dense_cast(scaled.data(), 1, n, codes.data(), target.format, max));
  }
};

void check_finite(const float* w, std::int64_t rows, std::int64_t cols, FloatType hp, std::string_view name) {
  const float largest = kernels::amax(w, FloatType::F32, rows * cols);
  if (!std::isfinite(largest)) reject(name, "the weight has NaN or infinite values, allowed: finite ones");
  if (!std::isfinite(round_to(largest, hp)))
    reject(name, "the weight has values beyond what " + std::string(name_of(hp)) + " (hp_dtype) can hold");
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

// The values that are compared: each of a tensor, or each different one with its count.
struct Values {
  const float* w;
  const double* counts;
  std::int64_t n;
};

// error(s) of a tensor; infinite as soon as it is beyond `limit`, because errors only add up.
float tensor_error(const Values& values, float s, float limit, const IncTarget& target) {
  constexpr std::int64_t kWave = 64;  // blocks between two looks at the limit
  const std::int64_t blocks = (values.n + kBlock - 1) / kBlock;
  std::array<double, kWave> sums;
  double total = 0.0;
  float error = 0.0f;
  for (std::int64_t wave = 0; wave < blocks; wave += kWave) {
    const std::int64_t size = std::min(kWave, blocks - wave);
    kernels::parallel_for(size, 1, [&](std::int64_t begin, std::int64_t end) {
      Quantizer quantizer(target, false);
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t first = (wave + b) * kBlock;
        const double* counts = values.counts != nullptr ? values.counts + first : nullptr;
        sums[static_cast<std::size_t>(b)] =
            quantizer.error(values.w + first, counts, std::min(kBlock, values.n - first), s);
      }
    });
    for (std::int64_t b = 0; b < size; ++b) total += sums[static_cast<std::size_t>(b)];
    error = round_to(static_cast<float>(std::sqrt(total)), target.hp);
    if (error > limit) return std::numeric_limits<float>::infinity();
  }
  return error;
}

// The candidate with amax in the upper half of the range: usually near the best, so that others are dropped soon.
float first_guess(const std::vector<float>& candidates, float amax, const IncTarget& target) {
  const float raw = std::max(amax / fp8_max(target.format, target.dialect), std::numeric_limits<float>::min());
  return *std::ranges::min_element(
      candidates, [raw](float a, float b) { return std::abs(std::log2(a / raw)) < std::abs(std::log2(b / raw)); });
}

float best_of_tensor(const float* w, std::int64_t n, const std::vector<float>& candidates, const IncTarget& target) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Counted counted;
  Values values{w, nullptr, n};
  if (target.hp != FloatType::F32) {
    counted = count_magnitudes(w, n, target.hp);
    values = {counted.values.data(), counted.counts.data(), static_cast<std::int64_t>(counted.values.size())};
  }
  const float guess = first_guess(candidates, kernels::amax(w, FloatType::F32, n), target);
  float limit = tensor_error(values, guess, kInfinity, target);
  float best = candidates.back();
  for (const float s : candidates) {
    const float error = tensor_error(values, s, limit, target);
    if (error <= limit) limit = error, best = s;  // limit starts at what a candidate has, so one is taken
  }
  return best;
}

// The multiplier of the reference for one channel.
float best_of_channel(const float* w, std::int64_t cols, float reference, const std::vector<float>& candidates,
                      Quantizer& quantizer) {
  const FloatType hp = quantizer.target.hp;
  float best = 1.0f, least = std::numeric_limits<float>::infinity();
  for (const float s : candidates) {
    const float candidate = round_to(reference * round_to(s, hp), hp);
    if (!(candidate > 0.0f)) continue;  // the product underflowed
    double sum = 0.0;
    for (std::int64_t first = 0; first < cols; first += kBlock)
      sum += quantizer.error(w + first, nullptr, std::min(kBlock, cols - first), candidate);
    const float rounded = round_to(static_cast<float>(sum), hp);
    if (rounded < least) least = rounded, best = round_to(s, hp);
  }
  return best;
}

Eigen::ArrayXf best_of_channels(const float* w, std::int64_t rows, std::int64_t cols, const ScaleMethod& method,
                                const std::vector<float>& candidates, const IncTarget& target, std::string_view name) {
  ScaleMethod reference = method;
  reference.value = ScaleValue::MAXABS;
  Eigen::ArrayXf scale_inv(rows);
  kernels::parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    Quantizer quantizer(target, true);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = w + r * cols;
      const float maxabs = inc_scale_inv(kernels::amax(row, FloatType::F32, cols), reference, target, name);
      scale_inv[r] = round_to(maxabs * best_of_channel(row, cols, maxabs, candidates, quantizer), target.hp);
    }
  });
  return scale_inv;
}

}  // namespace

std::vector<float> opt_candidates(const ScaleMethod& method, const IncTarget& target) {
  if (!method.candidates.empty()) return method.candidates;
  const bool channels = method.granularity == Granularity::channel;
  if (!channels && method.rounding == Rounding::HW_ALIGNED) return hw_scale_set(target.dialect);
  std::vector<float> powers;
  for (int e = channels ? -3 : -10; e <= (channels ? 4 : 9); ++e) powers.push_back(std::ldexp(1.0f, e));
  return powers;
}

Eigen::ArrayXf opt_scale_inv(const float* w, std::int64_t rows, std::int64_t cols, const ScaleMethod& method,
                             const IncTarget& target, std::string_view name) {
  if (method.value != ScaleValue::OPT)
    reject(name, std::string("scale value is ") + name_of(method.value) + ", allowed: OPT");
  if (rows < 0 || cols < 0 || (w == nullptr && rows * cols > 0)) reject(name, "a weight of negative size or no memory");
  const std::vector<float> candidates = opt_candidates(method, target);
  for (const float s : candidates)
    if (!(s > 0.0f) || !std::isfinite(s))
      reject(name, "candidate " + std::to_string(s) + ", allowed: finite values > 0");
  check_finite(w, rows, cols, target.hp, name);
  Eigen::ArrayXf scale_inv;
  if (method.granularity == Granularity::channel) {
    scale_inv = best_of_channels(w, rows, cols, method, candidates, target, name);
  } else {
    scale_inv = Eigen::ArrayXf::Constant(1, best_of_tensor(w, rows * cols, candidates, target));
  }
  for (float& s : scale_inv) s = usable_scale_inv(round_scale(s, method.rounding, target), method.rounding, target.hp);
  return scale_inv;
}

}  // namespace fp8::recipes
